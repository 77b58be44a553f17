"""Find and open the SYCL runtime that this process uses.

A process has one ``libsycl``. An XPU build of torch has opened its own before an op is loaded; otherwise it is that of
the PyPI wheel ``intel-sycl-rt``, opened by its path before the op's binary, which names it without one.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from op_builder import env
from op_builder.errors import LoadError
from op_builder.system.torch_install import torch_install

INSTALL_REMEDY = "Install the SYCL runtime: `pip install intel-sycl-rt intel-opencl-rt`."

REINSTALL_REMEDY = "Reinstall the SYCL runtime: `pip install --force-reinstall intel-sycl-rt`."

# The header with a runtime's version.
_VERSION_HEADER = Path("include", "sycl", "version.hpp")
_NUMBER = re.compile(r"#define __(SYCL_COMPILER|LIBSYCL_MAJOR|LIBSYCL_MINOR|LIBSYCL_PATCH)_VERSION (\d+)")
# The path is a map's sixth field, and may hold blanks.
_MAPPED = re.compile(r"^(?:\S+\s+){5}(/.*/libsycl(?:-preview)?\.so(?:\.\d+)*)(?: \(deleted\))?$")
_MAJOR = re.compile(r"\.so\.(\d+)")

_COMPLETE_SINCE = 9


@dataclass(frozen=True)
class SyclRuntime:
    """A SYCL runtime with its headers.

    Attributes:
        prefix: the directory with its ``include/`` and ``lib/``.
        version: of its library, and the date of its compiler: ``9.0.0 (20260930)``.
        major: of its library, which its file name and every binary linked with it end in.
        kernel_compiler: the library that compiles kernels at run time, None where it is missing.
        opencl_cpu: the OpenCL driver of the CPU in the same directory, None where it is missing.
    """

    prefix: Path
    version: str
    major: int
    kernel_compiler: Path | None
    opencl_cpu: Path | None

    @property
    def include_dir(self) -> Path:
        return self.prefix / "include"

    @property
    def library_dir(self) -> Path:
        return self.prefix / "lib"

    @property
    def soname(self) -> str:
        return f"libsycl.so.{self.major}"

    @property
    def library(self) -> Path:
        return self.library_dir / self.soname

    @property
    def kernel_options(self) -> tuple[str, ...]:
        """Flags that its kernel compiler needs."""
        # PyPI's wheels of release 2025 lack the device libraries that its compiler links kernels with.
        has_device_libraries = self.major >= _COMPLETE_SINCE or (self.library_dir / "libsycl-crt.bc").exists()
        return () if has_device_libraries else ("-fno-sycl-device-lib=all",)

    @property
    def header_dirs(self) -> list[Path]:
        """The directories of its headers; other files in ``include/`` of a prefix belong to other packages."""
        return [self.include_dir / name for name in ("sycl", "CL", "std", "ur_api", "unified-runtime", "xpti", "umf")]


def find_runtime() -> SyclRuntime | None:
    """The runtime of this environment; with an XPU build of torch, the one that torch requires."""
    of_torch = _prefixes(torch_install().root.parent)
    if torch_install().xpu is not None:
        # A torch that was compiled from source uses the compiler's runtime, and no wheels.
        icpx = shutil.which("icpx")
        return _first([*of_torch, *([_prefix_of(icpx)] if icpx is not None else [])])
    return _first(wheel_prefixes())


def wheel_prefixes() -> list[Path]:
    """The prefixes where Intel's wheels put their libraries and headers, best first."""
    # An environment may be laid over others, whose packages it sees.
    seen = [prefix for path in sys.path if path.endswith("-packages") for prefix in _prefixes(Path(path))]
    of_torch = _prefixes(torch_install().root.parent)
    return list(dict.fromkeys([Path(sysconfig.get_path("data")), *of_torch, Path(site.getuserbase()), *seen]))


def find_ahead_runtime(icpx: str) -> SyclRuntime | None:
    """The runtime of what ``icpx`` compiles: that of its own installation, where torch looks first, too."""
    return runtime_in(_prefix_of(icpx)) or find_runtime()


def _prefix_of(program: str) -> Path:
    return Path(os.path.realpath(program)).parent.parent


def _prefixes(packages: Path) -> list[Path]:
    """The prefix where wheels put their libraries, by the directory of their packages; none for a source tree."""
    # <prefix>/lib/python3.x/site-packages, of Debian dist-packages
    return [packages.parents[2]] if packages.name.endswith("-packages") and len(packages.parents) > 2 else []


def _first(prefixes: Iterable[Path]) -> SyclRuntime | None:
    return next((found for found in map(runtime_in, dict.fromkeys(prefixes)) if found is not None), None)


def runtime_in(prefix: Path) -> SyclRuntime | None:
    """The runtime of a prefix, None where headers or library are missing."""
    try:
        status = os.stat(prefix / _VERSION_HEADER)
    except OSError:
        return None
    return _read(prefix, status.st_mtime_ns)


@lru_cache(maxsize=16)
def _read(prefix: Path, _changed_ns: int) -> SyclRuntime | None:
    text = (prefix / _VERSION_HEADER).read_text(encoding="utf-8", errors="replace")
    numbers = {name: int(value) for name, value in _NUMBER.findall(text)}
    if len(numbers) != len(("compiler", "major", "minor", "patch")):
        return None
    version = ".".join(str(numbers[f"LIBSYCL_{part}"]) for part in ("MAJOR", "MINOR", "PATCH"))
    runtime = SyclRuntime(
        prefix,
        f"{version} ({numbers['SYCL_COMPILER']})",
        numbers["LIBSYCL_MAJOR"],
        _file(prefix / "lib" / "libsycl-jit.so"),
        _file(prefix / "lib" / "libintelocl.so"),
    )
    return runtime if runtime.library.exists() else None


def _file(path: Path) -> Path | None:
    return path if path.exists() else None


def runtime_variables(runtime: SyclRuntime | None, kernels: Path | None) -> dict[str, str]:
    """The values of the variables that the runtime reads; those that the user has set are kept.

    Values that :func:`open_runtime` has set, here or in a parent process, do not count as the user's.

    Args:
        runtime: the one that accel-ops opens; None if torch has opened its own.
        kernels: the directory for kernels that it compiles; None to keep none.
    """
    wanted = {env.SYCL_CACHE_PERSISTENT: "0"}
    if kernels is not None:
        wanted = {env.SYCL_CACHE_PERSISTENT: "1", env.SYCL_CACHE_DIR: str(kernels)}
    if runtime is not None and runtime.opencl_cpu is not None:
        # The wheel's own registration of its driver names a path of the machine that built it.
        wanted[env.OCL_ICD_FILENAMES] = str(runtime.opencl_cpu)
    ours = _set_by_us()
    return {
        variable.name: value for variable, value in wanted.items() if variable.raw() in (None, ours.get(variable.name))
    }


def _set_by_us() -> dict[str, str]:
    """What :func:`open_runtime` has set, by the variables' names; a child process inherits it with them."""
    try:
        variables = json.loads(env.ACCEL_SET_FOR_SYCL.raw() or "{}")
    except ValueError:
        return {}
    return variables if isinstance(variables, dict) else {}


def open_runtime(kernels: Path | None, soname: str) -> None:
    """Open the libsycl that a binary needs by its path, unless it is open; a process has at most one.

    Args:
        kernels: the directory for kernels that the runtime compiles; None to keep none.
        soname: the name the binary has for it, ``libsycl.so.9``.

    Raises:
        LoadError: there is no runtime, it is of another version, or the process has another one open.
    """
    opened = [Path(name) for name in opened_runtimes()]
    other = [path for path in opened if _major(path.name) != _major(soname)]
    if other:
        raise LoadError(
            f"The op was built for {soname}, and this process has {other[0]} open; a process can have only one.",
            "Build the op again in this environment: the cache keeps both builds.",
        )
    is_ours = torch_install().xpu is None
    runtime = find_runtime()
    if not opened:
        if runtime is None:
            raise LoadError(f"The op needs the SYCL runtime {soname}, and none is installed.", INSTALL_REMEDY)
        if runtime.soname != soname:
            raise LoadError(
                f"The op was built for {soname}; the SYCL runtime here is {runtime.version}, {runtime.library}.",
                "Build the op again with this runtime, or install the release that it was built with.",
            )
    variables = runtime_variables(runtime if is_ours else None, kernels)
    env.set_for_libraries({**variables, env.ACCEL_SET_FOR_SYCL.name: json.dumps({**_set_by_us(), **variables})})
    if not opened and runtime is not None:
        import ctypes

        try:
            ctypes.CDLL(str(runtime.library))
        except OSError as error:
            raise LoadError(f"The SYCL runtime {runtime.library} cannot be opened: {error}.", INSTALL_REMEDY) from error


def import_ipex() -> None:
    """Have intel_extension_for_pytorch open the runtime that it was built with, before an op that was built for it.

    Raises:
        LoadError: it cannot be imported.
    """
    try:
        importlib.import_module("intel_extension_for_pytorch")
    except Exception as error:  # a missing driver may raise anything
        raise LoadError(
            f"The op was built for intel_extension_for_pytorch, which cannot be imported: {error}.",
            "Install it: `pip install intel-extension-for-pytorch`, or set ACCEL_SYCL_TOOLCHAIN to another.",
        ) from error


def opened_runtimes() -> list[str]:
    """The files of every libsycl that this process has open."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return matching_libraries(maps)
    except OSError:
        return []


def matching_libraries(lines: Iterable[str]) -> list[str]:
    """The libsycl files that a process's memory map names."""
    found = (_MAPPED.match(line.rstrip("\n")) for line in lines)
    return list(dict.fromkeys(match[1] for match in found if match))


def _major(name: str) -> int | None:
    """The major release in a library's name: 9 in libsycl.so.9.0.0; None for the preview of another ABI."""
    match = _MAJOR.search(name)
    return int(match[1]) if match is not None and "-preview" not in name else None
