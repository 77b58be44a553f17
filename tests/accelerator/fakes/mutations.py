"""One thing at a time that a vendor's device module or accelerator class gets wrong, and the checks that must fail."""

# ruff: noqa: ARG001, ARG002, ARG005 - broken members take the arguments of the sound ones

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import fake_device
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accelerator.npu_accelerator import NPU_Accelerator
from op_builder.catalog.unavailable import UnavailableOpBuilder


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


def _class(*fitting: str, **members: Any) -> Mutation:
    """Replace members of the accelerator's class."""

    @contextmanager
    def apply(device: str) -> Iterator[None]:
        with ExitStack() as stack:
            for name, value in members.items():
                stack.enter_context(mock.patch.object(NPU_Accelerator, name, value, create=True))
            yield

    return Mutation(set(fitting), apply)


def _maker(dtype: torch.dtype, device: str = "npu") -> property:
    return property(lambda self: functools.partial(torch.tensor, dtype=dtype, device=device))


class _Float8Lost(TorchDispatchMode):
    """Conversions to float8 give zeros."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("dtype") is torch.float8_e4m3fn:
            args = (torch.zeros_like(args[0]), *args[1:])
        return function(*args, **kwargs)


@contextmanager
def _float8_is_lost(device: str) -> Iterator[None]:
    with _Float8Lost(), mock.patch.object(NPU_Accelerator, "is_fp8_supported", return_value=True):
        yield


def _without_near_matches(self: Any, name: str) -> Any:
    try:
        return super(NPU_Accelerator, self).get_op_builder(name)
    except Exception:
        raise KeyError(name) from None


class _SaysNothing(UnavailableOpBuilder):
    NAME = "cpu_adam"

    def load(self, verbose: bool = True) -> Any:
        return None


def _silent_if_missing(self: Any, name: str) -> Any:
    return _SaysNothing if name == "CPUAdamBuilder" else super(NPU_Accelerator, self).get_op_builder(name)


def _one_more_variable(self: Any, env: Any, ids: Any) -> None:
    super(NPU_Accelerator, self).set_visible_devices_envs(env, ids)
    env["VISIBLE"] = "all"


def _any_backend(self: Any, backend: str) -> None:
    self._compile_backend = backend


def _empty_pages(self: Any, tensor: Any, align_bytes: int = 1, make_copy: bool = True, match_shape: bool = True) -> Any:
    return tensor.pin_memory() if align_bytes else torch.zeros_like(tensor)


def _state_of_another_type(module: Any) -> Any:
    sound = module.get_rng_state
    return lambda *index: sound(*index) if index else sound().to(torch.int16)


_ONE_LIST = ["ASCEND"]


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


class _NeverDoneStream(fake_device.Stream):
    def query(self) -> bool:
        return False


class _LoneStream(fake_device.Stream):
    def wait_stream(self, stream: Any) -> None:
        raise RuntimeError("streams of this device cannot wait")


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
    "the current device is always the first": _member("current_device", lambda m: lambda: 0, "set_device_round_trips"),
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
    "a method is a number": _class("has_every_member", "snapshot_is_told", memory_snapshot=3),
    "a method answers another name than was set": _class(
        "sets_its_names_when_constructed", communication_backend_name=lambda self: "gloo"
    ),
    "a question is answered by None": _class("answers_yes_or_no", is_triton_supported=lambda self: None),
    "a synchronized device wants device timers": _class(
        "synchronized_device_is_consistent", synchronized=True, use_host_timers=lambda self: False
    ),
    "the communication backend is unknown": _class(
        "communication_backend_is_known",
        "sets_its_names_when_constructed",
        communication_backend_name=lambda self: "carrier",
    ),
    "ranges have no domain": _class("ranges_open_and_close", range_push=lambda self, msg: None),
    "the device count is no number": _class(
        "device_count_is_positive", "index_out_of_range_is_an_error", device_count=lambda self: True
    ),
    "device() is the next device": _class(
        "device_strings_parse", device=lambda self, index=None: torch.device("npu", (index or 0) + 1)
    ),
    "the current device's name has no index": _class("current_device_is_named", current_device_name=lambda self: "npu"),
    "an index out of range ends in an AttributeError": _class(
        "index_out_of_range_is_an_error",
        set_device=lambda self, index: self._module.set_device(index) if index < 2 else self._module.no_such_device(),
    ),
    "a negative index is a device": _class(
        "index_out_of_range_is_an_error", set_device=lambda self, index: self._module.set_device(index)
    ),
    "the capability cannot be had": _member("get_device_capability", lambda m: _fails, "capability_is_told"),
    "random() is nothing": _class("random_is_torch_random", random=lambda self: None),
    "the RNG state is no uint8": _member(
        "get_rng_state", _state_of_another_type, "rng_state_is_bytes_on_the_host", "rng_state_round_trips"
    ),
    "streams are never done": _member("Stream", lambda m: _NeverDoneStream, "streams_are_usable"),
    "the default stream is another each time": _member(
        "default_stream", lambda m: lambda index=None: fake_device.Stream(), "current_stream_is_the_default_one"
    ),
    "streams cannot wait": _member("Stream", lambda m: _LoneStream, "streams_wait_for_each_other"),
    "a counter is no int": _class("counters_are_bytes", total_memory=lambda self, index=None: float(1 << 30)),
    "an older name counts something else": _class(
        "older_names_agree", max_memory_cached=lambda self, index=None: 1 << 40
    ),
    "the snapshot is a number": _member("memory_snapshot", lambda m: lambda: 3, "snapshot_is_told"),
    "emptying the cache does nothing": _member("empty_cache", lambda m: lambda: None, "cache_empties"),
    "the resident set is negative": _class("resident_set_is_told", get_rss=lambda self: -1),
    "float8 is neither yes nor no": _class("type_questions_answer_yes_or_no", is_fp8_supported=lambda self: None),
    "float32 is not the first type": _class(
        "supported_dtypes_agree", supported_dtypes=lambda self: [torch.bfloat16, torch.float16, torch.float32]
    ),
    "float8 is lost": Mutation({"float8_converts"}, _float8_is_lost),
    "amp has no autocast": _member("amp", lambda m: object(), "amp_is_a_module_or_none"),
    "a tensor property is nothing": _class(
        "tensor_properties_are_callable",
        "tensor_properties_make_tensors",
        ByteTensor=property(lambda self: None),
    ),
    "IntTensor makes int64": _class("tensor_properties_make_tensors", IntTensor=_maker(torch.int64)),
    "tensors are made on the first device": _class(
        "tensors_are_made_on_the_current_device", FloatTensor=_maker(torch.float32, "npu:0")
    ),
    "every tensor is the device's": _class("tensors_are_told_apart", on_accelerator=lambda self, tensor: True),
    "pinning takes no keywords": _class(
        "pinning_keeps_the_tensor", "pinning_in_whole_pages", pin_memory=lambda self, tensor: tensor.pin_memory()
    ),
    "whole pages come empty": _class("pinning_in_whole_pages", pin_memory=_empty_pages),
    "no tensor is known to be pinned": _class("pinned_tensors_are_known", is_pinned=lambda self, tensor: False),
    "unpinning loses the values": _class("unpinning_keeps_the_values", unpin_memory=lambda self, t: t * 0 - 1),
    "captures take no pool": _class(
        "graphs_take_pool_and_stream", capture_to_graph=lambda self, graph: self._module.graph(graph)
    ),
    "the package of builders does not import": _class(
        "builder_package_imports",
        "builders_are_found_by_name",
        "unknown_builder_is_an_error",
        "missing_op_has_a_builder_that_says_so",
        builder_package="no_such_package",
    ),
    "a builder is of another class": _class(
        "builders_are_found_by_name",
        create_op_builder=lambda self, name: (
            _SaysNothing if name == "CPUAdamBuilder" else self.get_op_builder(name)
        )(),
    ),
    "no near match is told": _class("unknown_builder_is_an_error", get_op_builder=_without_near_matches),
    "a missing op loads": _class("missing_op_has_a_builder_that_says_so", get_op_builder=_silent_if_missing),
    "the build command is no command": _class("build_extension_is_a_command", build_extension=lambda self: int),
    "the list of variables is shared": _class("variable_names_are_told", export_envs=lambda self: _ONE_LIST),
    "one variable more is written": _class("visible_devices_are_written", set_visible_devices_envs=_one_more_variable),
    "the compile backend is unknown": _class(
        "compile_backend_is_known", "sets_its_names_when_constructed", get_compile_backend=lambda self: "warp"
    ),
    "any compile backend is taken": _class("wrong_compile_backend_is_refused", set_compile_backend=_any_backend),
}
