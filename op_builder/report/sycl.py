"""The report's SYCL section: toolchains, runtime, kernel compiler and devices, with reasons and remedies."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from op_builder.cache.store import Cache
from op_builder.system.outcomes import Passed
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.sycl import candidates, choose, gather_facts
from op_builder.toolchains.sycl_devices import DevicesAnswer, SyclDevice, opencl_devices
from op_builder.toolchains.sycl_runtime import INSTALL_REMEDY, REINSTALL_REMEDY, SyclRuntime


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
            **found._asdict(),
        }
        for found in candidates(facts)
    ]
    answer = _devices(facts.runtime, cache)
    return {
        "toolchains": toolchains,
        "runtime": _runtime(facts.runtime),
        "kernel_compiler": _kernel_compiler(facts.runtime, answer),
        "devices": [asdict(device) for device in answer.devices],
    }


def _runtime(runtime: SyclRuntime | None) -> dict[str, Any]:
    if runtime is None:
        return {"error": "no SYCL runtime with its headers is installed.", "remedy": INSTALL_REMEDY}
    return {"version": runtime.version, "prefix": str(runtime.prefix), "library": runtime.soname}


def _kernel_compiler(runtime: SyclRuntime | None, answer: DevicesAnswer) -> dict[str, Any]:
    """The library that compiles kernels at run time and the devices, or the reason and the remedy."""
    if runtime is None:
        return _runtime(runtime)
    if runtime.kernel_compiler is None:
        return {"error": f"libsycl-jit.so is not in {runtime.library_dir}.", "remedy": INSTALL_REMEDY}
    if answer.compiler_failure:
        why = f"{runtime.kernel_compiler} cannot be opened: {answer.compiler_failure}."
        return {"error": why, "remedy": REINSTALL_REMEDY}
    fitting = [device.name for device in answer.devices if device.takes_kernels]
    if not fitting:
        why = answer.failure or "no device accepts kernels that are compiled at run time."
        return {"error": why, "remedy": INSTALL_REMEDY}
    return {"library": str(runtime.kernel_compiler), "devices": fitting}


def _devices(runtime: SyclRuntime | None, cache: Cache) -> DevicesAnswer:
    answer = opencl_devices(runtime, cache.memo) if runtime is not None else DevicesAnswer(())
    return replace(answer, devices=(*_of_torch(), *answer.devices))


def _of_torch() -> list[SyclDevice]:
    """torch's XPU devices. This project has never run it on such hardware."""
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
