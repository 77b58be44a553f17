"""From the output of a failed build to the one line that matters, and a remedy where it is known."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMMAND = re.compile(r"^FAILED: .*$")
_DIAGNOSTICS = (
    re.compile(r"^[^\s:][^:]*:\d+(?::\d+)?: (?:fatal )?error: .+$"),  # gcc, clang
    re.compile(r"^[^\s(]+\(\d+\): (?:catastrophic )?error.*: .+$"),  # nvcc
    re.compile(
        r"^(?:cc1plus|g\+\+|gcc|clang(?:\+\+)?|c\+\+|nvcc|collect2|cicc|ptxas)\s*:? (?:fatal )?(?:error)\s*:? .+$"
    ),
    re.compile(r"^.*undefined reference to .+$"),
    re.compile(r"^.*ld(?:\.\w+)?: (?:error: )?.*(?:cannot find|not found|No such file|relocation|undefined).*$"),
    re.compile(r"^.*(?:No space left on device|Killed signal terminated program|Cannot allocate memory).*$"),
)
_SUMMARY = re.compile(r"^collect2: error: ld returned")


@dataclass(frozen=True)
class Diagnosis:
    """The first real diagnostic, the command that failed, and what to do (may be empty)."""

    diagnostic: str
    command: str
    remedy: str
    disk_full: bool = False


def diagnose(log: str) -> Diagnosis:
    """Find the cause in a ninja log."""
    lines = log.splitlines()
    command, body = _failed_step(lines)
    diagnostic = _first_diagnostic(body) or _first_diagnostic(lines) or " | ".join(line for line in lines[-3:] if line)
    everything = "\n".join(body) or log
    remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, everything)), "")
    return Diagnosis(
        diagnostic or "the compiler said nothing", command, remedy, disk_full="No space left on device" in log
    )


def _failed_step(lines: list[str]) -> tuple[str, list[str]]:
    for index, line in enumerate(lines):
        if _COMMAND.match(line):
            command = lines[index + 1] if index + 1 < len(lines) else ""
            return command, lines[index + 2 :]
    return "", lines


def _first_diagnostic(lines: list[str]) -> str:
    for line in lines:
        if _SUMMARY.match(line):
            continue
        if any(pattern.match(line) for pattern in _DIAGNOSTICS):
            return line.strip()
    return ""


_REMEDIES = (
    (r"No space left on device", "Free some space, or set ACCEL_CACHE_DIR to a directory on another disk."),
    (
        r"Killed signal terminated program|Cannot allocate memory|virtual memory exhausted",
        "The compiler ran out of memory: set ACCEL_MAX_JOBS=1, or give the machine more memory.",
    ),
    (
        r"Python\.h: No such file",
        "Install the Python headers (Debian and Ubuntu: apt-get install python3-dev).",
    ),
    (
        r"fatal error: \S+: No such file or directory|cannot open source file",
        "Install the package that has this header, or name its directory in include_paths().",
    ),
    (
        r"cannot find -l",
        "Install the library's development package, or name its directory with -L in extra_ldflags().",
    ),
    (
        r"unsupported GNU version|unsupported clang version|host compiler",
        "nvcc does not take this host compiler: set CXX to a version that the CUDA toolkit supports.",
    ),
    (
        r"Unsupported gpu architecture|is not defined for option 'gpu-architecture'",
        "This nvcc does not know the architecture: correct TORCH_CUDA_ARCH_LIST or install a toolkit that knows it.",
    ),
    (
        r"C\+\+17 or later|C\+\+20|#error .*(?:C\+\+|standard)|-std=c\+\+",
        "The C++ standard is too old for these headers: drop -std from cxx_args(), or raise it.",
    ),
    (
        r"undefined reference to",
        "Add the library that defines this symbol to extra_ldflags(), or its source to sources().",
    ),
)
