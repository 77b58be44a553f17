"""Biren SUPA devices."""

from __future__ import annotations

from accelerator.torch_accelerator import TorchAccelerator


class SUPA_Accelerator(TorchAccelerator):
    """``torch.supa``, which ``torch_supa`` registers."""

    device_type = "supa"
    vendor_package = "torch_supa"
    communication_backend = "bccl"
    visible_devices_variables = ("SUPA_VISIBLE_DEVICES",)
    exported_variables = ("BCCL", "BIREN", "SUPA", "LD_LIBRARY", "PATH")
    bf16_supported = True
    triton_supported = True
