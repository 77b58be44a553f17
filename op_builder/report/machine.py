"""The parts of this machine that ops depend on, as data for the report; a missing part is an ``error``."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from op_builder import env
from op_builder._version import __version__
from op_builder.cache.eviction import size_bytes
from op_builder.cache.failures import cache_error
from op_builder.cache.store import Cache
from op_builder.engine.ninja import find_ninja
from op_builder.errors import AccelError, CacheError, IncompatibleOpError
from op_builder.load.load import load
from op_builder.load.lookup import without_compiling
from op_builder.system.cpu_isa import chosen_isa, cpu_model, supported_isas
from op_builder.system.foreign_packages import foreign_packages
from op_builder.system.outcomes import Passed, facts_of
from op_builder.system.records import Memo
from op_builder.system.storage_engines import ENGINES
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.cuda import find_cuda
from op_builder.toolchains.sycl import candidates, choose, device_check, gather_facts, kernel_compiler_check
from op_builder.toolchains.sycl_devices import SyclDevice, opencl_devices
from op_builder.toolchains.sycl_runtime import INSTALL_REMEDY
from op_builder.toolchains.toolset import find_cxx


def environment() -> dict[str, Any]:
    """The parts of the machine that ops depend on; a missing part is an ``error`` with a ``remedy``."""
    return {
        "accel_ops": __version__,
        "python": {"version": platform.python_version(), "executable": sys.executable, "platform": platform.platform()},
        "torch": _or_error(_torch),
        "foreign_packages": _foreign_packages(),
        "toolchains": _toolchains(),
        "sycl": _or_error(lambda: sycl_facts(Cache(is_ours=False))),
        "cpu": _or_error(_cpu),
        "shared_memory": _shared_memory(),
        "storage_engines": _or_error(_storage_engines),
        "cache": _or_error(_cache),
        "misspelled_variables": _misspelled_variables(),
        "variables": {variable.name: variable.raw() for variable in env.VARIABLES if variable.raw() is not None},
    }


def parts() -> dict[str, dict[str, Any]]:
    """What ``accel-ops doctor`` checks of the machine, by name; quicker than :func:`environment`."""
    return {
        **_foreign_packages(),
        **_misspelled_variables(),
        "torch": _or_error(_torch),
        **_toolchains(),
        "cpu": _or_error(_cpu),
    }


def _foreign_packages() -> dict[str, dict[str, Any]]:
    def find() -> dict[str, Any]:
        return {f"package {each.name}": {"error": each.reason, "remedy": each.remedy} for each in foreign_packages()}

    found = _or_error(find)
    return {"packages": found} if "error" in found else found


def _misspelled_variables() -> dict[str, dict[str, Any]]:
    reason = "This variable is set, and nothing reads it."
    return {name: {"error": reason, "remedy": suggestion} for name, suggestion in env.misspelled().items()}


def _toolchains() -> dict[str, Any]:
    ninja = _or_error(lambda: {"path": find_ninja()})
    return {"c++": _or_error(_compiler), "cuda": _or_error(_cuda), "ninja": ninja}


def _or_error(find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return find()
    except AccelError as error:
        return {"error": error.message, "remedy": error.remedy}
    except Exception as error:  # an unexpected error must not lose the rest of the report
        return {"error": f"{type(error).__name__}: {error}", "remedy": "Report this to the authors of accel-ops."}


def _memo() -> Memo:
    """The memo of the cache directory; without one, nothing is remembered."""
    try:
        return Cache(is_ours=False).memo
    except CacheError:
        return Memo()


def _torch() -> dict[str, Any]:
    facts = torch_install()._asdict()
    del facts["release"]
    return {"path": str(facts.pop("root")), **facts}


def _cache() -> dict[str, Any]:
    cache = Cache(is_ours=False)
    return {
        "directory": str(cache.root),
        "writable": not cache_error(cache.root),
        "entries": len(cache.entries()),
        "size_bytes": size_bytes(cache.root),
    }


def _compiler() -> dict[str, Any]:
    compiler = find_cxx(_memo())
    return {"path": compiler.path, "version": compiler.version, "target": compiler.target}


def _cuda() -> dict[str, Any]:
    toolkit = find_cuda(_memo())
    return {"path": toolkit.nvcc, "version": toolkit.release, "home": str(toolkit.home)}


def _cpu() -> dict[str, Any]:
    return {
        "model": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "isa": chosen_isa(),
        "isas_supported": list(supported_isas()),
    }


def _storage_engines() -> dict[str, Any]:
    from op_builder.ops.io.async_io import OP as async_io  # imports torch

    forced = env.ACCEL_AIO_ENGINE.get()
    try:
        with without_compiling():
            rejected = load(async_io.spec_for("cpu"), Cache(is_ours=False)).rejected_engines()
    except IncompatibleOpError:
        return {"error": "Not checked: async_io is not built.", "remedy": "Run `accel-ops build async_io`."}
    usable = (name for name in ENGINES if name not in rejected and forced in (None, name))
    return {"in_use": next(usable, None), "forced": forced, "rejected": rejected}


def _shared_memory() -> dict[str, Any]:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        return {"error": f"/dev/shm is not accessible: {error.strerror}.", "remedy": "Mount a tmpfs at /dev/shm."}
    return {"path": "/dev/shm", "size_bytes": usage.total, "free_bytes": usage.free}


def sycl_facts(cache: Cache) -> dict[str, Any]:
    """``toolchains``, ``runtime``, ``kernel_compiler`` and ``devices``, for an op with kernel files.

    Raises:
        AccelError: ACCEL_SYCL_TOOLCHAIN is not the name of a toolchain, or torch cannot be imported.
    """
    facts = gather_facts(has_kernel_texts=True)
    chosen = choose(facts)
    toolchains = [
        {
            "accepted": isinstance(found, Passed),
            "chosen": found == chosen and isinstance(found, Passed),
            "detail": "",
            "reason": "",
            "remedy": "",
            **facts_of(found),
        }
        for found in candidates(facts)
    ]
    runtime, devices = facts.runtime, _xpu_devices()
    described: dict[str, Any] = {"error": "No SYCL runtime with its headers is installed.", "remedy": INSTALL_REMEDY}
    if runtime is not None:
        devices += opencl_devices(runtime, cache.memo).devices
        described = {"version": runtime.version, "prefix": str(runtime.prefix), "library": runtime.soname}
    try:
        kernel_compiler_check(cache.memo)
        device_check(cache.memo)
    except AccelError as error:
        compiler: dict[str, Any] = {"error": error.message, "remedy": error.remedy}
    else:
        fitting = [device.name for device in devices if device.takes_kernels]
        compiler = {"library": str(runtime and runtime.kernel_compiler), "devices": fitting}
    return {
        "toolchains": toolchains,
        "runtime": described,
        "kernel_compiler": compiler,
        "devices": [asdict(device) for device in devices],
    }


def _xpu_devices() -> list[SyclDevice]:
    """The devices that torch lists. Never run on such hardware by this project."""
    if torch_install().xpu is None:
        return []
    import torch

    found = (torch.xpu.get_device_properties(index) for index in range(torch.xpu.device_count()))
    return [
        SyclDevice(
            platform=str(device.platform_name),
            name=str(device.name),
            driver=str(device.driver_version),
            kind="gpu",
            fp16=bool(device.has_fp16),
            fp64=bool(device.has_fp64),
            takes_kernels=True,
        )
        for device in found
    ]
