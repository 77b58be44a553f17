"""Identity, devices, random numbers, streams, events and graphs."""

from __future__ import annotations

import time

import torch

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.detection import structural_faults
from accelerator.errors import describe
from accelerator.testing.model import Checks, does_not_apply, expect, expect_equal, expect_type, fail

_SEED = 20_240_611
_BOUND = "set_device() accepts any number and changes nothing: something else binds the process"


class IdentityChecks(Checks):
    group = "identity"

    def has_every_member(self) -> None:
        """All members of the contract exist, methods as methods and properties as properties."""
        faults = structural_faults(self.accelerator)
        expect(not faults, "no structural fault", "; ".join(faults))

    def sets_its_names_when_constructed(self) -> None:
        """The constructor sets _name, _communication_backend_name and _compile_backend, which the methods return."""
        if not isinstance(self.accelerator, DeepSpeedAccelerator):
            does_not_apply("the class is not a subclass of DeepSpeedAccelerator")
        methods = {
            "_name": lambda: self.accelerator._name,
            "_communication_backend_name": self.accelerator.communication_backend_name,
            "_compile_backend": self.accelerator.get_compile_backend,
        }
        for name, method in methods.items():
            expect(name in vars(self.accelerator), f"the attribute {name} set in __init__", "none")
            expect_equal(name, getattr(self.accelerator, name), method())
        expect_type("_name", self.accelerator._name, str)

    def predicates_return_bools(self) -> None:
        """Every predicate returns a bool, never None; on a synchronized device those that follow from it are True."""
        names = (
            "is_synchronized_device is_triton_supported prefer_triton_grouped_mm is_available "
            "is_current_stream_capturing is_bf16_supported is_fp16_supported is_fp8_supported is_fp64_supported"
        )
        implied = ("use_host_timers", "resolves_data_dependency", "handles_memory_backpressure")
        expect_type("supports_nvtx_domain", getattr(self.accelerator, "supports_nvtx_domain", False), bool)
        for name in (*names.split(), *implied):
            expect_type(f"{name}()", getattr(self.accelerator, name)(), bool)
        if self.accelerator.is_synchronized_device():
            for name in implied:
                expect_equal(f"{name}()", getattr(self.accelerator, name)(), True)

    def communication_backend_is_known(self) -> str:
        """communication_backend_name() is None or a backend of torch.distributed."""
        name = self.accelerator.communication_backend_name()
        if name is None:
            return "the device has no backend"
        expect_type("communication_backend_name()", name, str)
        if not torch.distributed.is_available():
            return f"{name}; this torch lacks torch.distributed, so the name is unchecked"
        known = torch.distributed.Backend.backend_list
        expect(name in known, f"one of {', '.join(known)}", name)
        return str(name)

    def ranges_open_and_close(self) -> None:
        """range_push() and range_pop() take a message, a domain and a category, and nest."""
        self.accelerator.range_push("outer")
        self.accelerator.range_push("inner", domain="conformance", category="check")
        self.accelerator.range_pop(domain="conformance")
        self.accelerator.range_pop()

    def lazy_call_runs_once(self) -> None:
        """On a device that is initialised, lazy_call() has run its callback, once, when it returns."""
        self.accelerator.synchronize()  # initialises the device
        calls: list[int] = []
        self.accelerator.lazy_call(lambda: calls.append(1))
        expect_equal("number of calls", len(calls), 1)


class DeviceChecks(Checks):
    group = "devices"

    def device_count_is_positive(self) -> str:
        """An available accelerator has at least one device."""
        count = self.accelerator.device_count()
        expect_type("device_count()", count, int)
        expect(count >= 1, "device_count() of at least 1", count)
        return f"{count}"

    def device_strings_parse(self) -> str:
        """torch.device parses every device_name(), and device() is the same device."""
        for index in (None, *self._indices()):
            name = self.accelerator.device_name(index)
            expect_type(f"device_name({index})", name, str)
            parsed = torch.device(name)
            expect_type(f"device({index})", self.accelerator.device(index), torch.device)
            expect_equal(f"device({index})", self.accelerator.device(index), parsed)
            expect_equal(f"type of device({index})", parsed.type, self.accelerator.device_name().partition(":")[0])
            # A device without an index in its string is one device, whatever the number.
            expect(parsed.index in (None, index), f"the index {index} or none in {name!r}", parsed.index)
        return str(self.accelerator.device_name())

    def current_device_is_named(self) -> str:
        """current_device() is an int, and current_device_name() its device string."""
        current = self.accelerator.current_device()
        expect_type("current_device()", current, int)
        is_index = current in self._indices() or self._ignores_indices()  # on the host: the launcher's rank
        expect(is_index, f"current_device() below {self.accelerator.device_count()}", current)
        expect_equal(
            "current_device_name()", self.accelerator.current_device_name(), self.accelerator.device_name(current)
        )
        return str(self.accelerator.current_device_name())

    def set_device_round_trips(self) -> None:
        """After set_device(i), current_device() is i, for every device."""
        if self._ignores_indices():
            does_not_apply(_BOUND)
        for index in self._each_device():
            expect_equal(f"current_device() after set_device({index})", self.accelerator.current_device(), index)

    def index_out_of_range_is_an_error(self) -> str:
        """set_device() refuses the index after the last device, and -1."""
        if self._ignores_indices():
            does_not_apply(_BOUND)
        raised = ""
        for outside in (self.accelerator.device_count(), -1):  # torch.cuda takes -1 and does nothing
            try:
                self.accelerator.set_device(outside)
            except (AttributeError, NameError, TypeError) as error:
                fail(f"an error about the index {outside}", describe(error))
            except Exception as error:  # torch's own error differs from device to device
                raised = type(error).__name__
            else:
                fail(f"an error from set_device({outside})", "none")
        return raised

    def synchronize_returns(self) -> None:
        """synchronize() waits for the current device, and for each by its index."""
        for index in (None, *self._indices()):
            self.accelerator.synchronize(*() if index is None else (index,))

    def properties_have_one_type(self) -> None:
        """get_device_properties() and device_capability() return one type for the current and for each device."""
        for name in ("get_device_properties", "device_capability"):
            found = [getattr(self.accelerator, name)(index) for index in (None, *self._indices())]
            expect(len({type(each) for each in found}) == 1, f"one type from {name}()", found)


class RandomNumberChecks(Checks):
    group = "random numbers"

    def random_is_torch_random(self) -> None:
        """random() is the module torch.random."""
        expect(self.accelerator.random() is torch.random, "the module torch.random", self.accelerator.random())

    def rng_state_is_bytes_on_the_host(self) -> None:
        """get_rng_state() is a uint8 CPU tensor, for the current and for each device."""
        for index in (None, *self._indices()):
            state = self.accelerator.get_rng_state(index)
            expect_type(f"get_rng_state({index})", state, torch.Tensor)
            expect_equal("dtype of the state", state.dtype, torch.uint8)
            expect_equal("device of the state", state.device.type, "cpu")

    def rng_state_round_trips(self) -> None:
        """Restoring a generator's state repeats its numbers, on every device."""
        for index in self._each_device():
            for argument in (None, index):
                state = self.accelerator.get_rng_state(argument)
                first, second = self._draw(), self._draw()
                expect(first != second, "other numbers from the second draw", "the same")
                self.accelerator.set_rng_state(state, argument)
                expect(self._draw() == first, f"the same numbers after set_rng_state(..., {argument})", "others")

    def manual_seed_is_reproducible(self) -> None:
        """One seed gives the same numbers each time; another seed gives others."""
        draws = []
        for seed in (_SEED, _SEED, _SEED + 1):
            self.accelerator.manual_seed(seed)
            draws.append(self._draw())
        expect(draws[0] == draws[1], "the same numbers from the same seed", "others")
        expect(draws[0] != draws[2], "other numbers from another seed", "the same")

    def manual_seed_all_seeds_every_device(self) -> None:
        """After manual_seed_all() every device draws the same numbers as after the same call before."""
        for index in self._each_device():
            draws = []
            for _ in range(2):
                self.accelerator.manual_seed_all(_SEED)
                draws.append(self._draw())
            expect(draws[0] == draws[1], f"the same numbers on device {index}", "others")

    def initial_seed_is_the_seed(self) -> None:
        """initial_seed() returns the seed that was passed to manual_seed()."""
        for seed in (_SEED, _SEED + 1):  # one of them is not what an earlier check left
            self.accelerator.manual_seed(seed)
            found = self.accelerator.initial_seed()
            expect_type("initial_seed()", found, int)
            expect_equal("initial_seed()", found, seed)

    def default_generator_is_the_seeded_one(self) -> None:
        """default_generator(i) is the torch.Generator of that device, which manual_seed_all() seeds."""
        for seed in (_SEED, _SEED + 1):
            self.accelerator.manual_seed_all(seed)
            for index in self._indices():
                generator = self.accelerator.default_generator(index)
                expect_type(f"default_generator({index})", generator, torch.Generator)
                expect_equal(f"seed of default_generator({index})", generator.initial_seed(), seed)


class StreamChecks(Checks):
    group = "streams and events"

    def streams_are_usable(self) -> None:
        """Streams can be created, synchronized and queried; query() is True after synchronize()."""
        for stream in (self.accelerator.Stream(), self.accelerator.current_stream(), self.accelerator.default_stream()):
            stream.synchronize()
            expect_equal("query() after synchronize()", stream.query(), True)

    def current_stream_is_the_default_one(self) -> None:
        """Unless a stream was chosen, current_stream() is default_stream(), on every device."""
        for index in (None, *self._indices()):
            is_default = self.accelerator.current_stream(index) == self.accelerator.default_stream(index)
            expect(is_default, f"current_stream({index}) equal to default_stream({index})", "another")

    def stream_context_switches(self) -> None:
        """Inside stream(s), current_stream() is s."""
        former, stream = self.accelerator.current_stream(), self.accelerator.Stream()
        if stream == former:
            does_not_apply("a new stream is the current one: the device has one queue")
        with self.accelerator.stream(stream):
            inside = self.accelerator.current_stream()
        expect(
            inside == stream, "the chosen stream inside the context", "the former" if inside == former else "another"
        )

    def stream_context_restores(self) -> None:
        """After stream(s), the previous stream is current again, also if contexts nest or the body raises."""
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

    def events_are_usable(self) -> None:
        """An event can be recorded, waited on and queried; query() is True after synchronize()."""
        event = self.accelerator.Event()
        event.record()
        event.wait()
        event.synchronize()
        expect_equal("query() after synchronize()", event.query(), True)

    def events_measure_time(self) -> str:
        """elapsed_time() is a time in milliseconds, unless the device uses host timers."""
        try:
            start, end = (self.accelerator.Event(enable_timing=True) for _ in range(2))
            start.record()
            time.sleep(0.002)
            end.record()
            end.synchronize()
            elapsed = start.elapsed_time(end)
        except Exception as error:
            if self.accelerator.use_host_timers():
                does_not_apply(f"this device uses host timers; its events raise: {error}")
            raise
        expect_type("elapsed_time()", elapsed, float)
        expect(0 <= elapsed < 60_000, "0 <= elapsed_time() < 60000", elapsed)
        return f"{elapsed:.2f} ms"


class GraphChecks(Checks):
    group = "graphs"

    def graphs_replay(self) -> str | None:
        """A graph, captured with a pool and a stream, computes the right values when it is replayed."""
        graph = self.accelerator.create_graph()
        data = self._tensor([1.0, 2.0])
        warm = data * 2 + 1  # initialises libraries, which a capture may not do
        self.accelerator.synchronize()
        with self.accelerator.capture_to_graph(graph, pool=None, stream=None):
            result = data * 2 + 1
            is_capturing = self.accelerator.is_current_stream_capturing()
        self.accelerator.replay_graph(graph)
        self.accelerator.synchronize()
        expect(not (is_capturing and graph is None), "is_current_stream_capturing() False without graphs", is_capturing)
        expect_equal("values after a replay", result.cpu().tolist(), warm.cpu().tolist())
        if graph is None:
            return "the device has no graphs; captured work runs at once"
        data.fill_(3.0)
        self.accelerator.replay_graph(graph)
        self.accelerator.synchronize()
        if self.accelerator.is_synchronized_device() and result.cpu().tolist() == warm.cpu().tolist():
            return "captured work runs at once; the graph records nothing"
        expect_equal("values after a replay with other inputs", result.cpu().tolist(), [7.0, 7.0])
        return None
