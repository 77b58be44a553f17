"""Free memory of a CUDA device from NVML, which needs no CUDA context and sees all processes.

The package ``pynvml`` (distribution ``nvidia-ml-py``) is optional. NVML numbers all devices in the order of the PCI
bus; CUDA numbers those in ``CUDA_VISIBLE_DEVICES``, the fastest first unless ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID``.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from accelerator.vendors import import_vendor


def listed_devices(text: str) -> list[str]:
    """The devices in the value of a variable such as ``CUDA_VISIBLE_DEVICES``, as CUDA and torch read it.

    They are numbers, of which text after the digits is ignored, or names with the first one's prefix, such as ``GPU-``.
    Any other entry, such as -1, ends the list. A repeated device empties it.
    """
    entries = [entry.strip() for entry in text.split(",")]
    prefix = re.match(r"([A-Za-z]+-)?", entries[0])
    pattern = re.compile(f"{prefix[0]}.*" if prefix and prefix[0] else r"\d+(\.\d+)*", re.ASCII)
    found = [match[0] for match in itertools.takewhile(bool, map(pattern.match, entries)) if match]
    return found if len(set(found)) == len(found) else []


def visible_device(visible: str | None, index: int) -> int | str:
    """The entry of ``CUDA_VISIBLE_DEVICES``, with this value, for CUDA's device ``index``.

    It is NVML's index, or a UUID (``GPU-...``, ``MIG-...``) or the beginning of one; IndexError without an entry.
    """
    if index < 0:
        raise IndexError(index)
    if visible is None:
        return index
    entry = listed_devices(visible)[index]
    return int(entry) if entry.isdecimal() else entry


def free_memory_bytes(visible: str | None, order: str | None, index: int) -> int | None:
    """Free bytes of CUDA's device ``index``, or None if NVML cannot report them.

    NVML cannot without ``pynvml`` or a driver, on ROCm, for a MIG slice that CUDA selects itself, and for a number
    if CUDA's order may differ.

    Args:
        visible, order: the values of ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER``.
    """
    try:
        nvml: Any = import_vendor("pynvml")
        nvml.nvmlInit()
        device = visible_device(visible, index)
        if isinstance(device, str) and device.startswith("MIG-"):
            handle = nvml.nvmlDeviceGetHandleByUUID(device)
        else:
            handles = [nvml.nvmlDeviceGetHandleByIndex(each) for each in range(nvml.nvmlDeviceGetCount())]
            if isinstance(device, str):
                handle = next(each for each in handles if nvml.nvmlDeviceGetUUID(each).startswith(device))
            elif order == "PCI_BUS_ID" or len({nvml.nvmlDeviceGetName(each) for each in handles}) == 1:
                handle = handles[device]  # devices of one kind are equally fast, so CUDA keeps the bus's order
            else:
                return None
            if _is_in_mig_mode(nvml, handle):
                return None
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    except (Exception, SystemExit):  # the caller then uses torch
        return None


def _is_in_mig_mode(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except Exception:  # a device without MIG
        return False
