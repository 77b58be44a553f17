"""What to do about the well-known causes of a build or a load that failed.

Tables of messages of compilers, linkers and the dynamic loader, each with a remedy for the author or user.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_Remedy = str | Callable[[re.Match[str], str], str]
"""A text with ``\\1`` for what the pattern found, or a function of the match and the failing command."""

# By Debian's package: the header and the library by which its absence shows.
_PACKAGES = {
    "libaio-dev": ("libaio.h", "aio"),
    "libnccl-dev": ("nccl.h", "nccl"),
    "libnuma-dev": ("numa.h", "numa"),
    "libomp-dev": ("omp.h", "omp"),
    "libopenblas-dev": ("cblas.h", "openblas"),
    "libopenmpi-dev": ("mpi.h", "mpi"),
    "liburing-dev": ("liburing.h", "uring"),
    "libzstd-dev": ("zstd.h", "zstd"),
    "zlib1g-dev": ("zlib.h", "z"),
}
_CUDA_NAME = re.compile(r"(?:cuda|cublas|curand|cusparse|cusolver|cufft|cufile|nvrtc|nvToolsExt|cub/)[\w./]*")
_NEEDS_TORCH_BINDING = re.compile(r"Python\.h|torch/(?:extension|python|all|torch)\.h")
_STABLE_BINDING = "-DTORCH_TARGET_VERSION="
_SOURCE = re.compile(r"\.(?:c|cc|cpp|cxx|cu)$")
_QUOTES = str.maketrans("\u2018\u2019", "''")  # printed in locales other than C


def compile_remedy(diagnostic: str, command: str) -> str:
    """What to do about a compiler's or linker's diagnostic; empty when nothing is known.

    Args:
        diagnostic: its first line, and in further lines the notes that belong to it.
        command: the command that failed.
    """
    diagnostic = diagnostic.translate(_QUOTES)
    for pattern, remedy in _COMPILE:
        found = re.search(pattern, diagnostic)
        text = "" if found is None else found.expand(remedy) if isinstance(remedy, str) else remedy(found, command)
        if text:
            return text
    return ""


def load_remedy(cause: str) -> str:
    """What to do about the dynamic loader's complaint; empty when nothing is known."""
    for pattern, remedy in _LOAD:
        found = re.search(pattern, cause)
        if found:
            return found.expand(remedy)
    return ""


def _missing_file(found: re.Match[str], command: str) -> str:
    name = found[1]
    if _SOURCE.search(name):
        return f"{name} is missing: restore it, or remove it from the sources."
    if _NEEDS_TORCH_BINDING.fullmatch(name) and _STABLE_BINDING in command:
        return f"Ops of Binding.STABLE cannot use {name}: omit it, or declare BINDING = Binding.TORCH."
    if name == "Python.h":
        return "Install the Python headers (Debian and Ubuntu: apt-get install python3-dev)."
    if _CUDA_NAME.fullmatch(name):
        return (
            f"{name} is the CUDA toolkit's, whose headers are used only for ops with a .cu source: install the "
            "toolkit, or add its directory to the include directories."
        )
    package = next((package for package, (header, _) in _PACKAGES.items() if header == name), "")
    hint = f" (Debian and Ubuntu: apt-get install {package})" if package else ""
    return f"Install the package that has {name}{hint}, or add its directory to the include directories."


def _missing_library(found: re.Match[str], _command: str) -> str:
    name = found[1]
    if name in ("torch_cuda", "c10_cuda"):
        return f"lib{name} comes with a CUDA build of torch: install one."
    if _CUDA_NAME.fullmatch(name):
        return f"lib{name} is the CUDA toolkit's: install that part of it, or name its directory with -L."
    package = next((package for package, (_, library) in _PACKAGES.items() if library == name), "")
    hint = f" (Debian and Ubuntu: apt-get install {package})" if package else ""
    return f"Install lib{name}'s development package{hint}, or add -L with its directory to the linker's flags."


def _missing_linker(_found: re.Match[str], command: str) -> str:
    if "-fuse-ld" in command:
        return "The linker that -fuse-ld names is not installed: install it, or drop the flag."
    return "The compiler finds no linker: install it (Debian and Ubuntu: apt-get install binutils), or correct PATH."


_RAISE_STANDARD = (
    r"The C++ standard is too old: this needs C++\1; add -std=c++\1 or later to the flags of this compiler."
)

# The first that fits is taken.
_COMPILE: tuple[tuple[str, _Remedy], ...] = (
    (r"No space left on device", "Free some space on that disk."),
    (
        r"Cannot allocate memory|memory exhausted|[Oo]ut of memory|std::bad_alloc|failed to map segment",
        "The compiler ran out of memory: set ACCEL_MAX_JOBS=1, or give the machine more memory.",
    ),
    (
        r"Killed signal terminated program|execute command: Killed|(?:died due to|ended by) signal 9\b",
        "The compiler was killed, as Linux does when memory runs out: set ACCEL_MAX_JOBS=1, or give the machine "
        "more memory.",
    ),
    (
        r"Resource temporarily unavailable|\b[Cc]annot fork\b",
        "No further process could be started: raise the limit (ulimit -u, or pids.max of the control group), or end "
        "other processes.",
    ),
    # nvcc and its host compiler
    (
        r"unsupported GNU version! gcc versions later than ([\d.]+)",
        r"nvcc and the host compiler are incompatible: set CXX to gcc \1 or older, or install a newer CUDA toolkit.",
    ),
    (
        r"unsupported clang version! clang version must be less than ([\d.]+)",
        r"nvcc and the host compiler are incompatible: set CXX to a clang older than \1, or install a newer "
        "CUDA toolkit.",
    ),
    (
        r"unsupported (?:GNU|clang) version|[Ff]ailed to preprocess host compiler|[Hh]ost compiler targets unsupported"
        r"|[Nn]o supported (?:gcc|host)",
        "nvcc cannot use this host compiler: set CXX to a g++ or clang++ that the CUDA toolkit supports.",
    ),
    (
        r"identifier \"(?:_Float\d+x?|__builtin_\w+)\" is undefined|std_function\.h:.* parameter packs not expanded",
        "nvcc and the host compiler are incompatible: the compiler's headers are too new; set CXX to an older one.",
    ),
    (
        r"Unsupported gpu architecture '(.+?)'|Value '(.+?)' is not defined for option 'gpu-architecture'",
        r"This nvcc does not know \1\2: correct TORCH_CUDA_ARCH_LIST, or install a toolkit that knows it.",
    ),
    # the compiler
    (
        r"\binternal (?:compiler )?error: |command failed due to signal|died due to signal|ended by signal \d",
        "The compiler crashed: set CXX to another version, or lower the optimization of this source; "
        "where memory is short, set ACCEL_MAX_JOBS=1.",
    ),
    (
        r"unrecognized command-line option|unknown argument|unknown clang option|Unknown option"
        r"|bad value '.+' for '.+' switch|invalid value '.+' in '.+'|Value '.+' is not defined for option",
        "The compiler does not know this flag: correct it, or set CXX to a compiler that knows it.",
    ),
    (
        r"\bsh: .*(?:not found|Permission denied|cannot execute)",
        "A program of the command is missing or may not be executed: install it again.",
    ),
    # missing files
    (r"fatal error: (\S+): No such file or directory", _missing_file),
    (r"fatal error: '(\S+)' file not found", _missing_file),
    (r"(?:cannot|could not) open source file \"(.+?)\"", _missing_file),
    (r"^ninja: error: '(.+?)', needed by .* missing", _missing_file),
    (r"(?:cannot find|unable to find library) -l:?([^\s:]+)", _missing_library),
    (r"cannot find '(?:\S*ld\S*)'|invalid linker name", _missing_linker),
    (
        r"ld\S*: (?:error: )?cannot (?:find|open) ([^\s:]+)",
        r"\1 does not exist: correct its name in the linker's flags.",
    ),
    # standards
    (r"only available from C\+\+(\d+)", _RAISE_STANDARD),
    (r"only available with '?-std=c\+\+(\d\w)", _RAISE_STANDARD),
    (r"support for the ISO C\+\+ 20(\d\d)", _RAISE_STANDARD),
    (r"\bC\+\+(\d\d) (?:or (?:later|newer|above)|compatible)", _RAISE_STANDARD),
    (r"(?:requires?|needs?) (?:at least )?C\+\+(\d\d)", _RAISE_STANDARD),
    # linking
    (
        r"undefined reference to [`'](.+)'|undefined symbol: (.+)",
        r"Link the library that defines \1\2, or add its source to the sources.",
    ),
    (
        r"multiple definition of [`'](.+?)'|duplicate symbol: (.+)",
        r"Define \1\2 in only one source; what is defined in a header must be inline.",
    ),
    (
        r"recompile with -fPIC",
        "A static library or object was compiled without -fPIC: link the shared library, or compile it with -fPIC.",
    ),
    (
        r"file format not recognized|not in a known format|unknown file type|wrong format",
        "This file is not a library or object for this machine: install or build it again.",
    ),
    (r"no such instruction", "Correct the instruction, or install an assembler (binutils) that knows it."),
)

_LOAD: tuple[tuple[str, str], ...] = (
    (
        r"undefined symbol: _Z\w*(?:2at|3c10|5torch|6caffe2)",
        "This torch does not have that symbol: adapt the sources to it, or link the library of torch that has it.",
    ),
    (
        r"undefined symbol: __kmpc_",
        "With ziglang's clang, tasks, ordered loops, cancel and copyprivate of OpenMP do not work: set CXX to g++. "
        "With another clang++, add -fopenmp to the linker's flags.",
    ),
    (
        r"undefined symbol: (\S+)",
        r"Link the library that defines \1, or add its source to the sources.",
    ),
    (
        r"lib(?:cudart|cublas\w*|curand|cusparse|cusolver|cufft|nvrtc)\.so\.(\d+): cannot open shared object",
        r"torch and the CUDA toolkit are incompatible: this needs the libraries of CUDA \1; compile with the toolkit "
        r"of the CUDA version that torch was built for (CUDA_HOME), or install those libraries.",
    ),
    (
        r"([^\s:]+): cannot open shared object file",
        r"Install \1, or add -Wl,-rpath,DIR with its directory to the linker's flags.",
    ),
    (
        r"version `(?:GLIBCXX|CXXABI)_",
        "The compiler's C++ library is newer than the one this Python loads: set CXX to the compiler of the "
        "environment that Python is from.",
    ),
    (
        r"single TORCH_LIBRARY can be used to register the namespace (\w+)",
        r"The namespace \1 is taken: give the library one of its own, or use TORCH_LIBRARY_FRAGMENT(\1, m).",
    ),
    (
        r"SIGILL",
        "It uses an instruction that this CPU lacks (correct -march), or called __builtin_trap().",
    ),
    (
        r"ended (?:by SIG|the process with status)",
        "Check the code that runs when the file is opened: static initializers, the module's init function, and "
        "TORCH_LIBRARY blocks, whose namespace may be taken.",
    ),
)
