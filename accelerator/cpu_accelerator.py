"""The CPU as an accelerator: a device is a NUMA node, its memory is the process's resident set."""

# ruff: noqa: ARG002 - the contract's signatures have arguments that this device has no use for

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from accelerator.host_streams import HostGraph, HostStreams
from accelerator.torch_accelerator import TorchAccelerator, ignores_index
from accelerator.vendors import optional_vendor
from op_builder import env as environment

if TYPE_CHECKING:
    from accelerator.host import HostResources
    from op_builder.system.cgroups import HostFiles


@ignores_index
class CPU_Accelerator(HostStreams, TorchAccelerator):
    """The CPU, always available. ``device_index`` is ignored: the launcher binds the process to cores.

    Args:
        files: paths of the kernel's pseudo files; for tests.
    """

    device_type = "cpu"
    has_index = False
    visible_devices_variables = ("CUDA_VISIBLE_DEVICES",)  # historical: launchers have always set it
    builder_package = "op_builder.cpu"
    synchronized = True
    bf16_supported = True

    def __init__(self, files: HostFiles | None = None) -> None:
        super().__init__()
        self._files = files

    @cached_property
    def _host(self) -> HostResources:
        from accelerator.host import HostResources

        return HostResources(self._files)

    @classmethod
    def choose_communication_backend(cls) -> str:
        return "ccl" if optional_vendor("oneccl_bindings_for_pytorch") else "gloo"

    def device_count(self) -> int:
        """``LOCAL_SIZE`` if a launcher set it, else the number of NUMA nodes with cores."""
        local_size = environment.LOCAL_SIZE.get()
        return local_size if local_size is not None and local_size > 0 else self._host.numa_node_count()

    def current_device(self) -> int:
        """``LOCAL_RANK``, 0 when unset."""
        return environment.LOCAL_RANK.get()

    def set_device(self, device_index: int) -> None:
        """Does nothing: the launcher binds a process to its cores."""

    def is_available(self) -> bool:
        return True

    def get_device_properties(self, device_index: int | None = None) -> Any:
        return None

    def extra_facts(self) -> dict[str, Callable[[], Any]]:
        from op_builder.system.cpu_isa import cpu_model

        return {"hardware": cpu_model}

    # torch.cpu has no generator; torch's own functions use the CPU's.

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        torch.set_rng_state(new_state)

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return torch.get_rng_state()

    def manual_seed(self, seed: int) -> Any:
        return torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> Any:
        return torch.manual_seed(seed)

    def initial_seed(self) -> int:
        return torch.initial_seed()

    def default_generator(self, device_index: int) -> torch.Generator:
        return torch.default_generator

    # Memory: without an allocator, allocated and reserved memory are the resident set.

    def get_rss(self) -> int:
        """Resident set size of this process in bytes."""
        return self._host.rss()

    def reset_rss(self) -> int:
        """Reset the peak of the resident set size; returns the current size."""
        self.reset_peak_memory_stats()
        return self.get_rss()

    def empty_cache(self) -> None:
        """Does nothing: the host's allocator returns memory by itself."""

    def memory_allocated(self, device_index: int | None = None) -> int:
        return self.get_rss()

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return self._host.peak_rss()

    memory_reserved = memory_allocated
    max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        self._host.reset_peak_rss()

    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        sizes = {"current": self._host.rss(), "peak": self._host.peak_rss()}
        return {f"{kind}_bytes.all.{key}": size for kind in ("allocated", "reserved") for key, size in sizes.items()}

    def total_memory(self, device_index: int | None = None) -> int:
        return self._host.total_memory()

    def available_memory(self, device_index: int | None = None) -> int:
        return self._host.available_memory()

    def is_fp16_supported(self) -> bool:
        try:
            return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
        except (AttributeError, RuntimeError):  # a torch built without oneDNN
            return False

    def create_graph(self) -> Any:
        return HostGraph()

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        return nullcontext(graph)

    # No device copies from host memory here, so torch has nothing to pin.

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return tensor.new_empty(shape)
