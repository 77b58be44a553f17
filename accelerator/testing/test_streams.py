"""Streams, events and graphs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from accelerator.testing import devices, tensor


def test_streams_are_usable(accelerator: Any) -> None:
    """Streams can be created, synchronized and queried; query() is True after synchronize()."""
    for stream in (accelerator.Stream(), accelerator.current_stream(), accelerator.default_stream()):
        stream.synchronize()
        assert stream.query()


def test_current_stream_is_the_default_one(accelerator: Any) -> None:
    """Unless a stream was chosen, current_stream() is default_stream(), on every device."""
    for index in (None, *devices(accelerator)):
        assert accelerator.current_stream(index) == accelerator.default_stream(index)


def test_stream_context_switches(accelerator: Any) -> None:
    """Inside stream(s), current_stream() is s."""
    stream = accelerator.Stream()
    if stream == accelerator.current_stream():
        pytest.skip("a new stream is the current one: the device has one queue")
    with accelerator.stream(stream):
        inside = accelerator.current_stream()
    assert inside == stream


def test_stream_context_restores(accelerator: Any) -> None:
    """After stream(s), the previous stream is current again, also if contexts nest or the body raises."""
    former = accelerator.current_stream()
    outer, inner = accelerator.Stream(), accelerator.Stream()
    with accelerator.stream(outer):
        within = accelerator.current_stream()
        with accelerator.stream(inner):
            pass
        assert accelerator.current_stream() == within
    assert accelerator.current_stream() == former
    with pytest.raises(LookupError), accelerator.stream(outer):
        raise LookupError
    assert accelerator.current_stream() == former


def test_streams_wait_for_each_other(accelerator: Any) -> None:
    """After wait_stream() or wait_event(), a stream sees the finished work of the other one."""
    main, side = accelerator.current_stream(), accelerator.Stream()
    data = tensor(accelerator, [1.0, 2.0])
    side.wait_stream(main)
    with accelerator.stream(side):
        doubled = data * 2
        event = side.record_event()
    main.wait_event(event)
    result = doubled + 1
    accelerator.synchronize()
    assert result.cpu().tolist() == [3.0, 5.0]


def test_events_are_usable(accelerator: Any) -> None:
    """An event can be recorded, waited on and queried; query() is True after synchronize()."""
    event = accelerator.Event()
    event.record()
    event.wait()
    event.synchronize()
    assert event.query()


def test_events_measure_time(accelerator: Any) -> None:
    """elapsed_time() is a time in milliseconds, unless the device uses host timers."""
    try:
        start, end = (accelerator.Event(enable_timing=True) for _ in range(2))
        start.record()
        time.sleep(0.002)
        end.record()
        end.synchronize()
        elapsed_ms = start.elapsed_time(end)
    except Exception as error:
        if accelerator.use_host_timers():
            pytest.skip(f"this device uses host timers; its events raise: {error}")
        raise
    assert isinstance(elapsed_ms, float)
    assert 0 <= elapsed_ms < 60_000


def test_graphs_replay(accelerator: Any) -> None:
    """A graph, captured with a pool and a stream, computes the right values when it is replayed."""
    graph = accelerator.create_graph()
    data = tensor(accelerator, [1.0, 2.0])
    warm = (data * 2 + 1).cpu().tolist()  # initialises libraries, which a capture may not do
    accelerator.synchronize()
    with accelerator.capture_to_graph(graph, pool=None, stream=None):
        result = data * 2 + 1
        is_capturing = accelerator.is_current_stream_capturing()
    accelerator.replay_graph(graph)
    accelerator.synchronize()
    assert result.cpu().tolist() == warm
    if graph is None:  # the device has no graphs; captured work runs at once
        assert not is_capturing
        return
    data.fill_(3.0)
    accelerator.replay_graph(graph)
    accelerator.synchronize()
    runs_at_once = accelerator.is_synchronized_device() and result.cpu().tolist() == warm  # the graph records nothing
    assert runs_at_once or result.cpu().tolist() == [7.0, 7.0]
