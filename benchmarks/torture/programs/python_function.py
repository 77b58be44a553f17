"""The function ``value`` of the module ``$TORTURE_MODULE``, for builders that compile Python."""

import importlib
import os
import sys

from _main import main


def load_op(sources, flags):  # noqa: ARG001
    sys.path.insert(0, str(sources))
    module = os.environ["TORTURE_MODULE"]
    for name in ("values", module):
        sys.modules.pop(name, None)
    return importlib.import_module(module).value


main(load_op)
