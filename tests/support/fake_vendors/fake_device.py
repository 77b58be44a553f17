"""Device modules like those of vendors, over the device in host memory of device.cpp.

They have the parts of ``torch.cuda`` that vendors copy: two devices, generators that the first use creates, streams,
events, an allocator that counts and caches memory, and graphs that record operators. The packages in this directory
add what differs by vendor.
"""

# ruff: noqa: ARG005 - fakes take the arguments of what they stand for

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accelerator.host_streams import HostEvent, HostStream

TOTAL_BYTES = 1 << 30

MOST_DEVICES = 2

SELECTED = {
    "xpu": "not test_pinned_memory",  # this torch is built without the device's hooks for page-locked memory
    "mps": "not test_pinned_memory and not honoured",  # only this process has the fake device module
}
"""The tests that apply to a fake, as pytest's option ``-k``."""


def visible_devices(variable: str, most: int) -> int:
    """The number of devices that the variable makes visible; all if it is unset."""
    setting = os.environ.get(variable)
    return most if setting is None else min(most, len([part for part in setting.split(",") if part]))


def native() -> Any:
    """The functions of device.cpp, compiled once into the cache."""
    from op_builder import load_inline

    text = (Path(__file__).parent / "device.cpp").read_text()
    return load_inline("accelerator_fake_device", text)


class Stream(HostStream):
    """A queue whose work is done at once; equal only to itself."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Event(HostEvent):
    """As a device's: without ``enable_timing``, elapsed_time() fails."""

    def __init__(self, enable_timing: bool = False, **options: bool) -> None:
        super().__init__(enable_timing, **options)
        self.enable_timing = enable_timing

    def elapsed_time(self, end_event: Any) -> float:
        if not (self.enable_timing and end_event.enable_timing):
            raise RuntimeError("Both events must be created with timing enabled")
        return super().elapsed_time(end_event)


class Graph(TorchDispatchMode):
    """Operators with their arguments, and the tensors that their results went into; as a context, it records them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for function, arguments, keywords, result in self.calls:
            again = function(*arguments, **keywords)
            if isinstance(result, torch.Tensor) and again is not result:
                result.copy_(again)


def device_module(name: str, count: int, graph_class: str) -> ModuleType:
    """The device module ``torch.<name>``, with its kernels installed; ``count`` devices."""
    device = native()
    device.install(name, count)
    generators = tuple(torch.Generator() for _ in range(count))
    reserved_bytes = [0] * count  # bytes, freed ones included
    for index, generator in enumerate(generators):
        device.set_generator(index, generator)
    defaults = [Stream(index) for index in range(count)]
    current = list(defaults)

    def number(index: Any = None) -> int:
        if index is None:
            return int(device.current_device())
        return index if isinstance(index, int) else (torch.device(index).index or 0)

    module = ModuleType(f"torch.{name}")

    @contextmanager
    def stream(chosen: Any) -> Iterator[None]:
        former = current[number()]
        current[number()] = chosen
        try:
            yield
        finally:
            current[number()] = former

    def memory_stats(index: Any = None) -> dict[str, int]:
        return {
            f"{kind}_bytes.all.{value}": getattr(module, f"{prefix}memory_{kind}")(index)
            for kind in ("allocated", "reserved")
            for value, prefix in (("current", ""), ("peak", "max_"))
        }

    def reserved(index: Any = None) -> int:
        reserved_bytes[number(index)] = max(reserved_bytes[number(index)], module.memory_allocated(index))
        return reserved_bytes[number(index)]

    def empty_cache() -> None:
        reserved_bytes[:] = [int(device.memory(index, False)) for index in range(count)]

    def initialise() -> None:
        module.default_generators = generators

    vars(module).update(
        is_available=lambda: count > 0,
        device_count=lambda: count,
        current_device=number,
        set_device=lambda index: device.set_device(number(index)) if number(index) >= 0 else None,  # as torch.cuda
        synchronize=lambda index=None: None,
        is_initialized=lambda: True,
        init=initialise,
        _lazy_init=initialise,
        _lazy_call=lambda callback: callback(),
        _is_in_bad_fork=lambda: False,
        get_device_properties=lambda index=None: SimpleNamespace(name=f"Fake {name}", total_memory=TOTAL_BYTES),
        get_device_capability=lambda index=None: (1, 0),
        default_generators=(),
        get_rng_state=lambda index=None: generators[number(index)].get_state(),
        set_rng_state=lambda state, index=None: generators[number(index)].set_state(state),
        manual_seed=lambda seed: generators[number()].manual_seed(seed),
        manual_seed_all=lambda seed: [generator.manual_seed(seed) for generator in generators],
        initial_seed=lambda: generators[number()].initial_seed(),
        Stream=Stream,
        Event=Event,
        stream=stream,
        set_stream=lambda chosen: current.__setitem__(number(), chosen),
        current_stream=lambda index=None: current[number(index)],
        default_stream=lambda index=None: defaults[number(index)],
        empty_cache=empty_cache,
        memory_allocated=lambda index=None: int(device.memory(number(index), False)),
        max_memory_allocated=lambda index=None: int(device.memory(number(index), True)),
        memory_reserved=reserved,
        max_memory_reserved=lambda index=None: max(reserved(index), int(device.memory(number(index), True))),
        reset_peak_memory_stats=lambda index=None: device.reset_peak(number(index)),
        memory_stats=memory_stats,
        memory_snapshot=list,
        mem_get_info=lambda index=None: (TOTAL_BYTES - module.memory_allocated(index), TOTAL_BYTES),
        is_bf16_supported=lambda: True,
        amp=SimpleNamespace(__name__=f"torch.{name}.amp", autocast=torch.autocast),
        graph=lambda graph, pool=None, stream=None: graph,
        is_current_stream_capturing=lambda: False,
        **{graph_class: Graph},
    )
    return module


def install_vendor(name: str, *, visible: str, backend: str, graph_class: str, most: int = MOST_DEVICES) -> ModuleType:
    """Register the device with torch and its backend with torch.distributed, as a vendor's package does."""
    torch.utils.rename_privateuse1_backend(name)
    module = device_module(name, visible_devices(visible, most), graph_class)
    torch._register_device_module(name, module)
    torch.utils.generate_methods_for_privateuse1_backend(unsupported_dtype=None)
    if not hasattr(torch.distributed.Backend, backend.upper()):
        torch.distributed.Backend.register_backend(backend, lambda *_: None, devices=[name])  # no test starts it
    return module


def install_xpu() -> None:
    """Give torch.xpu kernels, as IPEX does. Torch has a dispatch key for it, so nothing is renamed."""
    module = device_module("xpu", visible_devices("ZE_AFFINITY_MASK", MOST_DEVICES), "XPUGraph")
    module.init()
    del module.default_stream  # torch.xpu has none
    vars(torch.xpu).update({key: value for key, value in vars(module).items() if not key.startswith("__")})


def install_mps() -> None:
    """Make torch.mps work: one device, one queue, no peaks, other names for memory."""
    whole = device_module("mps", 1, "Graph")
    vars(torch.mps).update(
        is_available=whole.is_available,
        device_count=whole.device_count,
        current_allocated_memory=whole.memory_allocated,
        driver_allocated_memory=whole.memory_reserved,
        recommended_max_memory=lambda: TOTAL_BYTES,
        synchronize=lambda: None,
        empty_cache=whole.empty_cache,
        get_rng_state=lambda device="mps": whole.get_rng_state(0),
        set_rng_state=lambda state, device="mps": whole.set_rng_state(state, 0),
        manual_seed=whole.manual_seed,
        _get_default_mps_generator=lambda: (whole.init(), whole.default_generators[0])[1],
        _is_in_bad_fork=lambda: False,
        Event=Event,
    )
