"""The nine built-in accelerators, as candidates."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from accelerator.detection import Candidate
from accelerator.vendors import import_vendor

SUPPORTED_ACCELERATOR_LIST = ["cuda", "cpu", "xpu", "xpu.external", "npu", "mps", "hpu", "mlu", "sdaa"]
"""The names of the built-in accelerators, as the override takes them."""


_EXTERNAL = "intel_extension_for_deepspeed"


def built_in_candidates() -> list[Candidate]:
    """The built-in accelerators in the order of detection. Nothing is imported before a candidate is asked."""
    return [
        Candidate(
            name="xpu.external",
            label="xpu.external",
            priority=1000,
            load=lambda: import_vendor(_EXTERNAL).XPU_Accelerator,
            probe="",
            requirement=f"XPU_Accelerator external requires {_EXTERNAL}",
        ),
        _built_in("xpu", 900, "xpu (IPEX)", probe="probe_ipex"),
        _built_in("xpu", 800, "xpu (torch)", reason_to_skip=_reason_to_skip_xpu),
        _built_in("npu", 700, vendor_package="torch_npu"),
        _built_in("sdaa", 600, vendor_package="torch_sdaa"),
        _built_in("mps", 500),
        _built_in("hpu", 400, vendor_package="habana_frameworks.torch.hpu"),
        _built_in("mlu", 300, vendor_package="torch_mlu"),
        _built_in("cuda", 200, without_device=True),
        _built_in("cpu", 0, without_device=True),
    ]


def _built_in(name: str, priority: int, label: str | None = None, **options: Any) -> Candidate:
    return Candidate(name, label or name, priority, partial(_device_class, name), **options)


def _device_class(name: str) -> Any:
    return getattr(importlib.import_module(f"accelerator.{name}_accelerator"), f"{name.upper()}_Accelerator")


def _reason_to_skip_xpu() -> str | None:
    """Torch's own XPU support gives way to CUDA: a torch with both is rarely meant for the Intel GPU."""
    try:
        return "there is a CUDA device" if _device_class("cuda").probe() is None else None
    except Exception:  # a broken CUDA is no CUDA device; its own candidate has the reason
        return None
