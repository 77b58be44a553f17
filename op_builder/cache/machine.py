"""Whether a binary that may come from another machine runs on this one."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from op_builder.cache.key import cpu_digest, platform_name
from op_builder.errors import AccelError
from op_builder.plan import SYCL_LIBRARY
from op_builder.system.outcomes import Rejection
from op_builder.system.torch_install import parse_release, torch_install

if TYPE_CHECKING:
    from op_builder.cache.manifest import Manifest
    from op_builder.toolchains.sycl_runtime import SyclRuntime


class ThisMachine:
    """What a binary must fit here. Each fact is found when it is asked for."""

    @property
    def platform(self) -> str:
        return platform_name()

    @property
    def cpu(self) -> str:
        return cpu_digest()

    @property
    def glibc(self) -> str:
        """Empty for another C library."""
        try:
            return (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2]
        except (AttributeError, OSError, ValueError):
            return ""

    @property
    def torch_release(self) -> tuple[int, int]:
        return torch_install().release

    @property
    def torch_version(self) -> str:
        return torch_install().version

    @property
    def python_abi(self) -> str:
        import sysconfig

        return str(sysconfig.get_config_var("EXT_SUFFIX"))

    @property
    def cuda_capabilities(self) -> list[tuple[int, int]]:
        """Of the visible devices."""
        if torch_install().cuda is None:
            return []
        import torch

        return [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]

    @property
    def sycl(self) -> SyclRuntime | None:
        from op_builder.toolchains.sycl_runtime import find_runtime

        return find_runtime()

    @property
    def tvm_ffi(self) -> str:
        from op_builder.toolchains.tvm_ffi import tvm_ffi_library

        try:
            return tvm_ffi_library().version
        except AccelError:
            return ""

    @property
    def cxx_library(self) -> frozenset[str]:
        """Empty, because opening a binary finds out faster."""
        return frozenset()


class ExaminedMachine(ThisMachine):
    """For a binary that is not opened now: its C++ library is examined, too."""

    @property
    def cxx_library(self) -> frozenset[str]:
        return cxx_library_versions()


@lru_cache(maxsize=1)
def cxx_library_versions() -> frozenset[str]:
    """The symbol versions in the libstdc++ of this process; empty if unknown."""
    import ctypes
    import re

    try:
        ctypes.CDLL("libstdc++.so.6")
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        path = next(line.split(maxsplit=5)[5] for line in mapped if "/libstdc++.so" in line)
        found = re.findall(rb"(?:GLIBCXX|CXXABI)_[0-9.]+", Path(path).read_bytes())
    except (OSError, StopIteration):
        return frozenset()
    return frozenset(name.decode() for name in found)


def machine_rejection(manifest: Manifest, machine: ThisMachine) -> Rejection | None:
    """Why a binary does not run on ``machine``; None if it does."""
    return next((found for check in _MACHINE_CHECKS if (found := check(manifest, machine)) is not None), None)


def _other_platform(manifest: Manifest, machine: ThisMachine) -> Rejection | None:
    built_for = manifest.key_parts.get("platform")
    if built_for != machine.platform:
        return Rejection(f"It was built for {built_for}, this is {machine.platform}.")
    cpu = manifest.key_parts.get("cpu")
    if cpu is not None and cpu != machine.cpu:
        return Rejection("It was compiled for another machine's CPU (-march=native).")
    needed = manifest.needs.get("GLIBC")
    if needed and machine.glibc and numbers(machine.glibc) < numbers(needed):
        return Rejection(f"It needs glibc {needed}, this is {machine.glibc}.")
    return None


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _other_torch(manifest: Manifest, machine: ThisMachine) -> Rejection | None:
    if not manifest.torch:
        return None
    if manifest.fits_any_python:
        if machine.torch_release < manifest.least_torch:
            return Rejection(f"It needs torch {manifest.torch_needed}, this is {machine.torch_version}.")
        return None
    if parse_release(manifest.torch) != machine.torch_release:
        return Rejection(f"It was built with torch {manifest.torch}, this is {machine.torch_version}.")
    return None


def _other_python(manifest: Manifest, machine: ThisMachine) -> Rejection | None:
    python_abi = manifest.key_parts.get("python abi")
    if python_abi is not None and python_abi != machine.python_abi:
        return Rejection(f"It was built for Python ABI {python_abi}, this is {machine.python_abi}.")
    return None


def _other_devices(manifest: Manifest, machine: ThisMachine) -> Rejection | None:
    archs = manifest.cuda_archs
    if not archs:
        return None
    from op_builder.toolchains.cuda_archs import serves

    for index, capability in enumerate(machine.cuda_capabilities):
        if not serves(archs, capability):
            found = ".".join(map(str, capability))
            return Rejection(f"It was built for CUDA architectures {';'.join(archs)}, device {index} is {found}.")
    return None


def _other_sycl(manifest: Manifest, machine: ThisMachine) -> Rejection | None:
    needed = manifest.needs.get(SYCL_LIBRARY)
    if needed is None:
        return None
    runtime = machine.sycl
    if runtime is None:
        remedy = "Install the SYCL runtime: `pip install intel-sycl-rt intel-opencl-rt`."
        return Rejection(f"It needs {SYCL_LIBRARY}.{needed}, and no SYCL runtime is installed.", remedy)
    if str(runtime.major) != needed:
        return Rejection(f"It needs {SYCL_LIBRARY}.{needed}, the installed SYCL runtime is {runtime.version}.")
    return None


def _other_tvm_ffi(manifest: Manifest, machine: ThisMachine) -> Rejection | None:
    built_with = manifest.key_parts.get("library tvm_ffi")
    if built_with is None or built_with == machine.tvm_ffi:
        return None
    if not machine.tvm_ffi:
        remedy = f"Install it: `pip install apache-tvm-ffi=={built_with}`."
        return Rejection(f"It needs apache-tvm-ffi {built_with}, which cannot be imported.", remedy)
    return Rejection(f"It was built with apache-tvm-ffi {built_with}, this is {machine.tvm_ffi}.")


def _older_cxx_library(manifest: Manifest, machine: ThisMachine) -> Rejection | None:
    families = ("GLIBCXX", "CXXABI") if machine.cxx_library else ()
    needed = {f"{family}_{manifest.needs[family]}" for family in families if family in manifest.needs}
    lacking = " and ".join(sorted(needed - machine.cxx_library))
    return Rejection(f"It needs {lacking}, which the installed C++ library lacks.") if lacking else None


_MACHINE_CHECKS = (
    _other_platform,
    _other_torch,
    _other_python,
    _other_devices,
    _other_sycl,
    _other_tvm_ffi,
    _older_cxx_library,
)
