# ruff: noqa: ARG002 - the defaults of starred members take arguments that only some devices use
"""The accelerator interface: every method that device-independent code may call.

A subclass of :class:`DeepSpeedAccelerator` defines the abstract members and sets ``_name``,
``_communication_backend_name`` and ``_compile_backend`` in ``__init__``. Most devices subclass
:class:`accelerator.torch_accelerator.TorchAccelerator` instead, which defines all members by calling torch.

``device_index`` is a device's number among the visible devices of this process, ``None`` is the current device, and
memory sizes are bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from accelerator.pinned_memory import PinnedMemory

if TYPE_CHECKING:
    from types import ModuleType

    import torch

    from op_builder.builder import OpBuilder


def _maker(dtype: str) -> property:
    def make(self: DeepSpeedAccelerator) -> Callable[..., torch.Tensor]:
        raise NotImplementedError

    make.__doc__ = f"Makes a {dtype} tensor on the device from data, as ``torch.tensor`` does."
    return property(abstractmethod(make))


class DeepSpeedAccelerator(PinnedMemory, ABC):
    """One type of device: its devices, memory, streams, data types and op builders.

    Streams, events, graphs and device properties are objects of the device module, typed ``Any``.

    Attributes:
        supports_nvtx_domain: whether :meth:`range_push` and :meth:`range_pop` use ``domain``; a class attribute.
    """

    _name: str
    _communication_backend_name: str | None
    _compile_backend: str

    # Identity and synchronisation -----------------------------------------------------------

    @abstractmethod
    def is_synchronized_device(self) -> bool:
        """Whether an operation is complete when its call returns."""

    @abstractmethod
    def use_host_timers(self) -> bool:
        """Whether to measure time with the host's clock instead of device events."""

    @abstractmethod
    def resolves_data_dependency(self) -> bool:
        """Whether the device orders dependent work across streams by itself."""

    @abstractmethod
    def handles_memory_backpressure(self) -> bool:
        """Whether the device blocks the host while its memory is full."""

    supports_nvtx_domain: bool = False

    # Device ---------------------------------------------------------------------------------

    @abstractmethod
    def device_name(self, device_index: int | None = None) -> str:
        """Torch's device string: the type alone, or ``type:index``."""

    @abstractmethod
    def device(self, device_index: int | None = None) -> torch.device:
        """The ``torch.device`` of that index."""

    @abstractmethod
    def set_device(self, device_index: int) -> None:
        """Make a device the current one of this thread."""

    @abstractmethod
    def current_device(self) -> int:
        """Index of the current device."""

    @abstractmethod
    def current_device_name(self) -> str:
        """Device string of the current device."""

    @abstractmethod
    def device_count(self) -> int:
        """Number of devices that this process may use."""

    @abstractmethod
    def synchronize(self, device_index: int | None = None) -> None:
        """Wait until all work queued on the device has finished."""

    @abstractmethod
    def is_available(self) -> bool:
        """Whether at least one device can be used."""

    def get_device_properties(self, device_index: int | None = None) -> Any:
        """The torch module's properties object for the device, or None."""
        return None

    def device_capability(self, device_index: int | None = None) -> Any:
        """The device's capability, (major, minor) on CUDA, or None."""
        return None

    # Random numbers -------------------------------------------------------------------------

    @abstractmethod
    def random(self) -> ModuleType:
        """The module ``torch.random``."""

    @abstractmethod
    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        """Restore a generator state (a uint8 CPU tensor from :meth:`get_rng_state`)."""

    @abstractmethod
    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        """The device's generator state, a uint8 CPU tensor."""

    @abstractmethod
    def manual_seed(self, seed: int) -> Any:
        """Seed the current device's generator."""

    @abstractmethod
    def manual_seed_all(self, seed: int) -> Any:
        """Seed the generators of all devices."""

    @abstractmethod
    def initial_seed(self) -> int:
        """The initial seed of the current device's generator."""

    @abstractmethod
    def default_generator(self, device_index: int) -> torch.Generator:
        """The device's default generator."""

    # Streams and events ---------------------------------------------------------------------

    @property
    @abstractmethod
    def Stream(self) -> Any:
        """The stream class."""

    @property
    @abstractmethod
    def Event(self) -> Any:
        """The event class."""

    @abstractmethod
    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """A context manager that makes ``stream`` the current stream and restores the previous one."""

    @abstractmethod
    def current_stream(self, device_index: int | None = None) -> Any:
        """The device's current stream."""

    @abstractmethod
    def default_stream(self, device_index: int | None = None) -> Any:
        """The device's default stream."""

    # Memory, in bytes -----------------------------------------------------------------------

    @abstractmethod
    def empty_cache(self) -> None:
        """Release the allocator's unused memory to the device."""

    @abstractmethod
    def memory_allocated(self, device_index: int | None = None) -> int:
        """Bytes in use by tensors."""

    @abstractmethod
    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """Peak of :meth:`memory_allocated` since the start or the last reset."""

    @abstractmethod
    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        """Reset :meth:`max_memory_allocated` to the current value."""

    @abstractmethod
    def memory_cached(self, device_index: int | None = None) -> int:
        """Older name of :meth:`memory_reserved`."""

    @abstractmethod
    def max_memory_cached(self, device_index: int | None = None) -> int:
        """Older name of :meth:`max_memory_reserved`."""

    @abstractmethod
    def reset_max_memory_cached(self, device_index: int | None = None) -> None:
        """Reset :meth:`max_memory_reserved` to the current value."""

    @abstractmethod
    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        """The allocator's counters, under torch's keys (``allocated_bytes.all.current`` ...)."""

    @abstractmethod
    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """Reset all peaks to the current values."""

    @abstractmethod
    def memory_reserved(self, device_index: int | None = None) -> int:
        """Bytes that the allocator has reserved."""

    @abstractmethod
    def max_memory_reserved(self, device_index: int | None = None) -> int:
        """Peak of :meth:`memory_reserved` since the start or the last reset."""

    @abstractmethod
    def total_memory(self, device_index: int | None = None) -> int:
        """The device's memory in bytes."""

    @abstractmethod
    def available_memory(self, device_index: int | None = None) -> int:
        """The device's free memory in bytes."""

    def memory_snapshot(self, *args: Any, **kwargs: Any) -> Any:
        """The allocator's state as the device module reports it; an empty list if it reports none."""
        return []

    # Types ----------------------------------------------------------------------------------

    @abstractmethod
    def is_bf16_supported(self) -> bool:
        """Whether the device computes in bfloat16."""

    @abstractmethod
    def is_fp16_supported(self) -> bool:
        """Whether the device computes in float16."""

    def is_fp8_supported(self) -> bool:
        """Whether the device computes in 8-bit floating point."""
        return False

    def is_fp64_supported(self) -> bool:
        """Whether the device computes in float64."""
        return True

    @abstractmethod
    def supported_dtypes(self) -> list[torch.dtype]:
        """The floating-point types to train in, float32 first."""

    def amp(self) -> Any:
        """The device's ``amp`` module, or None."""
        return None

    # Misc -----------------------------------------------------------------------------------

    @abstractmethod
    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> Any:
        """Open a named range in the device's profiler, if it has one."""

    @abstractmethod
    def range_pop(self, domain: str | None = None) -> Any:
        """Close the innermost range (of ``domain``)."""

    @abstractmethod
    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        """Call ``callback`` when the device is initialised: now, if it is already."""

    @abstractmethod
    def communication_backend_name(self) -> str | None:
        """The ``torch.distributed`` backend for this device, or None."""

    @abstractmethod
    def is_triton_supported(self) -> bool:
        """Whether Triton kernels run on the device."""

    def prefer_triton_grouped_mm(self) -> bool:
        """Whether Triton's grouped matrix product is faster here than torch's."""
        return False

    # Graphs ---------------------------------------------------------------------------------

    @abstractmethod
    def create_graph(self) -> Any:
        """A new, empty graph, or None if the device has no graphs."""

    @abstractmethod
    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        """A context manager that records the work in it to ``graph``; it does nothing without graphs."""

    @abstractmethod
    def replay_graph(self, graph: Any) -> None:
        """Run the recorded work; does nothing without graphs."""

    def is_current_stream_capturing(self) -> bool:
        """Whether the work of the current stream is being recorded to a graph."""
        return False

    # Tensors --------------------------------------------------------------------------------

    BFloat16Tensor = _maker("bfloat16")
    ByteTensor = _maker("uint8")
    DoubleTensor = _maker("float64")
    FloatTensor = _maker("float32")
    HalfTensor = _maker("float16")
    IntTensor = _maker("int32")
    LongTensor = _maker("int64")

    @abstractmethod
    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on a device of this type."""

    # Op builders ----------------------------------------------------------------------------

    @abstractmethod
    def op_builder_dir(self) -> str:
        """Importable name of the package with this device's builder classes."""

    @abstractmethod
    def create_op_builder(self, class_name: str) -> OpBuilder:
        """An instance of the named builder class of this device.

        Raises:
            UnknownOpError: no builder has that name; the message suggests similar ones.
        """

    @abstractmethod
    def get_op_builder(self, class_name: str) -> type[OpBuilder]:
        """The named builder class of this device; raises like :meth:`create_op_builder`."""

    @abstractmethod
    def build_extension(self) -> Any:
        """The setuptools ``build_ext`` command class that compiles this device's extensions."""

    # Environment ----------------------------------------------------------------------------

    @abstractmethod
    def export_envs(self) -> list[str]:
        """Prefixes of the environment variables that a launcher forwards to remote ranks."""

    @abstractmethod
    def visible_devices_envs(self) -> list[str]:
        """Names of the environment variables that select a process's visible devices."""

    @abstractmethod
    def set_visible_devices_envs(self, env: MutableMapping[str, str], ids: Sequence[int]) -> None:
        """Set those variables to the device ``ids`` in ``env``, a child process's environment."""

    @abstractmethod
    def get_compile_backend(self) -> str:
        """The ``torch.compile`` backend for this device."""

    @abstractmethod
    def set_compile_backend(self, backend: str) -> None:
        """Set the ``torch.compile`` backend.

        Raises:
            ValueError: torch has no such backend; the message lists the available ones.
        """


Accelerator = DeepSpeedAccelerator
