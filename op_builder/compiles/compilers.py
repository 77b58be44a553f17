"""Which programs are compilers, and which of their commands compile. The recorder in C gets the same words."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

COMPILERS = (
    *("cc", "c++", "gcc", "g++", "clang", "clang++", "gfortran", "zig"),
    *("icx", "icpx", "icc", "icpc", "dpcpp", "ocloc"),  # Intel
    *("nvcc", "cicc", "ptxas", "ptxas-blackwell", "nvc", "nvc++"),  # NVIDIA
    *("hipcc", "amdclang", "amdclang++"),  # AMD
    *("bisheng", "ccec", "cncc", "mcc"),  # Huawei, Cambricon, Moore Threads
)
"""Names of their files, without a target (``x86_64-linux-gnu-``) and a version (``-12``)."""

NOT_COMPILING = ("-E", "-M", "-MM", "-###", "--dryrun", "-dryrun")


def is_compiler(path: str) -> bool:
    """Whether the name of a program's file, with links resolved, is a compiler's. A wrapper script's is not."""
    words = re.sub(r"(-\d[^-]*)+$", "", os.path.basename(path)).split("-")
    return any("-".join(words[at:]) in COMPILERS for at in range(len(words)))


def compiles(arguments: Sequence[str]) -> bool:
    """Whether a compiler with these arguments compiles or links; otherwise it answers a question about itself.

    Such a question (``--version``, ``-v``, ``-print-search-dirs``) names no file; preprocessing counts as one, too.
    """
    words = arguments[1:]
    names_file = any(word == "-" or not word.startswith("-") for word in words)
    return names_file and not any(word in NOT_COMPILING for word in words)
