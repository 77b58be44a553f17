"""For each test of the conformance suite, a fault of ``torch.npu`` or ``NPU_Accelerator`` that it must find."""

# ruff: noqa: ARG001, ARG002, ARG005 - broken members take the arguments of the sound ones

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch

from accelerator.host_streams import HostEvent
from accelerator.npu_accelerator import NPU_Accelerator
from op_builder.catalog.builders import UnavailableOpBuilder
from tests.support.fake_vendors import fake_device

Mutation = Callable[[], AbstractContextManager[Any]]
"""Makes a context with the fault."""


def _module(name: str, make: Callable[[Any], Any]) -> Mutation:
    """Replace one member of the device module with ``make(module)``."""

    @contextmanager
    def apply() -> Iterator[None]:
        module: Any = torch.npu  # type: ignore[attr-defined]
        sound = module.current_stream()
        with mock.patch.object(module, name, make(module)):
            yield
        module.set_stream(sound)

    return apply


def _class(**members: Any) -> Mutation:
    """Replace members of the accelerator's class."""
    return lambda: mock.patch.multiple(NPU_Accelerator, create=True, **members)


def _broken(cls: type, **members: Any) -> Callable[[Any], type]:
    """A subclass with some members replaced, whatever the device module."""
    return lambda module: type("Broken", (cls,), members)


class _SilentBuilder(UnavailableOpBuilder):
    NAME = "cpu_adam"

    def load(self, verbose: bool = True) -> Any:
        return None


def _fails(*arguments: Any) -> Any:
    raise OSError("no driver")


@contextmanager
def _float8_is_lost() -> Iterator[None]:
    with (
        mock.patch.object(torch, "float8_e4m3fn", torch.bool),
        mock.patch.object(NPU_Accelerator, "is_fp8_supported", return_value=True),
    ):
        yield


_ONE_LIST = ["ASCEND"]

MUTATIONS: dict[str, Mutation] = {
    "has_every_member": _class(memory_snapshot=3),
    "sets_its_names_when_constructed": _class(communication_backend_name=lambda self: "gloo"),
    "predicates_return_bools": _class(is_triton_supported=lambda self: None),
    "communication_backend_is_known": _class(communication_backend_name=lambda self: "carrier"),
    "ranges_open_and_close": _class(range_push=lambda self, msg: None),
    "lazy_call_runs_once": _module("_lazy_call", lambda m: lambda callback: None),
    "device_count_is_positive": _class(device_count=lambda self: True),
    "device_strings_parse": _class(device=lambda self, index=None: torch.device("npu", (index or 0) + 1)),
    "current_device_is_named": _class(current_device_name=lambda self: "npu"),
    "set_device_round_trips": _module("current_device", lambda m: lambda: 0),
    "index_out_of_range_is_an_error": _class(set_device=lambda self, index: self._module.set_device(index)),
    "synchronize_returns": _module("synchronize", lambda m: lambda index=None: _fails() if index else None),
    "properties_have_one_type": _module("get_device_capability", lambda m: lambda i=None: "1.0" if i else None),
    "random_is_torch_random": _class(random=lambda self: None),
    "rng_state_is_bytes_on_the_host": _class(get_rng_state=lambda self, index=None: torch.zeros(4)),
    "rng_state_round_trips": _module("set_rng_state", lambda m: lambda *a: None),
    "manual_seed_is_reproducible": _module("manual_seed", lambda m: lambda seed: None),
    "manual_seed_all_seeds_every_device": _module(
        "manual_seed_all", lambda m: lambda seed: m.default_generators[0].manual_seed(seed)
    ),
    "initial_seed_is_the_seed": _module("initial_seed", lambda m: lambda: 1),
    "default_generator_is_the_seeded_one": _module(
        "default_generators", lambda m: (torch.Generator(), torch.Generator())
    ),
    "streams_are_usable": _module("Stream", _broken(fake_device.Stream, query=lambda self: False)),
    "current_stream_is_the_default_one": _module("default_stream", lambda m: lambda index=None: fake_device.Stream()),
    "stream_context_switches": _module("stream", lambda m: lambda chosen: nullcontext()),
    "stream_context_restores": _module("stream", lambda m: lambda chosen: nullcontext(m.set_stream(chosen))),
    "streams_wait_for_each_other": _module("Stream", _broken(fake_device.Stream, wait_stream=_fails)),
    "events_are_usable": _module("Event", _broken(HostEvent, query=lambda self: False)),
    "events_measure_time": _module("Event", _broken(HostEvent, elapsed_time=_fails)),
    "counters_are_bytes": _class(total_memory=lambda self, index=None: float(1 << 30)),
    "total_covers_available": _module("mem_get_info", lambda m: lambda index=None: (1 << 40, 1 << 40)),
    "allocation_is_counted": _module("memory_allocated", lambda m: lambda index=None: 0),
    "peak_covers_current": _module("max_memory_allocated", lambda m: lambda index=None: m.memory_allocated(index) - 1),
    "peak_remembers_what_was_freed": _module("max_memory_allocated", lambda m: m.memory_allocated),
    "resets_lower_the_peaks": _module("reset_peak_memory_stats", lambda m: lambda index=None: None),
    "older_names_agree": _class(max_memory_cached=lambda self, index=None: 1 << 40),
    "statistics_are_a_dict": _module("memory_stats", lambda m: lambda index=None: []),
    "cache_empties": _module("empty_cache", lambda m: lambda: None),
    "supported_dtypes_agree": _class(supported_dtypes=lambda self: [torch.bfloat16, torch.float16, torch.float32]),
    "supported_dtypes_compute": lambda: mock.patch.object(
        torch.Tensor, "__add__", lambda tensor, other: torch.add(tensor, other, alpha=1 if tensor.is_cpu else 2)
    ),
    "float8_converts": _float8_is_lost,
    "amp_is_a_module_or_none": _module("amp", lambda m: object()),
    "tensor_properties_make_tensors": _class(IntTensor=NPU_Accelerator.LongTensor),
    "tensors_are_made_on_the_current_device": _class(
        FloatTensor=property(lambda self: functools.partial(torch.tensor, device="npu:0"))
    ),
    "on_accelerator_knows_its_tensors": _class(on_accelerator=lambda self, tensor: True),
    "pinning_keeps_the_tensor": _class(pin_memory=lambda self, tensor: tensor.pin_memory()),
    "pinning_in_whole_pages": _class(pin_memory=lambda self, tensor, **_: torch.zeros_like(tensor)),
    "pinned_tensors_are_known": _class(is_pinned=lambda self, tensor: False),
    "unpinning_keeps_the_values": _class(unpin_memory=lambda self, t: t.fill_(-1) is None),
    "new_tensors_are_pinned": _class(_torch_empty_pinned=lambda self, tensor, shape: tensor.new_empty(shape)),
    "host_memory_registers": _class(register_host_memory=lambda self, address, num_bytes: True),
    "graphs_replay": _module("NPUGraph", _broken(fake_device.Graph, replay=lambda self: None)),
    "builder_package_imports": _class(builder_package="no_such_package"),
    "builders_are_found_by_name": _class(create_op_builder=lambda self, name: _SilentBuilder()),
    "unknown_builder_is_an_error": _class(get_op_builder=_fails),
    "missing_op_has_a_builder_that_says_so": _class(get_op_builder=lambda self, name: _SilentBuilder),
    "build_extension_is_a_command": _class(build_extension=lambda self: int),
    "variable_names_are_lists": _class(export_envs=lambda self: _ONE_LIST),
    "visible_devices_are_written": _class(set_visible_devices_envs=lambda self, env, ids: env.update(VISIBLE="all")),
    "visible_devices_are_honoured": _class(set_visible_devices_envs=lambda self, env, ids: None),
    "compile_backend_is_checked": _class(
        set_compile_backend=lambda self, backend: setattr(self, "_compile_backend", backend)
    ),
}
