"""Cambricon MLUs."""

from __future__ import annotations

from accelerator.torch_accelerator import TorchAccelerator


class MLU_Accelerator(TorchAccelerator):
    """``torch.mlu``, which ``torch_mlu`` registers."""

    device_type = "mlu"
    vendor_package = "torch_mlu"
    communication_backend = "cncl"
    visible_devices_variables = ("MLU_VISIBLE_DEVICES",)
    exported_variables = ("NEUWARE_HOME", "CNCL", "LD_LIBRARY", "PATH")
    triton_supported = True
    graph_class = "MLUGraph"
