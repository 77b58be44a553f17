"""The GPU of Apple machines."""

# ruff: noqa: ARG002 - the contract's signatures have arguments that this device has no use for
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from accelerator.errors import DeviceIndexError
from accelerator.host_streams import HostStream, HostStreams
from accelerator.torch_accelerator import TorchAccelerator, ignores_index

if TYPE_CHECKING:
    from types import ModuleType


class MPSStream(HostStream):
    """The device's one queue, which works asynchronously."""

    def record_event(self, event: Any = None) -> Any:
        recorded = torch.mps.Event() if event is None else event
        recorded.record()
        return recorded

    def query(self) -> bool:
        return self.record_event().query()

    def synchronize(self) -> None:
        torch.mps.synchronize()

    def wait_event(self, event: Any) -> None:
        event.wait()


@ignores_index
class MPS_Accelerator(HostStreams, TorchAccelerator):
    """``torch.mps``: one device; its allocator keeps no peaks, so current values replace them."""

    device_type = "mps"
    requirement = "torch.mps"
    communication_backend = None
    visible_devices_variables = ("CUDA_VISIBLE_DEVICES",)  # historical: launchers have always set it
    only_stream = MPSStream()
    bf16_supported = False
    fp16_supported = False

    @classmethod
    def device_module(cls) -> ModuleType:
        torch.mps.current_allocated_memory()  # raises without the device; the module always exists
        return torch.mps

    @property
    def Event(self) -> Any:
        return torch.mps.Event

    @property
    def Stream(self) -> Any:
        return self._module.Stream if hasattr(torch.mps, "Stream") else MPSStream

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        return self._module.stream(stream) if hasattr(torch.mps, "Stream") else super().stream(stream)

    def current_stream(self, device_index: int | None = None) -> Any:
        return self._module.current_stream() if hasattr(torch.mps, "Stream") else self.only_stream

    def default_stream(self, device_index: int | None = None) -> Any:
        return self._module.default_stream() if hasattr(torch.mps, "Stream") else self.only_stream

    def is_fp64_supported(self) -> bool:
        return False

    def use_host_timers(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def set_device(self, device_index: int) -> None:
        """Does nothing: mps is one device.

        Raises:
            DeviceIndexError: ``device_index`` is not 0.
        """
        if self.device(device_index).index not in (0, None):
            raise DeviceIndexError(f"mps device {device_index!r} does not exist; the only device is 0.", "Use index 0.")

    def synchronize(self, device_index: int | None = None) -> None:
        torch.mps.synchronize()

    def get_device_properties(self, device_index: int | None = None) -> Any:
        return None

    def manual_seed_all(self, seed: int) -> Any:
        return self.manual_seed(seed)

    def initial_seed(self) -> int:
        return self.default_generator(0).initial_seed()

    def default_generator(self, device_index: int) -> torch.Generator:
        return torch.mps._get_default_mps_generator()  # torch has no public name for it

    def memory_allocated(self, device_index: int | None = None) -> int:
        return torch.mps.current_allocated_memory()

    def memory_reserved(self, device_index: int | None = None) -> int:
        return torch.mps.driver_allocated_memory()

    max_memory_allocated = memory_allocated
    max_memory_reserved = memory_reserved

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """Does nothing: the allocator keeps no peaks."""

    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        return {
            "allocated_bytes.all.current": self.memory_allocated(),
            "reserved_bytes.all.current": self.memory_reserved(),
        }

    def total_memory(self, device_index: int | None = None) -> int:
        return torch.mps.recommended_max_memory()

    def available_memory(self, device_index: int | None = None) -> int:
        return max(0, self.total_memory() - self.memory_reserved())
