"""Tecorigin SDAA devices."""

from __future__ import annotations

from accelerator.torch_accelerator import TorchAccelerator


class SDAA_Accelerator(TorchAccelerator):
    """``torch.sdaa``, which ``torch_sdaa`` registers."""

    device_type = "sdaa"
    vendor_package = "torch_sdaa"
    communication_backend = "tccl"
    visible_devices_variables = ("SDAA_VISIBLE_DEVICES",)
    exported_variables = ("NCCL", "LD_LIBRARY", "PATH")
