"""``torch.utils.cpp_extension.load`` as its documentation shows it."""

import os

from _main import main, parts
from torch.utils.cpp_extension import load


def load_op(sources, flags):
    includes = [str(sources / "first"), str(sources)]
    return load(
        "torture",
        [str(sources / "op.cpp"), *parts(sources)],
        extra_include_paths=includes,
        extra_cflags=flags,
        verbose="TORTURE_LOG" in os.environ,
    ).value


main(load_op)
