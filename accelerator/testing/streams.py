"""Streams and events."""

from __future__ import annotations

import time
from typing import Any

from accelerator.testing.model import Ability, Subject, does_not_apply, expect, expect_equal, expect_type, needs


@needs(Ability.STREAMS)
def streams_are_usable(subject: Subject) -> None:
    """A stream can be made, waited for and asked, and has nothing left to do after synchronize()."""
    for stream in (
        subject.accelerator.Stream(),
        subject.accelerator.current_stream(),
        subject.accelerator.default_stream(),
    ):
        stream.synchronize()
        expect_equal("query() after synchronize()", stream.query(), True)


@needs(Ability.STREAMS)
def current_stream_is_the_default_one(subject: Subject) -> None:
    """Where nobody chose a stream, current_stream() is default_stream(), on every device."""
    for index in (None, *subject.indices()):
        expect(
            subject.accelerator.current_stream(index) == subject.accelerator.default_stream(index),
            f"current_stream({index}) equal to default_stream({index})",
            "another",
        )


@needs(Ability.STREAMS)
def stream_context_switches(subject: Subject) -> None:
    """Inside stream(s), current_stream() is s."""
    accelerator = subject.accelerator
    former, stream = accelerator.current_stream(), accelerator.Stream()
    if stream == former:
        does_not_apply("a new stream is the current one: the device has one queue")
    with accelerator.stream(stream):
        inside = accelerator.current_stream()
    expect(inside == stream, "the given stream inside the context", "the former" if inside == former else "another")


@needs(Ability.STREAMS)
def stream_context_restores(subject: Subject) -> None:
    """After stream(s) the former stream is current again, also when contexts nest and when the body raises."""
    accelerator = subject.accelerator
    former = accelerator.current_stream()
    outer, inner = accelerator.Stream(), accelerator.Stream()
    with accelerator.stream(outer):
        within = accelerator.current_stream()
        with accelerator.stream(inner):
            pass
        expect(accelerator.current_stream() == within, "the outer stream after the inner context", "another")
    expect(accelerator.current_stream() == former, "the former stream after the context", "another")
    try:
        with accelerator.stream(outer):
            raise LookupError
    except LookupError:
        pass
    expect(accelerator.current_stream() == former, "the former stream after an error in the body", "another")


@needs(Ability.STREAMS, Ability.EVENTS, Ability.TENSORS)
def streams_wait_for_each_other(subject: Subject) -> None:
    """Work that one stream hands to another by wait_stream() or an event is done when that one goes on."""
    accelerator = subject.accelerator
    main, side = accelerator.current_stream(), accelerator.Stream()
    data = subject.tensor([1.0, 2.0])
    side.wait_stream(main)
    with accelerator.stream(side):
        doubled = data * 2
        event = side.record_event()
    main.wait_event(event)
    result = doubled + 1
    accelerator.synchronize()
    expect_equal("values", result.cpu().tolist(), [3.0, 5.0])


@needs(Ability.EVENTS)
def events_are_usable(subject: Subject) -> None:
    """An event can be recorded, waited for and asked, and is done after synchronize()."""
    event = subject.accelerator.Event()
    event.record()
    event.wait()
    event.synchronize()
    expect_equal("query() after synchronize()", event.query(), True)


@needs(Ability.EVENTS)
def events_tell_time(subject: Subject) -> str:
    """elapsed_time() is a time in milliseconds, where the device does not leave timing to the host."""
    try:
        elapsed = _elapsed(subject)
    except Exception as error:
        if subject.accelerator.use_host_timers():
            does_not_apply(f"the host times this device; its events say: {error}")
        raise
    expect_type("elapsed_time()", elapsed, float)
    expect(0 <= elapsed < 60_000, "0 <= elapsed_time() < 60000", elapsed)
    return f"{elapsed:.2f} ms"


def _elapsed(subject: Subject) -> Any:
    start, end = (subject.accelerator.Event(enable_timing=True) for _ in range(2))
    start.record()
    time.sleep(0.002)
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


CHECKS = (
    streams_are_usable,
    current_stream_is_the_default_one,
    stream_context_switches,
    stream_context_restores,
    streams_wait_for_each_other,
    events_are_usable,
    events_tell_time,
)
