"""Single faults of a device module or an accelerator class, and the checks that must fail."""

# ruff: noqa: ARG001, ARG002, ARG005 - broken members take the arguments of the sound ones

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accelerator.npu_accelerator import NPU_Accelerator
from op_builder.catalog.unavailable import UnavailableOpBuilder
from tests.support.fake_vendors import fake_device


@dataclass(frozen=True)
class Mutation:
    """``failing`` names all checks that fail; ``apply(name)`` is a context with a broken ``torch.<name>``."""

    failing: str
    apply: Callable[[str], AbstractContextManager[Any]]


def _member(failing: str, name: str, make: Callable[[Any], Any]) -> Mutation:
    """Replace one member of the device module with ``make(module)``."""

    @contextmanager
    def apply(device: str) -> Iterator[None]:
        module = getattr(torch, device)
        sound = module.current_stream()
        with mock.patch.object(module, name, make(module)):
            yield
        module.set_stream(sound)

    return Mutation(failing, apply)


def _class(failing: str, **members: Any) -> Mutation:
    """Replace members of the accelerator's class."""

    @contextmanager
    def apply(device: str) -> Iterator[None]:
        with ExitStack() as stack:
            for name, value in members.items():
                stack.enter_context(mock.patch.object(NPU_Accelerator, name, value, create=True))
            yield

    return Mutation(failing, apply)


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


class _SilentBuilder(UnavailableOpBuilder):
    NAME = "cpu_adam"

    def load(self, verbose: bool = True) -> Any:
        return None


def _get_silent_builder(self: Any, name: str) -> Any:
    return _SilentBuilder if name == "CPUAdamBuilder" else super(NPU_Accelerator, self).get_op_builder(name)


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


def _back_without_error(module: Any) -> Any:
    @contextmanager
    def stream(chosen: Any) -> Iterator[None]:
        former = module.current_stream()
        module.set_stream(chosen)
        yield
        module.set_stream(former)

    return stream


@contextmanager
def _nowhere(stream: Any) -> Iterator[None]:
    yield


def _lower_peak(module: Any) -> Any:
    sound = module.max_memory_allocated
    return lambda index=None: max(0, sound(index) - (1 << 20))


def _fails(*arguments: Any) -> Any:
    raise OSError("no driver")


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


def _broken(cls: type, **members: Any) -> Callable[[Any], type]:
    """A subclass with some members replaced, whatever the device module."""
    return lambda module: type("Broken", (cls,), members)


def _first_device_alone(module: Any) -> Any:
    return lambda seed: module.default_generators[0].manual_seed(seed)


MUTATIONS = [
    _member("rng_state_round_trips", "set_rng_state", lambda m: lambda *a: None),
    _member("initial_seed_is_the_seed", "initial_seed", lambda m: lambda: 1),
    _member("manual_seed_is_reproducible initial_seed_is_the_seed", "manual_seed", lambda m: lambda seed: None),
    _member(
        "manual_seed_all_seeds_every_device default_generator_is_the_seeded_one", "manual_seed_all", _first_device_alone
    ),
    _member(
        "default_generator_is_the_seeded_one", "default_generators", lambda m: (torch.Generator(), torch.Generator())
    ),
    _member("peak_covers_current", "max_memory_allocated", _lower_peak),
    _member("peak_remembers_what_was_freed", "max_memory_allocated", lambda m: m.memory_allocated),
    _member("resets_lower_the_peaks", "reset_peak_memory_stats", lambda m: lambda index=None: None),
    _member("allocation_is_counted", "memory_allocated", lambda m: lambda index=None: 0),
    _member("total_covers_available", "mem_get_info", lambda m: lambda index=None: (1 << 40, 1 << 40)),
    _member("statistics_are_a_dict", "memory_stats", lambda m: lambda index=None: []),
    _member("stream_context_restores", "stream", _never_back),
    _member("stream_context_restores", "stream", _back_without_error),
    _member("stream_context_switches", "stream", lambda m: _nowhere),
    _member("events_measure_time", "Event", _broken(fake_device.Event, elapsed_time=_fails)),
    _member("events_are_usable", "Event", _broken(fake_device.Event, query=lambda self: False)),
    _member("set_device_round_trips", "current_device", lambda m: lambda: 0),
    _member(
        "properties_have_one_type counters_are_bytes total_covers_available", "get_device_properties", lambda m: _fails
    ),
    _member("synchronize_returns", "synchronize", lambda m: lambda index=None: _fails() if index else None),
    _member("lazy_call_runs_once", "_lazy_call", lambda m: lambda callback: None),
    _member("graphs_replay", "NPUGraph", _broken(fake_device.Graph, replay=lambda self: None)),
    Mutation("supported_dtypes_compute", _wrong_products),
    Mutation(
        "visible_devices_are_honoured", lambda device: mock.patch.dict(os.environ, FAKE_DEVICE_IGNORES_VISIBILITY="1")
    ),
    _class("has_every_member snapshot_is_a_collection", memory_snapshot=3),
    _class("sets_its_names_when_constructed", communication_backend_name=lambda self: "gloo"),
    _class("answers_yes_or_no", is_triton_supported=lambda self: None),
    _class("synchronized_device_is_consistent", synchronized=True, use_host_timers=lambda self: False),
    _class(
        "communication_backend_is_known sets_its_names_when_constructed",
        communication_backend_name=lambda self: "carrier",
    ),
    _class("ranges_open_and_close", range_push=lambda self, msg: None),
    _class("device_count_is_positive index_out_of_range_is_an_error", device_count=lambda self: True),
    _class("device_strings_parse", device=lambda self, index=None: torch.device("npu", (index or 0) + 1)),
    _class("current_device_is_named", current_device_name=lambda self: "npu"),
    _class("index_out_of_range_is_an_error", set_device=lambda self, index: self._module.set_device(index)),
    _member("capabilities_have_one_type", "get_device_capability", lambda m: _fails),
    _class("random_is_torch_random", random=lambda self: None),
    _member("rng_state_is_bytes_on_the_host rng_state_round_trips", "get_rng_state", _state_of_another_type),
    _member("streams_are_usable", "Stream", _broken(fake_device.Stream, query=lambda self: False)),
    _member("current_stream_is_the_default_one", "default_stream", lambda m: lambda index=None: fake_device.Stream()),
    _member("streams_wait_for_each_other", "Stream", _broken(fake_device.Stream, wait_stream=_fails)),
    _class("counters_are_bytes", total_memory=lambda self, index=None: float(1 << 30)),
    _class("older_names_agree", max_memory_cached=lambda self, index=None: 1 << 40),
    _member("snapshot_is_a_collection", "memory_snapshot", lambda m: lambda: 3),
    _member("cache_empties", "empty_cache", lambda m: lambda: None),
    _class("resident_set_is_bytes", get_rss=lambda self: -1),
    _class("type_questions_answer_yes_or_no", is_fp8_supported=lambda self: None),
    _class("supported_dtypes_agree", supported_dtypes=lambda self: [torch.bfloat16, torch.float16, torch.float32]),
    Mutation("float8_converts", _float8_is_lost),
    _member("amp_is_a_module_or_none", "amp", lambda m: object()),
    _class("tensor_properties_are_callable tensor_properties_make_tensors", ByteTensor=property(lambda self: None)),
    _class("tensor_properties_make_tensors", IntTensor=_maker(torch.int64)),
    _class("tensors_are_made_on_the_current_device", FloatTensor=_maker(torch.float32, "npu:0")),
    _class("on_accelerator_knows_its_tensors", on_accelerator=lambda self, tensor: True),
    _class("pinning_keeps_the_tensor pinning_in_whole_pages", pin_memory=lambda self, tensor: tensor.pin_memory()),
    _class("pinning_in_whole_pages", pin_memory=_empty_pages),
    _class("pinned_tensors_are_known new_tensors_are_pinned", is_pinned=lambda self, tensor: False),
    _class("unpinning_keeps_the_values", unpin_memory=lambda self, t: t.fill_(-1) is None),
    _class("new_tensors_are_pinned", _torch_empty_pinned=lambda self, tensor, shape: tensor.new_empty(shape)),
    _class("host_memory_registers", register_host_memory=lambda self, address, num_bytes: True),
    _class("graphs_take_pool_and_stream", capture_to_graph=lambda self, graph: self._module.graph(graph)),
    _class(
        "builder_package_imports builders_are_found_by_name unknown_builder_is_an_error "
        "missing_op_has_a_builder_that_says_so",
        builder_package="no_such_package",
    ),
    _class(
        "builders_are_found_by_name",
        create_op_builder=lambda self, name: (
            _SilentBuilder if name == "CPUAdamBuilder" else self.get_op_builder(name)
        )(),
    ),
    _class("unknown_builder_is_an_error", get_op_builder=_without_near_matches),
    _class("missing_op_has_a_builder_that_says_so", get_op_builder=_get_silent_builder),
    _class("build_extension_is_a_command", build_extension=lambda self: int),
    _class("variable_names_are_lists", export_envs=lambda self: _ONE_LIST),
    _class("visible_devices_are_written", set_visible_devices_envs=_one_more_variable),
    _class("compile_backend_is_known sets_its_names_when_constructed", get_compile_backend=lambda self: "warp"),
    _class("wrong_compile_backend_is_refused", set_compile_backend=_any_backend),
]
