"""The contract of an accelerator, implemented with one torch device module.

A device is a subclass with a few class attributes and overrides for what differs. The device module keeps all state.
"""

# The device modules of torch are untyped; the types below are the contract's.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.errors import (
    AcceleratorUnavailableError,
    DeviceIndexError,
    UnsupportedBackendError,
    describe,
)
from accelerator.vendors import import_vendor
from op_builder import env as environment
from op_builder.errors import AccelError, UnknownOpError

if TYPE_CHECKING:
    from types import ModuleType

    from op_builder.builder import OpBuilder


F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound="type[TorchAccelerator]")


def _forwarded(method: F) -> F:
    """Calls the device module's function of that name; the type and the docstring are the contract's."""
    name, takes_index = method.__name__, _position_of_index(method) is not None

    @wraps(method)
    def call(self: TorchAccelerator, *arguments: Any, **keywords: Any) -> Any:
        # By position: the modules name their parameters differently.
        arguments = (*arguments, *keywords.values()) if keywords else arguments
        if takes_index and arguments:
            self._index(arguments[0])
        try:
            return getattr(self._module, name)(*arguments)
        except Exception as error:
            self._explain(error, *arguments if takes_index else ())
            raise

    call.__isabstractmethod__ = False  # type: ignore[attr-defined]
    return cast(F, call)


def _maker(dtype: torch.dtype) -> property:
    return property(lambda self: partial(self._call, torch.tensor, dtype=dtype, device=self._current))


def _position_of_index(member: Any) -> int | None:
    """The position of ``device_index`` among the parameters of a method of the contract, or None."""
    names: tuple[str, ...] = getattr(getattr(member, "__code__", None), "co_varnames", ())
    return names.index("device_index") if "device_index" in names else None


def ignores_index(cls: C) -> C:
    """A class decorator for a device whose methods do not use ``device_index``: a wrong one is still an error."""
    for name, declared in vars(DeepSpeedAccelerator).items():
        position = _position_of_index(declared)
        if position is not None:
            setattr(cls, name, _checked(getattr(cls, name), declared, position, cls.device_type))
    return cls


def _checked(method: Any, declared: Any, position: int, device_type: str) -> Any:
    def call(self: TorchAccelerator, device_index: Any = None) -> Any:
        if device_index is not None:
            _index(device_index, device_type)
        return method(self, device_index)

    def set_rng_state(self: TorchAccelerator, new_state: Any, device_index: Any = None) -> Any:
        _index(device_index, device_type)
        return method(self, new_state, device_index)

    wrapper: Any = wraps(method)(call if position == 1 else set_rng_state)
    wrapper.__defaults__ = declared.__defaults__  # some methods require the index
    return wrapper


def _index(device: Any, device_type: str) -> Any:
    """The index of a device: an int, or None for the current one; torch's devices and digits are accepted, too.

    Raises:
        DeviceIndexError: it is something else, or a device of another type.
    """
    if device is None or type(device) is int or hasattr(device, "__index__"):
        return device
    if isinstance(device, str) and device.isdecimal():  # DeepSpeed passes LOCAL_RANK as it is
        return int(device)
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type != device_type:
        raise DeviceIndexError(f"{device!r} is not a device of type {device_type}.", "Pass its index, an int.")
    return found.index


class TorchAccelerator(DeepSpeedAccelerator):
    """A device that torch has a module for (``torch.cuda``, ``torch.npu`` ...).

    The class attributes declare the device. Detection calls the class methods :meth:`probe` and :meth:`device_module`
    before it creates an object.

    Raises:
        AcceleratorUnavailableError: (constructor) the package with the module is missing or broken.
    """

    device_type: ClassVar[str]
    """Torch's device type, which is also the module's name in ``torch``."""
    vendor_package: ClassVar[str | None] = None
    """Package imported first because it registers the device with torch."""
    requirement: ClassVar[str | None] = None
    """End of the error '<class> requires ...'; by default the vendor's package."""
    has_index: ClassVar[bool] = True
    """Whether device strings carry an index (``cuda:1``)."""
    communication_backend: ClassVar[str | None]
    visible_devices_variables: ClassVar[tuple[str, ...]]
    exported_variables: ClassVar[tuple[str, ...]] = ()
    compile_backend: ClassVar[str] = "inductor"
    builder_package: ClassVar[str] = "op_builder.host"
    """Package of the builder classes; by default the ops that run on the host."""
    synchronized: ClassVar[bool] = False
    """Whether an operation is complete when its call returns."""
    bf16_supported: ClassVar[bool | None] = None
    """None: the device module decides."""
    fp16_supported: ClassVar[bool] = True
    triton_supported: ClassVar[bool] = False
    graph_class: ClassVar[str | None] = None
    """Name of the device module's graph class, if it has one."""

    def __init__(self) -> None:
        self._module = self._required_module()
        self._name: str = self.device_type
        self._communication_backend_name: str | None = self.choose_communication_backend()
        self._compile_backend: str = self.compile_backend

    def _required_module(self) -> Any:
        try:
            return self.device_module()
        except (Exception, SystemExit) as error:
            raise self._unavailable(describe(error)) from error

    def _unavailable(self, reason: str) -> AcceleratorUnavailableError:
        remedy = "Install it, or choose another accelerator with ACCEL_ACCELERATOR."
        return AcceleratorUnavailableError(self.missing_message(reason), remedy)

    def _call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Call a function of torch that needs a device.

        Raises:
            AcceleratorUnavailableError: it failed, and no device is available.
        """
        try:
            return function(*arguments, **keywords)
        except Exception as error:
            self._explain(error)
            raise

    def _on_device(self, function: Callable[..., Any], *device_index: int | None) -> Any:
        """Like :meth:`_call`, with a device's index or without one.

        Raises:
            DeviceIndexError: it failed, and the index is out of range.
        """
        if device_index:
            self._index(device_index[0])
        try:
            return function(*device_index)
        except Exception as error:
            self._explain(error, *device_index)
            raise

    def _explain(self, error: Exception, device_index: Any = None) -> None:
        """Raise an error about the device if it does not exist, so that a call with it failed."""
        if (_index(device_index, self.device_type) or 0) not in range(self.device_count()):
            raise self._missing_device(device_index) from error

    def _index(self, device_index: Any) -> Any:
        """The index of a device, or None; torch.cuda and torch.xpu use the current device for a negative one.

        Raises:
            DeviceIndexError: it is not the index of a device.
        """
        index = _index(device_index, self.device_type)
        if index is not None and index < 0:
            raise self._missing_device(index)
        return index

    def _missing_device(self, index: object) -> AccelError:
        """The error about a device that does not exist."""
        count = self.device_count()
        if count == 0:
            return self._unavailable("no device is available")
        return DeviceIndexError(
            f"{self.device_type} device {index!r} does not exist; the number of devices is {count}.",
            f"Use an index from 0 to {count - 1}.",
        )

    # Modules cannot be copied or pickled; a copy imports the module again. Locked memory belongs to one process.

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_module", "_page_memory")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _module=self._required_module())

    # Called by detection --------------------------------------------------------------------

    @classmethod
    def device_module(cls) -> ModuleType:
        """The torch device module, imported with its vendor's package."""
        if cls.vendor_package is not None:
            import_vendor(cls.vendor_package)
        module: ModuleType = getattr(torch, cls.device_type)  # torch.get_device_module caches its result
        return module

    @classmethod
    def probe(cls) -> str | None:
        """Why the device is unusable, or None if it is usable. May raise any exception of an import."""
        # is_available() starts the driver on CUDA and MLU, and then forked children cannot use the device;
        # device_count() uses the management library.
        no_device = f"no device is available: torch.{cls.device_type}.device_count() is 0"
        return None if cls.device_module().device_count() > 0 else no_device

    @classmethod
    def missing_message(cls, reason: str) -> str:
        """The error message: what this class requires, and why that is missing."""
        return f"{cls.__name__} requires {cls.requirement or cls.vendor_package} ({reason})."

    @classmethod
    def choose_communication_backend(cls) -> str | None:
        """The ``torch.distributed`` backend; overridden if it depends on the machine."""
        return cls.communication_backend

    # Functions of the device module.

    current_device = _forwarded(DeepSpeedAccelerator.current_device)
    synchronize = _forwarded(DeepSpeedAccelerator.synchronize)
    manual_seed = _forwarded(DeepSpeedAccelerator.manual_seed)
    manual_seed_all = _forwarded(DeepSpeedAccelerator.manual_seed_all)
    initial_seed = _forwarded(DeepSpeedAccelerator.initial_seed)
    stream = _forwarded(DeepSpeedAccelerator.stream)
    current_stream = _forwarded(DeepSpeedAccelerator.current_stream)
    default_stream = _forwarded(DeepSpeedAccelerator.default_stream)
    empty_cache = _forwarded(DeepSpeedAccelerator.empty_cache)
    memory_allocated = _forwarded(DeepSpeedAccelerator.memory_allocated)
    max_memory_allocated = _forwarded(DeepSpeedAccelerator.max_memory_allocated)
    memory_stats = _forwarded(DeepSpeedAccelerator.memory_stats)
    memory_reserved = _forwarded(DeepSpeedAccelerator.memory_reserved)
    max_memory_reserved = _forwarded(DeepSpeedAccelerator.max_memory_reserved)

    # Members that are not one function of the module.

    def is_synchronized_device(self) -> bool:
        return self.synchronized

    def use_host_timers(self) -> bool:
        return self.is_synchronized_device()

    def resolves_data_dependency(self) -> bool:
        return self.is_synchronized_device()

    def handles_memory_backpressure(self) -> bool:
        return self.is_synchronized_device()

    def device_name(self, device_index: int | None = None) -> str:
        index = _index(device_index, self.device_type)
        if index is None or not self.has_index:  # programs pass a local rank of -1
            return self.device_type
        return f"{self.device_type}:{self._index(index)}"

    @cached_property
    def _current(self) -> torch.device:
        return torch.device(self.device_type)

    def device(self, device_index: int | None = None) -> torch.device:
        return self._current if device_index is None else torch.device(self.device_name(device_index))

    def set_device(self, device_index: int) -> None:
        self._on_device(self._module.set_device, device_index)

    def current_device_name(self) -> str:
        return self.device_name(self.current_device())

    def device_count(self) -> int:
        return self._module.device_count()

    def is_available(self) -> bool:
        return self.device_count() > 0  # not the module's: see probe()

    def get_device_properties(self, device_index: int | None = None) -> Any:
        return self._on_device(self._module.get_device_properties, device_index)

    def device_capability(self, device_index: int | None = None) -> Any:
        ask = getattr(self._module, "get_device_capability", None)
        return None if ask is None else self._on_device(ask, device_index)

    def random(self) -> ModuleType:
        return torch.random

    # These functions of the device modules do not accept None.

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        function = partial(self._module.set_rng_state, new_state)
        self._on_device(function, *() if device_index is None else (device_index,))

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return self._on_device(self._module.get_rng_state, *() if device_index is None else (device_index,))

    def default_generator(self, device_index: int) -> torch.Generator:
        if not self._module.default_generators:
            self._call(self._module.init)  # initialisation creates the generators
        return self._on_device(self._module.default_generators.__getitem__, device_index)

    @property
    def Stream(self) -> Any:
        return self._module.Stream

    @property
    def Event(self) -> Any:
        return self._module.Event

    # torch has one reset for all peaks; its separate ones are deprecated names of that one.
    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        self.reset_peak_memory_stats(device_index)

    def memory_cached(self, device_index: int | None = None) -> int:
        return self.memory_reserved(device_index)

    def max_memory_cached(self, device_index: int | None = None) -> int:
        return self.max_memory_reserved(device_index)

    def reset_max_memory_cached(self, device_index: int | None = None) -> None:
        self.reset_peak_memory_stats(device_index)

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        self._on_device(self._module.reset_peak_memory_stats, device_index)

    def total_memory(self, device_index: int | None = None) -> int:
        return self.get_device_properties(device_index).total_memory

    def available_memory(self, device_index: int | None = None) -> int:
        return self._on_device(self._module.mem_get_info, device_index)[0]

    def memory_snapshot(self, *args: Any, **kwargs: Any) -> Any:
        ask = getattr(self._module, "memory_snapshot", None)
        return ask(*args, **kwargs) if ask is not None and self.is_available() else []

    def is_bf16_supported(self) -> bool:
        return self._module_is("is_bf16_supported") if self.bf16_supported is None else self.bf16_supported

    def is_fp16_supported(self) -> bool:
        return self.fp16_supported

    def is_fp8_supported(self) -> bool:
        return self._module_is("is_fp8_supported")

    def _module_is(self, function: str) -> bool:
        ask = getattr(self._module, function, None)
        return ask is not None and bool(ask())

    def supported_dtypes(self) -> list[torch.dtype]:
        halves = {torch.float16: self.is_fp16_supported(), torch.bfloat16: self.is_bf16_supported()}
        return [torch.float32, *(dtype for dtype, is_supported in halves.items() if is_supported)]

    def amp(self) -> Any:
        return getattr(self._module, "amp", None)

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> Any:
        """Does nothing: torch has no named ranges for most devices."""

    def range_pop(self, domain: str | None = None) -> Any:
        """Does nothing, like :meth:`range_push`."""

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        # torch has no public function for this.
        defer = getattr(self._module, "_lazy_call", None)
        return callback() if defer is None else defer(callback)

    def communication_backend_name(self) -> str | None:
        return self._communication_backend_name

    def is_triton_supported(self) -> bool:
        return self.triton_supported

    def create_graph(self) -> Any:
        make = None if self.graph_class is None else getattr(self._module, self.graph_class, None)
        return None if make is None else self._call(make)

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> AbstractContextManager[Any]:
        return nullcontext() if graph is None else self._call(self._module.graph, graph, pool=pool, stream=stream)

    def replay_graph(self, graph: Any) -> None:
        if graph is not None:
            graph.replay()

    def is_current_stream_capturing(self) -> bool:
        return self.is_available() and self._module_is("is_current_stream_capturing")

    BFloat16Tensor = _maker(torch.bfloat16)
    ByteTensor = _maker(torch.uint8)
    DoubleTensor = _maker(torch.float64)
    FloatTensor = _maker(torch.float32)
    HalfTensor = _maker(torch.float16)
    IntTensor = _maker(torch.int32)
    LongTensor = _maker(torch.int64)

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._call(super()._torch_pin_memory, tensor)

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return self._call(super()._torch_empty_pinned, tensor, shape)

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self.device_type

    def op_builder_dir(self) -> str:
        return self.builder_package

    def create_op_builder(self, class_name: str) -> OpBuilder:
        return self.get_op_builder(class_name)()

    def get_op_builder(self, class_name: str) -> type[OpBuilder]:
        from op_builder.catalog.registry import find_builder

        if not isinstance(class_name, str):
            raise UnknownOpError(
                f"{class_name!r} of type {type(class_name).__name__} is not the name of an op builder.",
                "Pass a name such as 'CPUAdamBuilder'.",
            )
        return find_builder(class_name, package=self.op_builder_dir())

    def build_extension(self) -> Any:
        from torch.utils.cpp_extension import BuildExtension

        return BuildExtension

    def export_envs(self) -> list[str]:
        return list(self.exported_variables)

    def visible_devices_envs(self) -> list[str]:
        return list(self.visible_devices_variables)

    def set_visible_devices_envs(self, env: MutableMapping[str, str], ids: Sequence[int]) -> None:
        environment.write_visible_devices(env, self.visible_devices_envs(), ids)

    def get_compile_backend(self) -> str:
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        supported = torch.compiler.list_backends(exclude_tags=())
        if backend not in supported:
            raise UnsupportedBackendError(
                f"{backend!r} is not a torch.compile backend for {self.device_name()}; "
                f"supported are {', '.join(sorted(supported))}.",
                "Pass one of these to set_compile_backend().",
            )
        self._compile_backend = backend

    # Reports --------------------------------------------------------------------------------

    def extra_facts(self) -> dict[str, Callable[[], Any]]:
        """Facts to add to ``accelerator.report`` or to replace there, by name."""
        return {}
