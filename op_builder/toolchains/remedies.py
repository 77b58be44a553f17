"""What to do about the well-known causes of a build or a load that failed.

Tables of messages of compilers, linkers and the dynamic loader, each with a remedy for the author or user.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from op_builder.system.ledger import REFUSED_REMEDY
from op_builder.system.process import LIMITS, OUT_OF_RESOURCES

_Remedy = str | Callable[[re.Match[str], str], str]
"""A text with ``\\1`` for what the pattern found, or a function of the match and the failing command."""

_CUDA_NAME = re.compile(r"(?:cuda|cublas|curand|cusparse|cusolver|cufft|cufile|nvrtc|nvToolsExt|cub/)[\w./]*")
_NEEDS_TORCH_BINDING = re.compile(r"Python\.h|torch/(?:extension|python|all|torch)\.h")
_STABLE_BINDING = "-DTORCH_TARGET_VERSION="
_SOURCE = re.compile(r"\.(?:c|cc|cpp|cxx|cu)$")
WROTE_NOTHING = (
    "Remove flags that replace the compile or the link, such as -fsyntax-only and -Wl,--version, or set CXX."
)
SHORTAGE = (
    r"[Cc]annot allocate memory|memory exhausted|[Oo]ut of memory|std::bad_alloc"
    r"|failed to map segment(?!.*not permitted)|Killed signal terminated program|execute command: Killed"
    r"|(?:died due to|ended by|killed by|terminated with) signal 9\b"
    r"|Resource temporarily unavailable|\b[Cc]annot fork\b"
)
"""How programs report that the machine has too little memory or too few processes, as a regular expression."""
_QUOTES = str.maketrans("\u2018\u2019", "''")  # printed in locales other than C


def compile_remedy(diagnostic: str, command: str) -> str:
    """What to do about a compiler's or linker's diagnostic; empty when nothing is known.

    Args:
        diagnostic: its first line, and in further lines the notes that belong to it.
        command: the command that failed.
    """
    diagnostic = diagnostic.translate(_QUOTES)
    for pattern, remedy in COMPILE:
        found = re.search(pattern, diagnostic)
        text = "" if found is None else found.expand(remedy) if isinstance(remedy, str) else remedy(found, command)
        if text:
            return text
    return ""


def load_remedy(cause: str) -> str:
    """What to do about the dynamic loader's error; empty when nothing is known."""
    for pattern, remedy in LOAD:
        found = re.search(pattern, cause)
        if found:
            return found.expand(remedy)
    return ""


def _missing_file(found: re.Match[str], command: str) -> str:
    name = next(filter(None, found.groups()))
    if _SOURCE.search(name):
        return f"{name} is missing: restore it, or remove it from the sources."
    if _NEEDS_TORCH_BINDING.fullmatch(name) and _STABLE_BINDING in command:
        return f"Ops of Binding.STABLE cannot use {name}: omit it, or declare BINDING = Binding.TORCH."
    if name == "Python.h":
        return "Install the Python headers (Debian and Ubuntu: `apt-get install python3-dev`)."
    if _CUDA_NAME.fullmatch(name):
        return (
            f"{name} is the CUDA toolkit's, whose headers are used only for ops with a .cu source: install the "
            "toolkit, or add its directory to the include directories."
        )
    return f"Install the package that has {name}, or add its directory to the include directories."


def _missing_library(found: re.Match[str], _command: str) -> str:
    name = found[1]
    if name in ("torch_cuda", "c10_cuda"):
        return f"lib{name} comes with a CUDA build of torch: install one."
    if _CUDA_NAME.fullmatch(name):
        return f"lib{name} is the CUDA toolkit's: install that part of it, or name its directory with -L."
    return f"Install lib{name}'s development package, or add -L with its directory to the linker's flags."


# The first that fits is taken.
COMPILE: tuple[tuple[str, _Remedy], ...] = (
    (r"^accel-ops: error: no compiler may start here", REFUSED_REMEDY),
    *LIMITS,
    (r"No space left on device", "Free some space on that disk."),
    (SHORTAGE, OUT_OF_RESOURCES),
    (
        r"unsupported (?:GNU|clang) version|[Ff]ailed to preprocess host compiler|[Hh]ost compiler targets unsupported"
        r"|[Nn]o supported (?:gcc|host)|identifier \"(?:_Float\d+x?|__builtin_\w+)\" is undefined"
        r"|std_function\.h:.* parameter packs not expanded",
        "nvcc and the host compiler are incompatible: set CXX to an older g++ or clang++, or install a newer CUDA "
        "toolkit.",
    ),
    (
        r"Unsupported gpu architecture '(.+?)'|Value '(.+?)' is not defined for option 'gpu-architecture'",
        r"This nvcc does not know \1\2: correct TORCH_CUDA_ARCH_LIST, or install a toolkit that knows it.",
    ),
    (
        r"\binternal (?:compiler )?error: |command failed due to signal|died due to signal"
        r"|(?:ended by|terminated with) signal \d",
        "The compiler crashed: set CXX to another version, or lower the optimization of this source; "
        "where memory is short, set ACCEL_MAX_JOBS=1.",
    ),
    (
        r"unrecognized command-line option|unknown argument|unknown clang option|Unknown option",
        "The compiler does not know this flag: correct it, or set CXX to a compiler that knows it.",
    ),
    (
        r"fatal error: '?([^\s']+)'?(?:: No such file or directory| file not found)"
        r"|(?:cannot|could not) open source file \"(.+?)\"|^ninja: error: '(.+?)', needed by .* missing",
        _missing_file,
    ),
    (
        r"cannot find '(?:ld|as|collect2)'|cannot execute '\S+': (?:\w+: )?No such file",
        "A program that belongs to the compiler is missing: install all of it (g++ and binutils), set PATH, "
        "and unset GCC_EXEC_PREFIX and COMPILER_PATH.",
    ),
    (r"cannot find \d+_\S+\.o\b", WROTE_NOTHING),
    (r"(?:cannot find|unable to find library) -l:?([^\s:]+)", _missing_library),
    (
        r"(?:only available (?:from|with '?-std=)|support for the|requires?|needs?)\D*(?:20|c\+\+|C\+\+)(\d\w)\b"
        r"|\bC\+\+(\d\d) (?:or (?:later|newer|above)|compatible)",
        r"The C++ standard is too old: this needs C++\1\2; add -std=c++\1\2 or later to the flags of this compiler.",
    ),
    (
        r"undefined reference to [`'](.+)'|undefined symbol: (.+)",
        r"Link the library that defines \1\2, or add its source to the sources.",
    ),
)

LOAD: tuple[tuple[str, str], ...] = (
    (
        r"undefined symbol: _Z\w*(?:2at|3c10|5torch|6caffe2)",
        "This torch does not have that symbol: adapt the sources to it, or link the library of torch that has it.",
    ),
    (
        r"undefined symbol: (?!__kmpc_)(\S+)",  # which no library has that ziglang's clang can link
        r"Link the library that defines \1, or add its source to the sources.",
    ),
    (
        r"([^\s:]+): cannot open shared object file",
        r"Install \1, or add -Wl,-rpath,DIR with its directory to the linker's flags.",
    ),
    (
        r"ended (?:by SIG|the process with status)",
        "Check the code that runs when the file is opened: static initializers, the module's init function, and "
        "TORCH_LIBRARY blocks, whose namespace may be taken.",
    ),
)
