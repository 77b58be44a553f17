"""Intel Gaudi (Habana)."""

# ruff: noqa: ARG002 - the contract's signatures have arguments that this device has no use for
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from accelerator.torch_accelerator import TorchAccelerator
from accelerator.vendors import import_vendor

if TYPE_CHECKING:
    from types import ModuleType

    import torch


class HPU_Accelerator(TorchAccelerator):
    """``habana_frameworks.torch.hpu``. A process sees one device, so device strings carry no index."""

    device_type = "hpu"
    vendor_package: ClassVar[str] = "habana_frameworks.torch.hpu"
    has_index = False
    communication_backend = "hccl"
    # The second is historical: launchers have always set it.
    visible_devices_variables = ("HABANA_VISIBLE_MODULES", "CUDA_VISIBLE_DEVICES")
    compile_backend = "hpu_backend"
    bf16_supported = True
    graph_class = "HPUGraph"

    @classmethod
    def device_module(cls) -> ModuleType:
        return import_vendor(cls.vendor_package)  # the package is the module

    def resolves_data_dependency(self) -> bool:
        return True  # the graph compiler orders the work

    def handles_memory_backpressure(self) -> bool:
        return True

    def synchronize(self, device_index: int | None = None) -> None:
        self._call(self._module.synchronize)  # without an index: a process has one device

    def default_generator(self, device_index: int) -> torch.Generator:
        generators = self._module.random.default_generators  # the module itself does not have them
        return self._on_device(generators.__getitem__, device_index)

    def empty_cache(self) -> None:
        getattr(self._module, "empty_cache", lambda: None)()  # the device reserves its memory as a whole

    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        """The module's counters, also under torch's keys."""
        stats = self._on_device(self._module.memory_stats, device_index)
        used = {"allocated_bytes.all.current": stats["InUse"], "allocated_bytes.all.peak": stats["MaxInUse"]}
        reserved = dict.fromkeys(("reserved_bytes.all.current", "reserved_bytes.all.peak"), stats["Limit"])
        return {**stats, **used, **reserved}

    def total_memory(self, device_index: int | None = None) -> int:
        return self._on_device(self._module.mem_get_info, device_index)[1]  # the device's properties are a string

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        # Graphs share no memory, so there is no pool.
        return nullcontext() if graph is None else self._call(self._module.graph, graph, stream=stream)
