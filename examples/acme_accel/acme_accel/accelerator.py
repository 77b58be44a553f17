"""The declaration of the accelerator: facts that the device module does not have."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch

from accelerator.torch_accelerator import TorchAccelerator


class AcmeAccelerator(TorchAccelerator):
    """Acme cards, through :mod:`acme_accel.device_module`."""

    device_type = "cpu"  # for this demonstration; use the name that your package registers with torch
    requirement = "the Acme driver"
    has_index = False  # "cpu:1" is not a second card
    communication_backend = "gloo"
    visible_devices_variables = ("ACME_VISIBLE_DEVICES",)
    exported_variables = ("ACME",)
    builder_package = "acme_accel.ops"
    synchronized = True  # work on the CPU is done when its call returns
    bf16_supported = True

    # Before CUDA's 200: a host with an Acme card may have a GPU for its screen.
    detection_priority = 250

    @classmethod
    def device_module(cls) -> ModuleType:
        # Remove this method if you have a vendor_package and a device_type: then torch.acme is found automatically.
        from acme_accel import device_module

        return device_module

    @classmethod
    def probe(cls) -> str | None:
        # Looks only at the driver's files, because every process calls it, also those that will use another device.
        from acme_accel import device_module

        return device_module.unavailable_reason()

    # The CPU's memory is the host's. For a card with its own memory, remove these three methods.

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return tensor.new_empty(shape)

    def get_rss(self) -> int:
        return self.memory_allocated()
