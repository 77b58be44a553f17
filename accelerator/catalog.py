"""The nine built-in accelerators, as candidates in the order in which detection asks them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from accelerator.detection import Candidate

SUPPORTED_ACCELERATOR_LIST = ["cuda", "cpu", "xpu", "xpu.external", "npu", "mps", "hpu", "mlu", "sdaa"]
"""The names of the built-in accelerators, as the override takes them."""


def built_in_candidates() -> list[Candidate]:
    """The built-in accelerators, first to last. Nothing is imported before a candidate is asked."""
    return [
        _xpu_external(1000),
        _declared("xpu", 900, label="xpu (IPEX)", question="probe_ipex"),
        _declared("xpu", 800, label="xpu (torch)", objection=_cuda_is_here),
        _declared("npu", 700),
        _declared("sdaa", 600),
        _declared("mps", 500),
        _declared("hpu", 400),
        _declared("mlu", 300),
        _declared("cuda", 200, without_device=True),
        _declared("cpu", 0, without_device=True),
    ]


def declared_package(name: str) -> str | None:
    """The package of a built-in accelerator's op builders, from its class alone; None where another package has it."""
    return None if name == "xpu.external" else str(_device_class(name).builder_package)


def _device_module(name: str) -> Any:
    return importlib.import_module(f"accelerator.{name}_accelerator")


def _device_class(name: str) -> Any:
    return getattr(_device_module(name), f"{name.upper()}_Accelerator")


def _declared(
    name: str,
    priority: int,
    *,
    label: str | None = None,
    question: str = "probe",
    objection: Callable[[], str | None] | None = None,
    without_device: bool = False,
) -> Candidate:
    """The candidate for ``<NAME>_Accelerator`` of ``accelerator.<name>_accelerator``."""
    return Candidate(
        name=name,
        label=label or name,
        priority=priority,
        probe=lambda: getattr(_device_class(name), question)(),
        create=lambda: _device_class(name)(),
        needs=lambda reason: _device_class(name).missing_message(reason),
        objection=objection,
        without_device=without_device,
    )


def _cuda_is_here() -> str | None:
    """Torch's own XPU support gives way to CUDA: a torch with both is rarely meant for the Intel GPU."""
    try:
        return "there is a CUDA device" if _device_class("cuda").probe() is None else None
    except Exception:  # a broken CUDA is no CUDA device; its own candidate has the reason
        return None


def _xpu_external(priority: int) -> Candidate:
    def create() -> Any:
        return _device_module("xpu").external_class()()

    def needs(reason: str) -> str:
        return str(_device_module("xpu").external_message(reason))

    def probe() -> str | None:
        return None if create().is_available() else "its XPU_Accelerator says that no device is available"

    return Candidate("xpu.external", "xpu.external", priority, probe, create, needs)
