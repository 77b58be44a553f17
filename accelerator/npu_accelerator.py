"""Huawei Ascend NPUs."""

from __future__ import annotations

from accelerator.cann import cann_version
from accelerator.torch_accelerator import TorchAccelerator


class NPU_Accelerator(TorchAccelerator):
    """``torch.npu``, which ``torch_npu`` registers."""

    device_type = "npu"
    vendor_package = "torch_npu"
    communication_backend = "hccl"
    visible_devices_variables = ("ASCEND_RT_VISIBLE_DEVICES",)
    exported_variables = ("ASCEND", "HCCL", "LD_LIBRARY", "PATH")
    bf16_supported = True
    graph_class = "NPUGraph"
    extra_facts = (("cann_version", cann_version),)
