"""Query a C++ compiler and its linker by running them.

A module of its own because a warm load has the answers in the memo.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

from op_builder import env
from op_builder.errors import ToolchainError
from op_builder.system.process import run

_SCRIPT_BYTES = 1 << 16
_ABSOLUTE_PATH = re.compile(rb"/[^\s\"'`;|&<>()$]+")
_OLDEST_SYSTEM = re.compile(r"(-linux-gnu|-macos)\.[\d.]+$")
_VERSION_MACRO = re.compile(r'^#define __VERSION__ ".*?(\d+(?:\.\d+)+)', re.MULTILINE)

# The linker's own depfile (GNU ld 2.35, lld 12).
LINKED_FLAG = "--dependency-file"


def ask_compiler(command: tuple[str, ...], programs: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The version and target that a compiler reports, and the files that the answer depends on.

    Args:
        programs: the words of ``command`` that are programs, resolved.

    Raises:
        ToolchainError: it does not answer.
    """
    # zig's target may name a version of glibc or macOS; zig answers only without it.
    query = [_OLDEST_SYSTEM.sub(r"\1", word) for word in command]
    version = run([*query, "--version"])
    target = run([*query, "-dumpmachine"])
    if not version.ok or not target.ok:
        answer = (version.errors or target.errors or version.output).strip().splitlines()
        raise ToolchainError(
            f"{shlex.join(command)} does not answer --version and -dumpmachine as a C++ compiler does"
            + (f"; it printed: {answer[0]}" if answer else "."),
            "Set CXX to a working g++ or clang++.",
        )
    backend = "clang" if "clang" in version.output else "cc1plus"
    backend_path = run([*query, f"-print-prog-name={backend}"]).last_line
    files = [found for program in programs for found in (os.path.realpath(program), *script_files(program))]
    if os.path.isabs(backend_path):
        files.append(os.path.realpath(backend_path))
    macros = predefined_macros(command)
    is_gcc = "__GNUC__" in macros and "__clang__" not in macros and "__INTEL" not in macros
    line = version_line(version.output.strip() or version.errors.strip(), macros)
    return {"version": line, "target": target.last_line, "is_gcc": is_gcc}, files


def predefined_macros(command: tuple[str, ...]) -> str:
    """The macros that a compiler defines, as #define lines; empty where it does not list them."""
    return run([*command, "-dM", "-E", "-x", "c++", os.devnull]).output


def version_line(answer: str, macros: str) -> str:
    """The line of ``--version``'s answer with the compiler's version; all of the answer where no line has it.

    The first line may be that of a wrapper, which stays when the compiler behind it changes.
    """
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    number = _VERSION_MACRO.search(macros)
    matching = [line for line in lines if number is not None and number[1] in line]
    return matching[0] if matching else " ".join([*lines, *(number.groups() if number is not None else ())])


def binutil(name: str, command: tuple[str, ...]) -> str:
    """The path or name of the program ``name`` (``c++filt``) that belongs to a compiler's ``command``."""
    return run([*command, f"-print-prog-name={name}"]).last_line or name


def demangled(symbols: Sequence[str], program: str = "c++filt") -> dict[str, str]:
    """The C++ names of symbols, by symbol; empty where the program of binutils is missing."""
    try:
        return dict(zip(symbols, run([program, *symbols]).output.splitlines(), strict=False)) if symbols else {}
    except ToolchainError:
        return {}


def script_files(path: str) -> list[str]:
    """The files that a wrapper script names, as it names them, so that a switched link is noticed; else nothing."""
    try:
        with open(path, "rb") as file:
            text = file.read(_SCRIPT_BYTES)
    except OSError:
        return []
    if not text.startswith(b"#!"):
        return []
    named = [os.fsdecode(name) for name in _ABSOLUTE_PATH.findall(text)]
    return [name for name in dict.fromkeys(named) if os.path.isfile(name)]


def searched_directories(command: tuple[str, ...]) -> list[str]:
    """The directories in which a compiler searches for ``<...>`` by default, in order."""
    answer = run([*command, "-E", "-Wp,-v", "-x", "c++", os.devnull], environment=env.child_environment(LC_ALL="C"))
    listed = answer.errors.partition("#include <...> search starts here:\n")[2].partition("End of search list")[0]
    return [line.strip() for line in listed.split("\n") if line.strip()]


def lists_linked(command: tuple[str, ...]) -> bool:
    """Whether the linker of a compiler's ``command`` supports LINKED_FLAG; checked each time, as PATH may select it."""
    try:
        return LINKED_FLAG in run([*command, "-Wl,--help"]).output
    except ToolchainError:
        return False
