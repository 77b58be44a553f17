"""Free memory of a CUDA device from NVML, which needs no CUDA context and sees all processes.

The package ``pynvml`` (distribution ``nvidia-ml-py``) is optional. NVML counts all devices of the
machine in the order of the PCI bus, CUDA those that ``CUDA_VISIBLE_DEVICES`` leaves, the fastest first
unless ``CUDA_DEVICE_ORDER`` says otherwise, so an index has to be translated.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from accelerator.vendors import import_vendor


def visible_device(visible: str | None, index: int) -> int | str:
    """What ``CUDA_VISIBLE_DEVICES`` holds for the device that CUDA calls ``index``.

    Args:
        visible: the variable's value: None (all devices), or a list of device numbers, UUIDs
            (``GPU-...``, ``MIG-...``) and beginnings of UUIDs.

    Returns:
        NVML's index, or a UUID or the beginning of one.

    Raises:
        IndexError: the variable leaves fewer devices than that, or ``index`` is negative.
    """
    if index < 0:
        raise IndexError(index)
    if visible is None:
        return index
    # CUDA stops at the first entry that is no device.
    entries = takewhile(lambda entry: entry and not entry.startswith("-"), map(str.strip, visible.split(",")))
    entry = list(entries)[index]
    return int(entry) if entry.isdecimal() else entry


def free_memory_bytes(visible: str | None, order: str | None, index: int) -> int | None:
    """Free bytes of the device that CUDA calls ``index``, or None where NVML cannot tell.

    It cannot without ``pynvml`` or a driver, on ROCm, for the slice that CUDA picks by itself on a
    device in MIG mode, and by number where CUDA's order may be another.

    Args:
        visible: the value of ``CUDA_VISIBLE_DEVICES``, as for :func:`visible_device`.
        order: the value of ``CUDA_DEVICE_ORDER``.
    """
    try:
        nvml: Any = import_vendor("pynvml")
        nvml.nvmlInit()
        device = visible_device(visible, index)
        if isinstance(device, int) and order != "PCI_BUS_ID" and _models(nvml) > 1:
            return None
        handle = _handle(nvml, device)
        if not str(device).startswith("MIG-") and _in_mig_mode(nvml, handle):
            return None
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    except Exception:  # NVML's errors and a broken package alike: the caller has torch to ask
        return None


def _models(nvml: Any) -> int:
    """How many kinds of devices the machine has; those of one kind are equally fast, and in the order of the bus."""
    return len({nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(nvml.nvmlDeviceGetCount())})


def _handle(nvml: Any, device: int | str) -> Any:
    if isinstance(device, int):
        return nvml.nvmlDeviceGetHandleByIndex(device)
    if device.startswith("MIG-"):
        return nvml.nvmlDeviceGetHandleByUUID(device)
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        if (uuid.decode() if isinstance(uuid, bytes) else uuid).startswith(device):
            return handle
    raise LookupError(device)


def _in_mig_mode(nvml: Any, handle: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except Exception:  # a device that knows no MIG says so with an error
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)
