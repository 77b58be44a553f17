"""Huawei Ascend NPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerator.torch_accelerator import TorchAccelerator
from op_builder import env as environment


class NPU_Accelerator(TorchAccelerator):
    """``torch.npu``, which ``torch_npu`` registers."""

    device_type = "npu"
    vendor_package = "torch_npu"
    communication_backend = "hccl"
    visible_devices_variables = ("ASCEND_RT_VISIBLE_DEVICES",)
    exported_variables = ("ASCEND", "HCCL", "LD_LIBRARY", "PATH")
    bf16_supported = True
    graph_class = "NPUGraph"

    def pin_memory_alignment(self) -> int:
        return 4096

    def extra_facts(self) -> dict[str, Callable[[], Any]]:
        return {"cann_version": cann_version}


def cann_version() -> str | None:
    """Version of CANN, Huawei's toolkit, under ``ASCEND_HOME_PATH``, or None if it cannot be read."""
    home = environment.ASCEND_HOME_PATH.get()
    if home is None:
        return None
    record_name = "ascend_*_install.info"  # in the root, or in the directory of the host's architecture
    for record in sorted({*home.glob(record_name), *home.glob(f"*-linux/{record_name}")}):
        for line in record.read_text(errors="replace").splitlines() if record.is_file() else ():
            key, _, value = line.partition("=")
            if key.strip().lower() == "version":
                return value.strip()
    return None
