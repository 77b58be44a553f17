"""Which programs are compilers, and which of their commands compile. The recorder in C gets the same words."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

COMPILERS = (
    *("cc", "c++", "gcc", "g++", "clang", "clang++", "gfortran", "zig"),
    *("flang", "flang-new", "rustc"),
    *("cc1", "cc1plus", "f951", "lto1"),  # started by gcc, g++ and gfortran
    *("icx", "icpx", "icc", "icpc", "ifx", "dpcpp", "ocloc", "ispc"),  # Intel
    *("nvcc", "cicc", "ptxas", "ptxas-blackwell", "nvlink", "fatbinary", "nvc", "nvc++"),  # NVIDIA
    *("hipcc", "amdclang", "amdclang++"),  # AMD
    *("bisheng", "ccec", "cncc", "mcc"),  # Huawei, Cambricon, Moore Threads
)
"""Names of their files, without a target (``x86_64-linux-gnu-``) and a version (``-12``)."""

NOT_COMPILING = ("-E", "-M", "-MM", "-###", "--dryrun", "-dryrun", "--version", "-help", "--target-help")
QUESTIONS = (
    "--help",
    "-dumpversion",
    "-dumpfullversion",
    "-dumpmachine",
    "-dumpspecs",
    "-print-",
    "--print-",
    "--list-",
)
"""Starts of words that ask something, whatever else the command names. (``-dumpbase`` and ``-dumpdir`` do not ask.)"""

BEFORE_ARGUMENT = (
    *("-o", "-x", "-target", "-I", "-L", "-B", "-D", "-U", "-T", "-u", "-z", "-e", "--param", "--sysroot", "-isysroot"),
    *("-idirafter", "-isystem", "-iquote", "-iprefix", "-iwithprefix", "-iwithprefixbefore", "-include", "-imacros"),
    *("-MF", "-MT", "-MQ", "-dumpbase", "-dumpbase-ext", "-dumpdir", "-aux-info", "-wrapper", "-arch", "-mllvm"),
    *("-Xlinker", "-Xassembler", "-Xpreprocessor", "-Xclang", "-Xcompiler", "-Xptxas", "-Xnvlink", "-Xarch_host"),
    *("-Xarch_device", "-Xcuda-ptxas", "-Xcuda-fatbinary", "-ccbin", "-gencode", "-code"),
)
"""Options whose argument is the next word, so that this is neither a file to compile nor a question."""

SUBCOMMANDS = ("cc", "c++", "version", "env", "targets")  # zig's


def is_compiler(path: str) -> bool:
    """Whether the name of a program's file, with links resolved, is a compiler's. A wrapper script's is not."""
    words = re.sub(r"(-\d[^-]*)+$", "", os.path.basename(path)).split("-")
    return any("-".join(words[at:]) in COMPILERS for at in range(len(words)))


def compiles(arguments: Sequence[str]) -> bool:
    """Whether a compiler with these arguments compiles or links; otherwise it answers a question about itself.

    Such a question (``--version``, ``-print-search-dirs``, or ``-v`` without a file) counts as one with any other
    options; preprocessing counts as a question, too.
    """
    names_file, is_argument = False, False
    for at, word in enumerate(arguments[1:]):
        if is_argument or (at == 0 and word in SUBCOMMANDS):
            is_argument = False
            continue
        if word in NOT_COMPILING or word.startswith(QUESTIONS):
            return False
        is_argument = word in BEFORE_ARGUMENT
        names_file |= word == "-" or not word.startswith("-")
    return names_file
