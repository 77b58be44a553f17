"""Which compiler this is: found without running it on the warm path.

The identity of a compiler is its path, version and target. Asking it costs a subprocess, so
the answer is memoised against the files that make it: the driver, and the compiler proper
behind it (``cc1plus``, ``clang``), so that an upgrade behind a wrapper script is noticed too.
"""

import itertools
import os
import re
import shlex
import shutil
from typing import Any, NamedTuple

from op_builder import env
from op_builder.errors import ToolchainError
from op_builder.system.memo import Memo
from op_builder.system.process import run

_SCRIPT_BYTES = 1 << 16
_ABSOLUTE_PATH = re.compile(rb"/[^\s\"'`;|&<>()$]+")

# The linker's own depfile (GNU ld 2.35, lld 12).
LINKED_FLAG = "--dependency-file"

_DEFAULT_CXX = ("g++", "c++", "clang++")


class Compiler(NamedTuple):
    """A compiler that was found.

    Attributes:
        command: how to start it; more than one word for ``CXX="ccache g++"``.
        path: the resolved file of its last word that is a program.
        version: its first line of ``--version``.
        target: the machine it compiles for, as ``x86_64-linux-gnu``.
        is_gcc: whether it is GCC itself, and not one that only takes GCC's options.
    """

    command: tuple[str, ...]
    path: str
    version: str
    target: str
    is_gcc: bool

    @property
    def itself(self) -> str:
        """Which program it is, whatever flags ``command`` gives it."""
        return " | ".join([self.path, self.version, self.target])

    @property
    def identity(self) -> str:
        return " | ".join([self.itself, shlex.join(self.flags)] if self.flags else [self.itself])

    @property
    def flags(self) -> tuple[str, ...]:
        """Those inside ``command``."""
        return self.command[self.command.index(self.program) + 1 :]

    @property
    def program(self) -> str:
        """The compiler's own word of ``command``, without launcher and flags."""
        return list(itertools.takewhile(lambda word: not word.startswith("-"), self.command))[-1]


def find_cxx(memo: Memo) -> Compiler:
    """The host C++ compiler: ``$CXX``, else the first of g++, c++, clang++ on PATH.

    Raises:
        ToolchainError: there is none, or it does not answer ``--version``.
    """
    named = env.CXX.get()
    for words in [shlex.split(named)] if named is not None else [[name] for name in _DEFAULT_CXX]:
        program = shutil.which(words[0])
        if program is not None:
            return identify((program, *words[1:]), memo)
        if named is not None:
            raise ToolchainError(
                f"CXX={named!r}: no program {words[0]!r} was found.", "Correct CXX, or unset it to use g++ from PATH."
            )
    raise ToolchainError(
        f"No C++ compiler: none of {', '.join(_DEFAULT_CXX)} is on PATH and CXX is unset.",
        "Install one (Debian and Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; "
        "conda: conda install gxx), or set CXX.",
    )


def run_by_script(path: str) -> list[str]:
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


def identify(command: tuple[str, ...], memo: Memo) -> Compiler:
    """Version and target of the compiler started by ``command``, from the memo where it is valid."""
    # ccache and distcc take the real compiler as their first argument.
    programs = [found for found in (shutil.which(word) for word in command if not word.startswith("-")) if found]
    path = os.path.realpath(programs[-1])

    def work_out() -> tuple[dict[str, Any], list[str]]:
        version = run([*command, "--version"])
        target = run([*command, "-dumpmachine"])
        if not version.ok or not target.ok:
            said = (version.errors or target.errors or version.output).strip().splitlines()
            raise ToolchainError(
                f"{shlex.join(command)} does not answer --version and -dumpmachine as a C++ compiler does"
                + (f"; it said: {said[0]}" if said else "."),
                "Set CXX to a working g++ or clang++.",
            )
        first_line = (version.output.strip() or version.errors.strip()).splitlines()[0]
        proper = "clang" if "clang" in first_line else "cc1plus"
        behind = run([*command, f"-print-prog-name={proper}"]).output.strip()
        files = [found for program in programs for found in (os.path.realpath(program), *run_by_script(program))]
        if os.path.isabs(behind):
            files.append(os.path.realpath(behind))
        macros = run([*command, "-dM", "-E", "-x", "c++", os.devnull]).output
        is_gcc = "__GNUC__" in macros and "__clang__" not in macros and "__INTEL" not in macros
        return {"version": first_line, "target": target.output.strip(), "is_gcc": is_gcc}, files

    fact = memo.get(f"c++ compiler {shlex.join(command)} {path}", work_out)
    return Compiler(command, path, fact["version"], fact["target"], fact["is_gcc"])


def lists_linked(command: tuple[str, ...]) -> bool:
    """Whether the linker of a compiler's ``command`` knows LINKED_FLAG; checked each time, as PATH may choose it."""
    try:
        return LINKED_FLAG in run([*command, "-Wl,--help"]).output
    except ToolchainError:
        return False
