"""Intel Gaudi (Habana)."""

from __future__ import annotations

import importlib
from types import ModuleType

from accelerator.torch_accelerator import TorchAccelerator


class HPU_Accelerator(TorchAccelerator):
    """``habana_frameworks.torch.hpu``. A process sees one device, so device strings carry no index."""

    device_type = "hpu"
    vendor_package = "habana_frameworks.torch.hpu"
    requirement = "habana_frameworks.torch.hpu"
    has_index = False
    communication_backend = "hccl"
    # The second is historical: launchers have always set it.
    visible_devices_variables = ("HABANA_VISIBLE_MODULES", "CUDA_VISIBLE_DEVICES")
    compile_backend = "hpu_backend"
    bf16_supported = True
    graph_class = "HPUGraph"

    @classmethod
    def device_module(cls) -> ModuleType:
        return importlib.import_module("habana_frameworks.torch.hpu")

    def resolves_data_dependency(self) -> bool:
        return True  # the graph compiler orders the work

    def handles_memory_backpressure(self) -> bool:
        return True
