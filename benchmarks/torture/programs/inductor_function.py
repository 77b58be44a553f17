"""The function of ``op_inductor.py``."""

import importlib
import sys

from _main import main


def load_op(sources, flags):  # noqa: ARG001
    sys.path.insert(0, str(sources))
    for name in ("values", "op_inductor"):
        sys.modules.pop(name, None)
    return importlib.import_module("op_inductor").value


main(load_op)
