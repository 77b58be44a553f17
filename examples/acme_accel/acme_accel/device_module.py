"""A torch device module, like a vendor's ``torch.acme``, implemented on the CPU.

A card is a file ``acme0``, ``acme1`` ... in ``/dev``, where its driver would put it; ``ACME_DEVICE_DIR`` names
another directory. ``ACME_VISIBLE_DEVICES`` chooses among them.
"""

# ruff: noqa: ARG001 - callers pass the arguments of torch's device modules, which the CPU has no use for

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch

from accelerator.host_streams import HostEvent as Event
from accelerator.host_streams import HostStream

__all__ = ["Event", "Stream"]


class Stream(HostStream):
    """A queue, equal only to itself. The CPU's work is done when a call returns."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


_state = SimpleNamespace(device=0, stream=Stream(), peak=0)
_waiting: dict[int, torch.Generator] = {}
_default_stream = _state.stream


def _directory() -> Path:
    return Path(os.environ.get("ACME_DEVICE_DIR") or "/dev")


def unavailable_reason() -> str | None:
    """Why no card can be used, or None."""
    if not list(_directory().glob("acme[0-9]*")):
        return f"{_directory() / 'acme0'} does not exist: no card is installed, or its driver is not loaded"
    return None if device_count() else "ACME_VISIBLE_DEVICES names no card"


def device_count() -> int:
    cards = sorted(path.name.removeprefix("acme") for path in _directory().glob("acme[0-9]*"))
    visible = os.environ.get("ACME_VISIBLE_DEVICES")
    return len(cards if visible is None else set(cards).intersection(visible.split(",")))


def is_available() -> bool:
    return unavailable_reason() is None


def current_device() -> int:
    return int(_state.device)


def set_device(device: int) -> None:
    if not 0 <= device < device_count():
        raise ValueError(f"Acme card {device} does not exist; the number of cards is {device_count()}.")
    if device != _state.device:  # the CPU has one generator: it takes the state of the card's own
        state = _generator(device).get_state()
        _waiting.setdefault(_state.device, torch.Generator()).set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(state)
        _state.device = device


def synchronize(device: int | None = None) -> None:
    """Does nothing: the work of the CPU is done."""


def get_device_properties(device: int) -> Any:
    return SimpleNamespace(name="Acme demonstration on the CPU", total_memory=psutil.virtual_memory().total)


# Random numbers: a generator for each card. The current card's is the CPU's; others keep their state.


def _generator(device: int | None) -> torch.Generator:
    if device is None or device == _state.device:
        return torch.default_generator
    return _waiting.setdefault(device, torch.Generator())


def __getattr__(name: str) -> Any:
    if name != "default_generators":
        raise AttributeError(name)
    return tuple(_generator(device) for device in range(device_count()))


def manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for device in range(device_count()):
        _generator(device).manual_seed(seed)


def initial_seed() -> int:
    return torch.default_generator.initial_seed()


def get_rng_state(device: int | None = None) -> torch.Tensor:
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: int | None = None) -> None:
    _generator(device).set_state(new_state)


# Streams: a queue is always empty.


def current_stream(device: int | None = None) -> Any:
    return _state.stream


def default_stream(device: int | None = None) -> Any:
    return _default_stream


@contextmanager
def stream(stream: Any) -> Iterator[Any]:
    before = _state.stream
    _state.stream = before if stream is None else stream
    try:
        yield stream
    finally:
        _state.stream = before


# Memory: the process's own. A peak between two queries is not seen; a real allocator counts.


def memory_allocated(device: int | None = None) -> int:
    size = int(psutil.Process().memory_info().rss)
    _state.peak = max(_state.peak, size)
    return size


def max_memory_allocated(device: int | None = None) -> int:
    memory_allocated()
    return int(_state.peak)


memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated


def reset_peak_memory_stats(device: int | None = None) -> None:
    _state.peak = 0


def memory_stats(device: int | None = None) -> dict[str, int]:
    current, peak = memory_allocated(), max_memory_allocated()
    return {"allocated_bytes.all.current": current, "allocated_bytes.all.peak": peak}


def mem_get_info(device: int | None = None) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def empty_cache() -> None:
    """Does nothing: there is no cache."""
