"""Streams, events and graphs for a device without them, on which every call is synchronous.

They accept the arguments of the CUDA classes and are context managers, so code with streams runs unchanged. Events
measure the host's time.
"""

# ruff: noqa: ARG002 - the contract's signatures have arguments that this device has no use for

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from accelerator.errors import EventNotRecordedError


class _Finished:
    """Base class: all work is complete, and a ``with`` block does nothing."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def query(self) -> bool:
        """Whether the work is complete; always True."""
        return True

    def synchronize(self) -> None:
        """Return at once."""


class HostEvent(_Finished):
    """A point in host time."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._recorded_ns: int | None = None

    def record(self, stream: object = None) -> None:
        """Record the current time."""
        self._recorded_ns = time.perf_counter_ns()

    def wait(self, stream: object = None) -> None:
        """Return at once."""

    def elapsed_time(self, end_event: HostEvent) -> float:
        """Milliseconds from this event to ``end_event``.

        Raises:
            EventNotRecordedError: one of the two was never recorded.
        """
        if self._recorded_ns is None or end_event._recorded_ns is None:
            raise EventNotRecordedError(
                "elapsed_time() needs two recorded events.", "Call record() on both events first."
            )
        return (end_event._recorded_ns - self._recorded_ns) / 1e6


class HostStream(_Finished):
    """A queue whose work is always complete. All objects of a class are equal: the device has one queue."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.priority = priority

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def record_event(self, event: Any = None) -> Any:
        """Record ``event``, or a new one, and return it."""
        recorded = HostEvent() if event is None else event
        recorded.record(self)
        return recorded

    def wait_event(self, event: Any) -> None:
        """Return at once."""

    def wait_stream(self, stream: object) -> None:
        """Return at once."""


class HostGraph(_Finished):
    """A graph that records nothing: captured work runs immediately, and a replay does nothing."""

    def replay(self) -> None:
        """Do nothing."""

    def reset(self) -> None:
        """Do nothing."""

    def pool(self) -> None:
        """None, which gives a capture a pool of its own."""


class HostStreams:
    """The stream members of an accelerator that has one queue."""

    only_stream: ClassVar[HostStream] = HostStream()

    @property
    def Stream(self) -> Any:
        return type(self.only_stream)

    @property
    def Event(self) -> Any:
        return HostEvent

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext(stream)

    def current_stream(self, device_index: int | None = None) -> Any:
        return self.only_stream

    def default_stream(self, device_index: int | None = None) -> Any:
        return self.only_stream
