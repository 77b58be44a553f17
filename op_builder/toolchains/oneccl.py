"""Find oneCCL, check that it can be compiled against and opened, and open it.

It is looked for in ``CCL_ROOT``, else where PyPI's wheels put it, else in the system. Its library needs others of the
same directory, which no search path has; they are opened by their paths, first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from op_builder import env
from op_builder.errors import LoadError, ToolchainError
from op_builder.plan import ForeignLibrary
from op_builder.system.interpreter import isolated_command, python
from op_builder.system.records import Memo
from op_builder.toolchains.sycl_runtime import open_runtime, wheel_prefixes
from op_builder.toolchains.toolset import find_cxx

_INSTALL = "pip install 'oneccl-devel==2022.1.2' 'impi-rt<2021.19'"
INSTALL_REMEDY = f"Install oneCCL: `{_INSTALL}`, or set CCL_ROOT to an installation."
_REINSTALL_REMEDY = f"Reinstall it: `{_INSTALL} --force-reinstall`, or set CCL_ROOT to another installation."
SYSTEM_PREFIXES = (Path("/opt/intel/oneapi/ccl/latest"), Path("/usr/local"), Path("/usr"))
_LIBRARY_DIRS = ("lib", "lib64", "lib/x86_64-linux-gnu")
_VERSION = re.compile(r"#define CCL_(MAJOR|MINOR|UPDATE)_VERSION\s+(\d+)")
_BUILD_DATE = re.compile(r'#define CCL_PRODUCT_BUILD_DATE\s+"([^"]*)"')
# The system loader's message about a missing dependency of a library.
_MISSING = re.compile(r"^(?P<name>[^/:]+): cannot open shared object file")
_SYCL = "libsycl.so"

_PROBE = """#include <oneapi/ccl.hpp>
unsigned probe() { ccl::init(); return ccl::get_library_version().major; }
"""
_OPEN_IN_CHILD = """
import sys
from pathlib import Path
from op_builder.toolchains.oneccl import open_oneccl
open_oneccl(Path(sys.argv[1]))
"""


@dataclass(frozen=True)
class OneCCL:
    """An installation of oneCCL.

    Attributes:
        prefix: the directory with its ``include/`` and ``lib/``.
        library: its file, ``libccl.so``.
        version: from its headers, with the date of its build; empty without headers.
    """

    prefix: Path
    library: Path
    version: str

    @property
    def include_dir(self) -> Path:
        return self.prefix / "include"

    @property
    def as_library(self) -> ForeignLibrary:
        """As a plan names it."""
        return ForeignLibrary("ccl", self.version, self.include_dir, self.library)


def find_oneccl() -> OneCCL | None:
    """The oneCCL of this machine: only that of ``CCL_ROOT`` if it is set, else the first one found."""
    named = env.CCL_ROOT.get()
    prefixes = [named] if named is not None else [*wheel_prefixes(), *SYSTEM_PREFIXES]
    return next((found for found in map(oneccl_in, prefixes) if found is not None), None)


def oneccl_in(prefix: Path) -> OneCCL | None:
    """The oneCCL of a prefix; None without its library."""
    candidates = (prefix / directory / "libccl.so" for directory in _LIBRARY_DIRS)
    # Path.exists() raises where a directory may not be read.
    library = next((path for path in candidates if os.path.exists(path)), None)
    if library is None:
        return None
    config = prefix / "include" / "oneapi" / "ccl" / "config.h"
    version = _version(config, config.stat().st_mtime_ns) if os.path.exists(config) else ""
    return OneCCL(prefix, library, version)


@lru_cache(maxsize=16)
def _version(config: Path, _changed_ns: int) -> str:
    text = config.read_text(encoding="utf-8", errors="replace")
    numbers = dict(_VERSION.findall(text))
    date = _BUILD_DATE.search(text)
    return ".".join([*(numbers.get(part, "0") for part in ("MAJOR", "MINOR", "UPDATE")), date[1] if date else "?"])


def require_oneccl() -> OneCCL:
    """:func:`find_oneccl`, and an error if it is missing.

    Raises:
        ToolchainError: oneCCL is missing.
    """
    if (found := find_oneccl()) is not None:
        return found
    named = env.CCL_ROOT.get()
    where = "no libccl.so is installed" if named is None else f"CCL_ROOT={named} has no readable lib/libccl.so"
    raise ToolchainError(f"oneCCL was not found: {where}.", INSTALL_REMEDY)


def build_check(memo: Memo) -> str:
    """The host compiler compiles a small program against oneCCL, and links it."""
    from op_builder.toolchains.probes import remembered_failure_of

    oneccl = require_oneccl()
    if not oneccl.version:
        raise ToolchainError(f"{oneccl.prefix} has oneCCL's library but no oneapi/ccl.hpp.", INSTALL_REMEDY)
    compiler = find_cxx(memo)
    places = ["-isystem", str(oneccl.include_dir), f"-L{oneccl.library.parent}"]
    flags = ["-std=c++17", "-fPIC", "-shared", "-Wl,--no-as-needed", *places]
    command = [*compiler.command, *flags, "probe.cpp", "-lccl", "-o", "probe.so"]
    subject, files = f"{compiler.identity} {oneccl.version} {command}", [compiler.path, str(oneccl.library)]
    failure = remembered_failure_of(command, {"probe.cpp": _PROBE}, subject, files, memo)
    if failure:
        reason = f"{compiler.command[0]} cannot compile against {oneccl.prefix}: {failure}"
        raise ToolchainError(reason, _REINSTALL_REMEDY)
    return f"oneCCL {oneccl.version} in {oneccl.prefix}"


def load_check(memo: Memo) -> str:
    """A process can open oneCCL, with all that it needs."""
    from op_builder.toolchains.probes import remembered_failure_of

    oneccl = require_oneccl()
    command = isolated_command(_OPEN_IN_CHILD, str(oneccl.library))
    failure = remembered_failure_of(
        command, {}, f"opens oneccl {python()} {oneccl.library}", [str(oneccl.library)], memo
    )
    if failure:
        raise LoadError(f"{oneccl.library} cannot be opened: {failure}", _REINSTALL_REMEDY)
    return str(oneccl.library)


def oneccl_variables(library: Path) -> dict[str, str]:
    """The values of the variables that oneCCL reads; those that the user has set are kept."""
    # The other transport, mpi, needs ranks that mpirun started; oneCCL warns of each variable that is set.
    wanted = {env.CCL_ATL_TRANSPORT: "ofi", env.CCL_LOG_LEVEL: "error"}
    fabric = library.parent / "libfabric.so.1"
    if fabric.exists():
        # As impi-rt's wheel has them; by default libfabric searches the directory of its own build.
        wanted[env.CCL_OFI_LIBRARY_PATH] = str(fabric)
        wanted[env.FI_PROVIDER_PATH] = str(library.parent)
    return {variable.name: value for variable, value in wanted.items() if variable.raw() is None}


def open_oneccl(library: Path, kernels: Callable[[], Path | None] = lambda: None) -> None:
    """Open oneCCL's library in this process, after the libraries that it needs and no search path has.

    Args:
        kernels: finds the directory for compiled kernels of a SYCL runtime that has to be opened.

    Raises:
        LoadError: it cannot be opened; the message names what is missing.
    """
    env.set_for_libraries(oneccl_variables(library))
    _open(library, kernels, set())


def _open(path: Path, kernels: Callable[[], Path | None], tried: set[str]) -> None:
    import ctypes

    while True:
        try:
            ctypes.CDLL(str(path))
            return
        except OSError as error:
            missing = _MISSING.match(str(error))
            name = missing["name"] if missing is not None else ""
            neighbour = path.parent / name
            is_sycl = name.startswith(_SYCL)
            if not name or name in tried or not (is_sycl or neighbour.exists()):
                raise LoadError(f"{path} cannot be opened: {error}.", INSTALL_REMEDY) from error
        tried.add(name)
        if is_sycl:  # one process, one libsycl
            open_runtime(kernels(), name)
        else:
            _open(neighbour, kernels, tried)
