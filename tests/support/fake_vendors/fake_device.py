"""Device modules as vendors bring them, over the device made of host memory in device.cpp.

It has what ``torch.cuda`` has, as far as vendors follow it: two devices, generators that come into being
with the device, streams that a context switches, events, an allocator that counts and keeps freed memory,
graphs that record operators. Where a vendor's module differs, his package beside this file says so.
"""

# ruff: noqa: ARG001, ARG002, ARG005 - fakes take the arguments of what they stand for

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

TOTAL_BYTES = 1 << 30

# Page-locked memory of torch's own device types goes through hooks that are compiled into torch.
LACKS = {
    "xpu": {"pinned-memory": "this torch is built without the hooks of XPU"},
    "xpu.native": {
        "pinned-memory": "this torch is built without the hooks of XPU",
        "child-processes": "the fake torch is made in this process alone",
    },
    "mps": {
        "pinned-memory": "this torch is built without the hooks of MPS",
        "child-processes": "the fake torch.mps is made in this process alone",
    },
}
"""What a fake cannot do, by device and ability, with the reason."""

MOST_DEVICES = 2


def visible_devices(variable: str, most: int) -> int:
    """How many devices that variable leaves; all where it is unset."""
    setting = None if "FAKE_DEVICE_IGNORES_VISIBILITY" in os.environ else os.environ.get(variable)
    return most if setting is None else min(most, len([part for part in setting.split(",") if part]))


def native() -> Any:
    """The functions of device.cpp, compiled once into the cache."""
    from op_builder import load_inline

    text = (Path(__file__).parent / "device.cpp").read_text()
    return load_inline("accelerator_fake_device", text)


class Stream:
    """A queue whose work is done at once; equal only to itself."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.device, self.priority = device, priority

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...


class Event:
    """A point in time; one that was made without timing has no time to tell."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.enable_timing, self.blocking = enable_timing, blocking
        self.recorded_s: float | None = None

    def record(self, stream: Any = None) -> None:
        self.recorded_s = time.perf_counter()

    def synchronize(self) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        if not (self.enable_timing and end.enable_timing and self.recorded_s and end.recorded_s):
            raise RuntimeError("Both events must be recorded with timing enabled")
        return (end.recorded_s - self.recorded_s) * 1e3


class Graph:
    """Operators with their arguments, and the tensors that their results went into."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def replay(self) -> None:
        for function, arguments, keywords, result in self.calls:
            again = function(*arguments, **keywords)
            if isinstance(result, torch.Tensor) and again is not result:
                result.copy_(again)


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.graph.calls.append((function, args, kwargs or {}, result))
        return result


@contextmanager
def graph(graph: Graph, pool: Any = None, stream: Any = None) -> Iterator[None]:
    with _Recorder(graph):
        yield


def device_module(name: str, count: int, graph_class: str) -> ModuleType:
    """The device module ``torch.<name>``, with its kernels installed; ``count`` devices."""
    device = native()
    device.install(name, count)
    generators = tuple(torch.Generator() for _ in range(count))
    held = [0] * count  # bytes, freed ones included
    for index, generator in enumerate(generators):
        device.set_generator(index, generator)
    defaults = [Stream(index) for index in range(count)]
    current = list(defaults)

    def number(index: Any = None) -> int:
        if index is None:
            return int(device.current_device())
        return index if isinstance(index, int) else (torch.device(index).index or 0)

    module = ModuleType(f"torch.{name}")

    def define(**members: Any) -> None:
        vars(module).update(members)

    @contextmanager
    def stream(chosen: Any) -> Iterator[None]:
        former = current[number()]
        current[number()] = chosen
        try:
            yield
        finally:
            current[number()] = former

    def seed_all(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(seed)

    def set_rng_state(state: torch.Tensor, index: Any = None) -> None:
        generators[number(index)].set_state(state)

    def memory_stats(index: Any = None) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": module.memory_allocated(index),
            "allocated_bytes.all.peak": module.max_memory_allocated(index),
            "reserved_bytes.all.current": module.memory_reserved(index),
            "reserved_bytes.all.peak": module.max_memory_reserved(index),
        }

    def reserved(index: Any = None) -> int:
        held[number(index)] = max(held[number(index)], module.memory_allocated(index))
        return held[number(index)]

    def empty_cache() -> None:
        held[:] = [int(device.memory(index, False)) for index in range(count)]

    def lazy_init() -> None:
        module.default_generators = generators

    def lazy_call(callback: Callable[[], Any]) -> None:
        callback()

    define(
        is_available=lambda: count > 0,
        device_count=lambda: count,
        current_device=number,
        set_device=lambda index: device.set_device(number(index)) if number(index) >= 0 else None,  # as torch.cuda
        synchronize=lambda index=None: None,
        is_initialized=lambda: True,
        init=lazy_init,
        _lazy_init=lazy_init,
        _lazy_call=lazy_call,
        _is_in_bad_fork=lambda: False,
        get_device_properties=lambda index=None: SimpleNamespace(name=f"Fake {name}", total_memory=TOTAL_BYTES),
        get_device_capability=lambda index=None: (1, 0),
        default_generators=(),
        get_rng_state=lambda index=None: generators[number(index)].get_state(),
        set_rng_state=set_rng_state,
        manual_seed=lambda seed: generators[number()].manual_seed(seed),
        manual_seed_all=seed_all,
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
        graph=graph,
        **{graph_class: Graph},
    )
    return module


def install_vendor(name: str, *, visible: str, backend: str, graph_class: str, most: int = MOST_DEVICES) -> ModuleType:
    """What importing a vendor's package does: torch gets the device, torch.distributed its backend."""
    torch.utils.rename_privateuse1_backend(name)
    module = device_module(name, visible_devices(visible, most), graph_class)
    torch._register_device_module(name, module)
    torch.utils.generate_methods_for_privateuse1_backend(unsupported_dtype=None)
    register_backend(backend, name)
    return module


def install_xpu() -> None:
    """What IPEX makes of torch.xpu: a device with kernels. Torch has a dispatch key for it, so nothing is renamed."""
    module = device_module("xpu", visible_devices("ZE_AFFINITY_MASK", MOST_DEVICES), "XPUGraph")
    module.init()
    del module.default_stream  # torch.xpu has none
    vars(torch.xpu).update({key: value for key, value in vars(module).items() if not key.startswith("__")})


def install_xpu_without_ipex() -> None:
    """A torch built with XPU, where IPEX is not installed."""
    install_xpu()
    torch.version.xpu = "20250302"
    sys.modules["intel_extension_for_pytorch"] = None  # type: ignore[assignment]


def install_mps() -> None:
    """A torch with torch.mps: one device, one queue, no peaks, memory under names of its own."""
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


def register_backend(backend: str, device: str) -> None:
    """A communication backend that nobody ever starts."""

    def start(*arguments: Any) -> Any:
        raise RuntimeError(f"the fake {backend} communicates with nobody")

    if not hasattr(torch.distributed.Backend, backend.upper()):
        torch.distributed.Backend.register_backend(backend, start, devices=[device])
