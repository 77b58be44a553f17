"""What an accelerator says about itself, for reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accelerator.errors import describe
from op_builder import env as environment

if TYPE_CHECKING:
    from accelerator.abstract_accelerator import DeepSpeedAccelerator

Fact = str | int | bool | list[str] | dict[str, str | None] | None

_NEEDS_DEVICE = {"hardware", "current_device", "total_memory_bytes", "available_memory_bytes", "memory_allocated_bytes"}


def accelerator_facts(accelerator: DeepSpeedAccelerator) -> dict[str, Fact]:
    """The facts of one accelerator under stable keys, ready for JSON; sizes are bytes.

    A fact that cannot be had is left out and named, with the reason, under ``unavailable``: those
    of the device itself where there is none, and what raises.
    """
    getters: dict[str, Callable[[], Fact]] = {
        "class": lambda: f"{type(accelerator).__module__}.{type(accelerator).__qualname__}",
        "device_name": accelerator.device_name,
        "is_available": accelerator.is_available,
        "hardware": lambda: _record(accelerator.get_device_properties()),
        "device_count": accelerator.device_count,
        "current_device": accelerator.current_device_name,
        "communication_backend": accelerator.communication_backend_name,
        "compile_backend": accelerator.get_compile_backend,
        "dtypes": lambda: _dtypes(accelerator),
        "is_triton_supported": accelerator.is_triton_supported,
        "is_synchronized_device": accelerator.is_synchronized_device,
        "total_memory_bytes": accelerator.total_memory,
        "available_memory_bytes": accelerator.available_memory,
        "memory_allocated_bytes": accelerator.memory_allocated,
        "visible_devices": lambda: _values(accelerator.visible_devices_envs()),
        "export_envs": accelerator.export_envs,
        "op_builder_dir": accelerator.op_builder_dir,
        **getattr(accelerator, "extra_facts", dict)(),
    }
    facts: dict[str, Fact] = {}
    unavailable: dict[str, str | None] = {}
    for key, get in getters.items():
        if key in _NEEDS_DEVICE and not facts.get("is_available"):
            unavailable[key] = "there is no device"
            continue
        try:
            facts[key] = get()
        except Exception as error:  # a report must come out whatever the device does
            unavailable[key] = describe(error)
    return {**facts, "unavailable": unavailable}


def _record(properties: Any) -> str | None:
    """A device's name in its record, or the record where that is a text."""
    return None if properties is None else str(getattr(properties, "name", properties))


def _dtypes(accelerator: DeepSpeedAccelerator) -> list[str]:
    names = [str(dtype).removeprefix("torch.") for dtype in accelerator.supported_dtypes()]
    return [*names, "float8"] if accelerator.is_fp8_supported() else names


def _values(names: list[str]) -> dict[str, str | None]:
    variables = environment.child_environment()
    return {name: variables.get(name) for name in names}
