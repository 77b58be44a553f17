"""Streams, events and graphs."""

from __future__ import annotations

import time

from accelerator.testing.model import Ability, Checks, does_not_apply, expect, expect_equal, expect_type, needs


class StreamChecks(Checks):
    group = "streams and events"

    @needs(Ability.STREAMS)
    def streams_are_usable(self) -> None:
        """A stream can be made, waited for and queried, and has nothing left to do after synchronize()."""
        for stream in (self.accelerator.Stream(), self.accelerator.current_stream(), self.accelerator.default_stream()):
            stream.synchronize()
            expect_equal("query() after synchronize()", stream.query(), True)

    @needs(Ability.STREAMS)
    def current_stream_is_the_default_one(self) -> None:
        """Where nobody chose a stream, current_stream() is default_stream(), on every device."""
        for index in (None, *self._indices()):
            is_default = self.accelerator.current_stream(index) == self.accelerator.default_stream(index)
            expect(is_default, f"current_stream({index}) equal to default_stream({index})", "another")

    @needs(Ability.STREAMS)
    def stream_context_switches(self) -> None:
        """Inside stream(s), current_stream() is s."""
        former, stream = self.accelerator.current_stream(), self.accelerator.Stream()
        if stream == former:
            does_not_apply("a new stream is the current one: the device has one queue")
        with self.accelerator.stream(stream):
            inside = self.accelerator.current_stream()
        expect(inside == stream, "the given stream inside the context", "the former" if inside == former else "another")

    @needs(Ability.STREAMS)
    def stream_context_restores(self) -> None:
        """After stream(s) the former stream is current again, also when contexts nest and when the body raises."""
        former = self.accelerator.current_stream()
        outer, inner = self.accelerator.Stream(), self.accelerator.Stream()
        with self.accelerator.stream(outer):
            within = self.accelerator.current_stream()
            with self.accelerator.stream(inner):
                pass
            expect(self.accelerator.current_stream() == within, "the outer stream after the inner context", "another")
        expect(self.accelerator.current_stream() == former, "the former stream after the context", "another")
        try:
            with self.accelerator.stream(outer):
                raise LookupError
        except LookupError:
            pass
        expect(self.accelerator.current_stream() == former, "the former stream after an error in the body", "another")

    @needs(Ability.STREAMS, Ability.EVENTS, Ability.TENSORS)
    def streams_wait_for_each_other(self) -> None:
        """After wait_stream() or wait_event(), a stream sees the finished work of the other one."""
        main, side = self.accelerator.current_stream(), self.accelerator.Stream()
        data = self._tensor([1.0, 2.0])
        side.wait_stream(main)
        with self.accelerator.stream(side):
            doubled = data * 2
            event = side.record_event()
        main.wait_event(event)
        result = doubled + 1
        self.accelerator.synchronize()
        expect_equal("values", result.cpu().tolist(), [3.0, 5.0])

    @needs(Ability.EVENTS)
    def events_are_usable(self) -> None:
        """An event can be recorded, waited for and queried, and is done after synchronize()."""
        event = self.accelerator.Event()
        event.record()
        event.wait()
        event.synchronize()
        expect_equal("query() after synchronize()", event.query(), True)

    @needs(Ability.EVENTS)
    def events_measure_time(self) -> str:
        """elapsed_time() is a time in milliseconds, where the device does not leave timing to the host."""
        try:
            start, end = (self.accelerator.Event(enable_timing=True) for _ in range(2))
            start.record()
            time.sleep(0.002)
            end.record()
            end.synchronize()
            elapsed = start.elapsed_time(end)
        except Exception as error:
            if self.accelerator.use_host_timers():
                does_not_apply(f"the host times this device; its events raise: {error}")
            raise
        expect_type("elapsed_time()", elapsed, float)
        expect(0 <= elapsed < 60_000, "0 <= elapsed_time() < 60000", elapsed)
        return f"{elapsed:.2f} ms"


class GraphChecks(Checks):
    group = "graphs"

    @needs(Ability.GRAPHS, Ability.TENSORS)
    def graphs_replay(self) -> str | None:
        """A captured graph computes the right values when it is replayed, also from changed inputs."""
        graph = self._unless_unsupported(self.accelerator.create_graph)
        data = self._tensor([1.0, 2.0])
        warm = data * 2 + 1  # initialises libraries, which a capture may not do
        self.accelerator.synchronize()
        with self.accelerator.capture_to_graph(graph):
            result = data * 2 + 1
        self.accelerator.replay_graph(graph)
        self.accelerator.synchronize()
        expect_equal("values after a replay", result.cpu().tolist(), warm.cpu().tolist())
        data.fill_(3.0)
        self.accelerator.replay_graph(graph)
        self.accelerator.synchronize()
        if self.accelerator.is_synchronized_device() and result.cpu().tolist() == warm.cpu().tolist():
            return "captured work runs at once; the graph records nothing"
        expect_equal("values after a replay with other inputs", result.cpu().tolist(), [7.0, 7.0])
        return None

    @needs(Ability.GRAPHS)
    def graphs_take_pool_and_stream(self) -> None:
        """capture_to_graph() takes the keywords pool and stream."""
        graph = self._unless_unsupported(self.accelerator.create_graph)
        with self.accelerator.capture_to_graph(graph, pool=None, stream=None):
            pass
