# ruff: noqa: ARG002 - the defaults of starred members take arguments that only some devices use
"""The accelerator interface: every method that device-independent code may call.

A class that subclasses :class:`DeepSpeedAccelerator` defines the abstract members and sets
``_name``, ``_communication_backend_name`` and ``_compile_backend`` in ``__init__``. Almost every
device inherits from :class:`accelerator.torch_accelerator.TorchAccelerator` instead, which defines
all of them by asking torch.

Throughout, ``device_index`` is a device's number in this process (after the visible-devices
variable was applied), ``None`` is the current device, and memory sizes are bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    import torch

    from op_builder.builder import OpBuilder


def _maker(dtype: str) -> property:
    def make(self: DeepSpeedAccelerator) -> Callable[..., torch.Tensor]:
        raise NotImplementedError

    make.__doc__ = f"Makes a {dtype} tensor on the device from data, as ``torch.tensor`` does."
    return property(abstractmethod(make))


class DeepSpeedAccelerator(ABC):
    """One device family of this process: its devices, memory, streams, types and op builders.

    Streams, events, graphs and device records are the device module's own objects, typed ``Any``.
    """

    _name: str
    _communication_backend_name: str | None
    _compile_backend: str

    # Identity and synchronisation -----------------------------------------------------------

    @abstractmethod
    def is_synchronized_device(self) -> bool:
        """Whether an operation has finished when its call returns."""

    @abstractmethod
    def use_host_timers(self) -> bool:
        """Whether to time with the host's clock rather than with device events."""

    @abstractmethod
    def resolves_data_dependency(self) -> bool:
        """Whether the device orders dependent work across streams by itself."""

    @abstractmethod
    def handles_memory_backpressure(self) -> bool:
        """Whether the device makes the host wait by itself when its memory is full."""

    @abstractmethod
    def supports_nvtx_domain(self) -> bool:
        """Whether :meth:`range_push` and :meth:`range_pop` honour ``domain``."""

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
        """Number of devices this process may use."""

    @abstractmethod
    def synchronize(self, device_index: int | None = None) -> None:
        """Wait until all work queued on the device has finished."""

    @abstractmethod
    def is_available(self) -> bool:
        """Whether at least one device can be used."""

    def get_device_properties(self, device_index: int | None = None) -> Any:
        """The device's record as its torch module gives it, or None where there is none."""
        return None

    def device_capability(self, device_index: int | None = None) -> Any:
        """What the device module calls its capability ((major, minor) on CUDA), or None."""
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
        """The seed that the current device's generator was started with."""

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
        """A context in which work is queued on ``stream``; the former stream comes back after it."""

    @abstractmethod
    def current_stream(self, device_index: int | None = None) -> Any:
        """The stream that work is queued on now."""

    @abstractmethod
    def default_stream(self, device_index: int | None = None) -> Any:
        """The stream that work is queued on when nobody chose one."""

    # Memory, in bytes -----------------------------------------------------------------------

    @abstractmethod
    def empty_cache(self) -> None:
        """Give unused memory that the allocator holds back to the device."""

    @abstractmethod
    def memory_allocated(self, device_index: int | None = None) -> int:
        """Bytes that tensors occupy."""

    @abstractmethod
    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """Peak of :meth:`memory_allocated` since the start or the last reset."""

    @abstractmethod
    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        """Start :meth:`max_memory_allocated` anew."""

    @abstractmethod
    def memory_cached(self, device_index: int | None = None) -> int:
        """Older name of :meth:`memory_reserved`."""

    @abstractmethod
    def max_memory_cached(self, device_index: int | None = None) -> int:
        """Older name of :meth:`max_memory_reserved`."""

    @abstractmethod
    def reset_max_memory_cached(self, device_index: int | None = None) -> None:
        """Start :meth:`max_memory_reserved` anew."""

    @abstractmethod
    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        """The allocator's counters, under torch's keys (``allocated_bytes.all.current`` ...)."""

    @abstractmethod
    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """Start all peaks anew."""

    @abstractmethod
    def memory_reserved(self, device_index: int | None = None) -> int:
        """Bytes that the allocator holds."""

    @abstractmethod
    def max_memory_reserved(self, device_index: int | None = None) -> int:
        """Peak of :meth:`memory_reserved` since the start or the last reset."""

    @abstractmethod
    def total_memory(self, device_index: int | None = None) -> int:
        """Bytes that the device has."""

    @abstractmethod
    def available_memory(self, device_index: int | None = None) -> int:
        """Bytes of the device that nobody uses."""

    def memory_snapshot(self, *args: Any, **kwargs: Any) -> Any:
        """The allocator's state as the device module reports it; an empty list where it has none."""
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

    @abstractmethod
    def supported_dtypes(self) -> list[torch.dtype]:
        """The floating-point types to train in, float32 first."""

    def amp(self) -> Any:
        """The device's ``amp`` module, or None."""
        return None

    # Misc -----------------------------------------------------------------------------------

    @abstractmethod
    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> Any:
        """Open a named range in the device's profiler; does nothing where there is none."""

    @abstractmethod
    def range_pop(self, domain: str | None = None) -> Any:
        """Close the innermost range (of ``domain``)."""

    @abstractmethod
    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        """Run ``callback`` once the device is initialised, now if it is."""

    @abstractmethod
    def communication_backend_name(self) -> str | None:
        """The ``torch.distributed`` backend for this device, or None where there is none."""

    @abstractmethod
    def is_triton_supported(self) -> bool:
        """Whether Triton kernels run on the device."""

    def prefer_triton_grouped_mm(self) -> bool:
        """Whether a Triton grouped matrix product is to be preferred to torch's own."""
        return False

    # Graphs ---------------------------------------------------------------------------------

    @abstractmethod
    def create_graph(self) -> Any:
        """A new, empty graph."""

    @abstractmethod
    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        """A context that records the work done in it into ``graph``."""

    @abstractmethod
    def replay_graph(self, graph: Any) -> None:
        """Run the recorded work again."""

    # Tensors --------------------------------------------------------------------------------

    BFloat16Tensor = _maker("bfloat16")
    ByteTensor = _maker("uint8")
    DoubleTensor = _maker("float64")
    FloatTensor = _maker("float32")
    HalfTensor = _maker("float16")
    IntTensor = _maker("int32")
    LongTensor = _maker("int64")

    def pin_memory(
        self,
        tensor: torch.Tensor,
        align_bytes: int = 1,
        make_copy: bool = True,
        match_shape: bool = True,
    ) -> torch.Tensor:
        """A copy of a CPU tensor in page-locked memory, which devices copy from without waiting.

        Args:
            align_bytes: alignment of the memory; 1 leaves it to torch, 0 asks for whole pages
                where the device knows the difference.
            make_copy: whether the result must hold the tensor's values; torch's always does.
            match_shape: whether the result must have the tensor's shape; torch's always has.
        """
        return tensor.pin_memory()

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies in page-locked memory."""
        return tensor.is_pinned()

    def unpin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """Release page-locked memory early; torch's goes with its tensor, so there is nothing to do."""
        return tensor

    @abstractmethod
    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies on this device family."""

    # Op builders ----------------------------------------------------------------------------

    @abstractmethod
    def op_builder_dir(self) -> str:
        """Importable name of the package that holds this device's builder classes."""

    @abstractmethod
    def create_op_builder(self, class_name: str) -> OpBuilder:
        """An instance of the named builder class of this device.

        Raises:
            UnknownOpError: no builder has that name; the message suggests near matches.
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
        """Prefixes of the environment variables that a launcher hands on to remote ranks."""

    @abstractmethod
    def visible_devices_envs(self) -> list[str]:
        """Names of the environment variables that choose the devices a process sees."""

    @abstractmethod
    def set_visible_devices_envs(self, env: MutableMapping[str, str], ids: Sequence[int]) -> None:
        """Write the device ``ids`` into those variables of ``env``, a child process's environment."""

    @abstractmethod
    def get_compile_backend(self) -> str:
        """The ``torch.compile`` backend for this device."""

    @abstractmethod
    def set_compile_backend(self, backend: str) -> None:
        """Choose another ``torch.compile`` backend.

        Raises:
            ValueError: torch knows no such backend; the message names those it knows.
        """


Accelerator = DeepSpeedAccelerator


# What makes an object an accelerator: the members it has, not its base classes ---------------

_ABSENT = object()
_MOST_NAMES = 8


def structural_faults(candidate: object) -> list[str]:
    """What keeps ``candidate`` from being an accelerator, as phrases; empty when nothing does.

    The abstract members must exist; those that :class:`DeepSpeedAccelerator` defines itself may be
    missing. All that exist must be of the right kind, a method or a value. No property is
    evaluated, since that may start the device.
    """
    if isinstance(candidate, type):
        return [f"it is the class {candidate.__name__}, where an object of it is needed"]
    # inspect.getattr_static() for eighty names takes longer than everything else in get_accelerator().
    namespaces = [getattr(candidate, "__dict__", {}), *map(vars, type(candidate).__mro__)]
    is_proxy = hasattr(type(candidate), "__getattr__")
    missing: list[str] = []
    wrong: list[str] = []
    for name, declared in vars(DeepSpeedAccelerator).items():
        if name.startswith("_"):
            continue
        member = next((namespace[name] for namespace in namespaces if name in namespace), _ABSENT)
        if member is _ABSENT and is_proxy:
            member = getattr(candidate, name, _ABSENT)
        if member is _ABSENT:
            if getattr(declared, "__isabstractmethod__", False):
                missing.append(name)
        elif isinstance(declared, property):
            if isinstance(member, (FunctionType, classmethod, staticmethod)):
                wrong.append(f"{name} must be a property, found a method")
        elif not _is_method(member):
            kind = "a property" if isinstance(member, property) else f"a value of type {type(member).__name__}"
            wrong.append(f"{name} must be a method, found {kind}")
    if missing:
        more = f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
        return [f"missing: {', '.join(missing[:_MOST_NAMES])}{more}", *wrong]
    return wrong


def _is_method(member: object) -> bool:
    """Whether it is called, or is a descriptor that gives what is called: classmethod, functools.partialmethod ..."""
    gives_value = isinstance(member, cached_property) or hasattr(type(member), "__set__")  # as every property has
    return callable(member) or (hasattr(type(member), "__get__") and not gives_value)
