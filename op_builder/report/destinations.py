"""The machine that an extension is judged for."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from op_builder.cache.key import cpu_digest
from op_builder.cache.machine import cxx_library_versions, numbers
from op_builder.errors import ToolchainError
from op_builder.report.requirements import Machine
from op_builder.system.cpu_isa import architecture_flag
from op_builder.system.elf import Elf, read_library, search_places
from op_builder.system.process import run

_DEFAULT_DIRECTORIES = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")


def this_machine(origin: Path) -> Machine:
    """This machine, for a file in the directory ``origin``. Nothing of torch is imported."""
    spec = importlib.util.find_spec("torch")
    directory = Path(((spec and spec.submodule_search_locations) or ["/nonexistent"])[0]) / "lib"
    files = sorted(directory.glob("lib*.so*"))
    nvrtc = directory.parent.parent.glob("nvidia/*/lib/libnvrtc.so.*")  # torch opens it when it is imported
    cached = _linker_cache()
    try:
        torch = version("torch")
    except PackageNotFoundError:  # a source tree on PYTHONPATH
        torch = "of unknown version"

    @functools.cache
    def own() -> list[Elf]:
        return [read_library(path) for path in files if path.name.startswith(("libc10", "libtorch"))]

    def missing(names: Iterable[str]) -> list[str]:
        here = (name for name in sorted(names) if not _in_process(name))
        return [name for name in here if not any(name in library.defined for library in own())]

    # The directories of the system's own libraries, which the loader searches at last, also without its cache.
    defaults = [*{os.path.dirname(path) for path in cached.get("libc.so.6", ())}, *_DEFAULT_DIRECTORIES]

    @functools.cache
    def programs_rpath() -> list[str]:
        program = os.path.realpath("/proc/self/exe")
        with contextlib.suppress(OSError, ValueError):
            return search_places(read_library(Path(program))._replace(runpath=()), os.path.dirname(program))
        return []

    def library_rejected(name: str, elf: Elf, versions: frozenset[str]) -> str:
        if name == sysconfig.get_config_var("INSTSONAME"):  # a shared libpython is open already
            return ""
        # Without RUNPATH, also that of the program counts.
        elf = elf if elf.runpath else elf._replace(rpath=(*elf.rpath, *programs_rpath()))
        paths = [Path(place, name) for place in search_places(elf, str(origin))]
        paths += [*map(Path, cached.get(name, ())), *(Path(place, name) for place in defaults)]
        if "/" in name:  # it was linked by its path, which counts from the current directory
            paths = [Path(name)]
        found = next((path for path in paths if path.exists() and not _is_for_another_machine(path)), None)
        if found is None:
            return "not found"
        provided = frozenset[str]()
        with contextlib.suppress(OSError, ValueError):
            provided = read_library(found).provides
        lacking = sorted(versions - provided) if provided else []  # the loader accepts a library without any version
        return f"{found} has no version {lacking[0]}" if lacking else ""

    @functools.cache
    def c_library() -> bytes:
        return b"".join(Path(path).read_bytes() for path in cached.get("libc.so.6", ())[:1])

    level = re.search(r"x86-64-v(\d)", architecture_flag())
    threaded = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return Machine(
        torch=torch if files else "",
        torch_libraries=frozenset(path.name for path in (*files, *nvrtc)),
        torch_needs=lambda: frozenset(name for library in own() for name in library.needed),
        python=f"{sys.version_info[0]}.{sys.version_info[1]}{threaded}",
        glibc=numbers(platform.libc_ver()[1]) if platform.libc_ver()[0] == "glibc" else (),
        has_feature=lambda name: f"\0{name}\0".encode() in c_library(),
        cxx=cxx_library_versions(),
        machine=platform.machine(),
        level=int(level[1]) if level else 1,
        cpu=cpu_digest(),
        missing=missing,
        library_rejected=library_rejected,
    )


def _is_for_another_machine(path: Path) -> bool:
    """Whether the loader ignores a library, and looks for the next one, because of its architecture."""
    try:
        return read_library(path).machine != platform.machine()
    except (OSError, ValueError):
        return False


def _in_process(name: str) -> bool:
    """Whether Python, the C library or libstdc++ defines a symbol."""
    return any(hasattr(library, name) for library in _own_libraries())


@functools.cache
def _own_libraries() -> list[ctypes.CDLL]:
    libraries: list[ctypes.CDLL] = [ctypes.pythonapi]
    with contextlib.suppress(OSError):
        libraries.append(ctypes.CDLL("libstdc++.so.6"))
    return libraries


def _linker_cache() -> dict[str, list[str]]:
    try:
        listed = run(["/sbin/ldconfig", "-p"]).output
    except ToolchainError:  # musl has none
        listed = ""
    found: dict[str, list[str]] = {}
    for name, path in re.findall(r"^\s+(\S+) \(.*=> (.+)$", listed, re.MULTILINE):
        found.setdefault(name, []).append(path)
    return found
