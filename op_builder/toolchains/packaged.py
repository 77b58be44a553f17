"""clang of the Python package ziglang: its command, and ``accel-cc`` and ``accel-c++``, which run it.

Programs such as Inductor and Triton take a compiler's name from ``CC`` and ``CXX`` as one word. The scripts start as
fast as Python itself: nothing here imports torch.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from op_builder.system.target import Target

_OLDEST_GLIBC = "2.28"  # as torch's own wheels
# clang answers these itself, and does not know a target with a glibc.
_QUERIES = ("--version", "-dumpmachine", "-dumpversion", "-print-", "--print-")
# Arguments of GNU ld that zig's linker refuses and that a library works without.
_NOT_NEEDED = (
    *("-Bsymbolic-functions", "--exclude-libs", "--warn-common", "--no-keep-memory", "--reduce-memory-overheads"),
    *("--stats", "--icf", "--relax", "--no-relax", "--no-add-needed", "--add-needed", "--dynamic-list-data"),
    *("--copy-dt-needed-entries", "--no-copy-dt-needed-entries", "--package-metadata"),
)
_NOT_NEEDED_Z = ("pack-relative-relocs", "separate-code", "noseparate-code")
_WITHOUT_LINK = {"-c", "-S", "-E", "-M", "-MM", "-fsyntax-only"}


def packaged_command(language: str, target: Target | None = None) -> tuple[str, ...] | None:
    """The compiler's command, or None if ziglang is not installed.

    Args:
        language: ``cc`` or ``c++``.
        target: the platform to compile for; this machine's by default.
    """
    import platform

    program = os.path.join(_directory_of("ziglang") or "", "zig")
    if not os.path.isabs(program) or not os.path.exists(program):  # any directory of that name is a package
        return None
    command = (program, language)
    if target is None and sys.platform != "linux":
        return command
    # Without a target it compiles for this CPU alone; the binary runs with this glibc or a newer one.
    triple = f"{platform.machine()}-linux-gnu.{_OLDEST_GLIBC}" if target is None else target.triple
    # Zig searches only its own directories then; Debian's Python.h includes a file of the system's.
    system = ["-idirafter", "/usr/include"] if target is None else []
    return (*command, "-target", triple, "-fno-sanitize=undefined", *system)


def supported_link_flags(words: Iterable[str]) -> list[str]:
    """``words`` without the linker's arguments that zig refuses and a library works without; ``-h`` becomes -soname."""
    kept = []
    for word in words:
        start, *pieces = word.split(",")
        if start != "-Wl":
            kept.append(word)
            continue
        found: list[str] = []
        arguments = iter(pieces)
        for argument in arguments:
            if argument == "-z":
                value = next(arguments, "")
                found += [] if value in _NOT_NEEDED_Z else ["-z", value]
            elif argument == "--exclude-libs":
                next(arguments, "")
            elif argument.startswith("-h"):
                found += ["-soname", argument.removeprefix("-h") or next(arguments, "")]
            elif not argument.startswith(_NOT_NEEDED):
                found.append(argument)
        kept += [",".join(["-Wl", *found])] if found else []
    return kept


def strip_flags(system: str) -> list[str]:
    """Flags that leave debug information out of a library for ``system``: 2 MB of libc++'s, with this machine's paths.

    With other flags zig builds libc++ again.
    """
    return ["-Wl,-S,-x" if system == "darwin" else "-Wl,--strip-debug,--gc-sections"]


def cc() -> NoReturn:
    """The console script ``accel-cc``."""
    _execute("cc", "accel-cc")


def cxx() -> NoReturn:
    """The console script ``accel-c++``."""
    _execute("c++", "accel-c++")


def _execute(language: str, name: str) -> NoReturn:
    command = packaged_command(language)
    if command is None:
        sys.exit(f"{name}: the package ziglang is not installed in {sys.prefix}. Remedy: `pip install ziglang`.")
    arguments = supported_link_flags(sys.argv[1:])
    if any(word.startswith(_QUERIES) for word in arguments) or arguments == ["-v"]:
        command = tuple(word.removesuffix(f".{_OLDEST_GLIBC}") for word in command)
    elif "-fopenmp" in arguments:
        libgomp = torch_libgomp()
        if libgomp is None:
            sys.exit(f"{name}: -fopenmp needs the libgomp of torch, which is not in {sys.prefix}.")
        is_linked = _WITHOUT_LINK.isdisjoint(arguments)
        arguments = [word for word in arguments if word != "-lgomp"]
        if is_linked:
            arguments += [*openmp_runtime(language, libgomp), f"-Wl,-rpath,{os.path.dirname(libgomp)}"]
        else:
            arguments += openmp_headers()
    if not any(word.startswith("-g") for word in arguments):
        command = (*command, *strip_flags(sys.platform))
    os.execv(command[0], [*command, *arguments])


def openmp_headers() -> list[str]:
    """What ``-fopenmp`` needs for compiling."""
    from op_builder.paths import native_root

    return ["-isystem", str(native_root() / "csrc" / "openmp")]


def openmp_runtime(language: str, libgomp: str) -> list[str]:
    """What ``-fopenmp`` needs for compiling and linking: torch's runtime, see ``csrc/openmp/clang_on_libgomp.c``."""
    headers = openmp_headers()
    source = os.path.join(headers[1], "clang_on_libgomp.c")
    return [*headers, "-x", language.replace("cc", "c"), source, "-x", "none", libgomp]


def require_libgomp(op: str, target: Target | None) -> str:
    """:func:`torch_libgomp` for an op.

    Raises:
        ToolchainError: it is missing, or the op is built for another platform.
    """
    libgomp = torch_libgomp()
    if libgomp is None or target is not None:
        from op_builder.errors import ToolchainError

        raise ToolchainError(
            f"'{op}' is compiled with -fopenmp. With ziglang it needs the libgomp of torch, which "
            + (f"is not in {sys.prefix}." if target is None else f"is not at hand for {target.name}."),
            "Remove -fopenmp (torch_c/parallel.h has loops on torch's threads), or compile with g++ there.",
        )
    return libgomp


def torch_libgomp() -> str | None:
    """The file of the OpenMP runtime that torch opens, if it is libgomp."""
    torch = _directory_of("torch")
    places = [Path(torch, "lib")] if torch is not None else []
    places.append(Path(sys.prefix, "lib"))  # conda
    return next((str(file) for place in places for file in sorted(place.glob("libgomp*.so*"))), None)


def _directory_of(package: str) -> str | None:
    found = importlib.util.find_spec(package)
    return found.submodule_search_locations[0] if found is not None and found.submodule_search_locations else None
