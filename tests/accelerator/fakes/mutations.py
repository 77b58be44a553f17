"""One thing at a time that a vendor's device module gets wrong, and the checks that must fail for it."""

# ruff: noqa: ARG001, ARG002, ARG005 - broken members take the arguments of the sound ones

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import fake_device
import torch


@dataclass(frozen=True)
class Mutation:
    """``fitting`` are the checks that fail, and no others; ``apply(name)`` breaks ``torch.<name>`` for a while."""

    fitting: set[str]
    apply: Callable[[str], AbstractContextManager[Any]]


def _member(name: str, make: Callable[[Any], Any], *fitting: str) -> Mutation:
    """Replace one member of the device module by ``make(module)``."""

    @contextmanager
    def apply(device: str) -> Iterator[None]:
        module = getattr(torch, device)
        sound = module.current_stream()
        with mock.patch.object(module, name, make(module)):
            yield
        module.set_stream(sound)

    return Mutation(set(fitting), apply)


def _never_back(module: Any) -> Any:
    @contextmanager
    def stream(chosen: Any) -> Iterator[None]:
        module.set_stream(chosen)
        yield

    return stream


def _back_unless_raising(module: Any) -> Any:
    @contextmanager
    def stream(chosen: Any) -> Iterator[None]:
        former = module.current_stream()
        module.set_stream(chosen)
        yield  # an error in the body passes by what follows
        module.set_stream(former)

    return stream


@contextmanager
def _nowhere(stream: Any) -> Iterator[None]:
    yield


def _slower_by(module: Any) -> Any:
    sound = module.max_memory_allocated
    return lambda index=None: max(0, sound(index) - (1 << 20))


def _fails(*arguments: Any) -> Any:
    raise OSError("the driver is not there")


def _wrong_products(device: str) -> Any:
    @contextmanager
    def apply() -> Iterator[None]:
        library = torch.library.Library("aten", "IMPL")
        library.impl("mm", lambda left, right: left.new_zeros(left.shape[0], right.shape[1]), "PrivateUse1")
        try:
            yield
        finally:
            library._destroy()

    return apply()


class _TimelessEvent(fake_device.Event):
    def elapsed_time(self, end: Any) -> float:
        raise RuntimeError("no timing")


class _NeverDoneEvent(fake_device.Event):
    def query(self) -> bool:
        return False


class _ForgetfulGraph(fake_device.Graph):
    def replay(self) -> None:
        return None


def _first_device_alone(module: Any) -> Any:
    return lambda seed: module.default_generators[0].manual_seed(seed)


MUTATIONS = {
    "the RNG state is not restored": _member("set_rng_state", lambda m: lambda *a: None, "rng_state_round_trips"),
    "the initial seed is another": _member("initial_seed", lambda m: lambda: 1, "initial_seed_is_the_seed"),
    "the seed is ignored": _member(
        "manual_seed", lambda m: lambda seed: None, "manual_seed_is_reproducible", "initial_seed_is_the_seed"
    ),
    "one device alone is seeded": _member(
        "manual_seed_all",
        _first_device_alone,
        "manual_seed_all_seeds_every_device",
        "default_generator_is_the_seeded_one",
    ),
    "the default generators are others": _member(
        "default_generators", lambda m: (torch.Generator(), torch.Generator()), "default_generator_is_the_seeded_one"
    ),
    "the peak lies below the present value": _member("max_memory_allocated", _slower_by, "peak_covers_current"),
    "the peak forgets": _member("max_memory_allocated", lambda m: m.memory_allocated, "peak_remembers_what_was_freed"),
    "resetting the peak does nothing": _member(
        "reset_peak_memory_stats", lambda m: lambda index=None: None, "resets_lower_the_peaks"
    ),
    "allocations are not counted": _member("memory_allocated", lambda m: lambda index=None: 0, "allocation_is_seen"),
    "more memory is free than there is": _member(
        "mem_get_info", lambda m: lambda index=None: (1 << 40, 1 << 40), "total_covers_available"
    ),
    "the statistics are a list": _member("memory_stats", lambda m: lambda index=None: [], "statistics_are_told"),
    "the stream context never goes back": _member("stream", _never_back, "stream_context_restores"),
    "the stream context forgets on an error": _member("stream", _back_unless_raising, "stream_context_restores"),
    "the stream context switches nothing": _member("stream", lambda m: _nowhere, "stream_context_switches"),
    "the events tell no time": _member("Event", lambda m: _TimelessEvent, "events_tell_time"),
    "the events are never done": _member("Event", lambda m: _NeverDoneEvent, "events_are_usable"),
    "any index is a device": _member(
        "set_device",
        lambda m: lambda index, sound=m.set_device: sound(index % 2),
        "index_out_of_range_is_an_error",
    ),
    "the current device is always the first": _member(
        "current_device", lambda m: lambda: 0, "set_device_round_trips", "rng_state_round_trips"
    ),
    "a device has no record": _member(
        "get_device_properties",
        lambda m: _fails,
        "properties_are_told",
        "counters_are_bytes",
        "total_covers_available",
    ),
    "synchronizing fails by index": _member(
        "synchronize", lambda m: lambda index=None: _fails() if index else None, "synchronize_returns"
    ),
    "deferred calls never run": _member("_lazy_call", lambda m: lambda callback: None, "lazy_call_runs_once"),
    "replaying a graph does nothing": _member("NPUGraph", lambda m: _ForgetfulGraph, "graphs_replay"),
    "products are wrong": Mutation({"supported_dtypes_compute"}, _wrong_products),
    "the visible-devices variable is ignored": Mutation(
        {"visible_devices_are_honoured"}, lambda device: mock.patch.dict(os.environ, FAKE_DEVICE_IGNORES_VISIBILITY="1")
    ),
}
