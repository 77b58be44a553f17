"""What this layer adds over ``torch.accelerator``, method by method; fails when torch has grown the same.

A member of the contract stands in exactly one table. DELEGATED members ask the device module, which
knows more devices and more arguments than ``torch.accelerator`` did at torch 2.10, the oldest that is
supported. Where ``torch.accelerator`` has a function of such a name, it must be listed as known, so
that a newer torch with more of them makes these tests fail, and somebody looks.
"""

from __future__ import annotations

import inspect

import pytest
import torch

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.torch_accelerator import TorchAccelerator

DELEGATED = {
    "amp": "the device module's own submodule",
    "current_device": "the device module",
    "current_stream": "the device module",
    "default_stream": "the device module; torch.accelerator has none",
    "device_capability": "get_device_capability of the device module",
    "device_count": "the device module",
    "empty_cache": "the device module",
    "Event": "the device module; torch.Event takes other arguments",
    "get_device_properties": "the device module",
    "get_rng_state": "the device module",
    "initial_seed": "the device module",
    "is_available": "the device module",
    "lazy_call": "_lazy_call of the device module",
    "manual_seed": "the device module",
    "manual_seed_all": "the device module",
    "max_memory_allocated": "the device module",
    "max_memory_reserved": "the device module",
    "memory_allocated": "the device module",
    "memory_reserved": "the device module",
    "memory_snapshot": "the device module",
    "memory_stats": "the device module",
    "random": "torch.random",
    "reset_peak_memory_stats": "the device module",
    "set_device": "the device module",
    "set_rng_state": "the device module",
    "Stream": "the device module; torch.Stream takes other arguments",
    "stream": "the device module",
    "synchronize": "the device module",
}

ADDED = {
    "available_memory": "a number, where torch gives (free, total); NVML on CUDA, the cgroup's limit on the CPU",
    "BFloat16Tensor": "a maker that takes data and keeps the device; torch's typed tensors know CPU and CUDA",
    "build_extension": "torch's or the vendor's build command, by device",
    "ByteTensor": "see BFloat16Tensor",
    "capture_to_graph": "one call for graph classes of all devices, and for devices that have none",
    "communication_backend_name": "torch maps devices to backends only once a backend is registered",
    "create_graph": "see capture_to_graph",
    "create_op_builder": "native ops by device are this project's",
    "current_device_name": "a device string rather than a number",
    "default_generator": "torch has a tuple in the device module, empty until the device is started",
    "device": "a torch.device for a device that may have no index",
    "device_name": "the device string; torch gives a torch.device of the current accelerator alone",
    "DoubleTensor": "see BFloat16Tensor",
    "export_envs": "launchers are not torch's concern",
    "FloatTensor": "see BFloat16Tensor",
    "get_compile_backend": "torch.compile has one default for all devices",
    "get_op_builder": "see create_op_builder",
    "HalfTensor": "see BFloat16Tensor",
    "handles_memory_backpressure": "a fact about the device that no module tells",
    "IntTensor": "see BFloat16Tensor",
    "is_bf16_supported": "some device modules do not tell",
    "is_fp16_supported": "no device module tells",
    "is_fp8_supported": "no device module tells",
    "is_pinned": "torch's, for the tensor; the devices that pin by themselves differ",
    "is_synchronized_device": "a fact about the device that no module tells",
    "is_triton_supported": "a fact about the device that no module tells",
    "LongTensor": "see BFloat16Tensor",
    "max_memory_cached": "an older name that callers use; torch deprecated its own",
    "memory_cached": "see max_memory_cached",
    "on_accelerator": "a question to a tensor, for any device",
    "op_builder_dir": "see create_op_builder",
    "pin_memory": "with an alignment; torch has none",
    "prefer_triton_grouped_mm": "a fact about the device that no module tells",
    "range_pop": "NVTX on CUDA, nothing elsewhere",
    "range_push": "see range_pop",
    "replay_graph": "see capture_to_graph",
    "reset_max_memory_allocated": "an older name that callers use; torch deprecated its own",
    "reset_max_memory_cached": "see reset_max_memory_allocated",
    "resolves_data_dependency": "a fact about the device that no module tells",
    "set_compile_backend": "see get_compile_backend",
    "set_visible_devices_envs": "launchers are not torch's concern",
    "supported_dtypes": "no device module tells; get_device_capability lists what compiles, not what is fast",
    "supports_nvtx_domain": "see range_pop",
    "total_memory": "a number from the device's record; the cgroup's limit on the CPU",
    "unpin_memory": "torch releases with the tensor",
    "use_host_timers": "a fact about the device that no module tells",
    "visible_devices_envs": "each driver has a variable of its own",
}

# Names of torch.accelerator that stand for a member of another name.
SYNONYMS = {
    "current_device_idx": "current_device",
    "current_device_index": "current_device",
    "set_device_idx": "set_device",
    "set_device_index": "set_device",
    "device_index": "set_device",
    "get_device_capability": "device_capability",
    "get_memory_info": "available_memory",
    "Graph": "create_graph",
    "current_accelerator": "device",
}

# What a member of ADDED still adds, although torch.accelerator has something of the kind.
DESPITE_TORCH = {
    "available_memory": "get_memory_info() asks neither NVML nor the cgroup, and knows no CPU",
    "create_graph": "Graph is new in torch 2.13 and beta; older ones have the classes of the device modules alone",
    "device": "current_accelerator() is None without an accelerator, and knows nothing of the CPU",
}

# In torch.accelerator, and in no way part of the contract.
BESIDE = {"empty_host_cache", "reset_accumulated_memory_stats", "set_stream"}


def offered() -> set[str]:
    """The functions and classes that ``torch.accelerator`` itself defines."""
    return {
        name
        for name, value in vars(torch.accelerator).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and getattr(value, "__module__", "").startswith("torch.accelerator")
    }


def test_every_member_of_the_contract_is_delegated_or_added_with_a_reason() -> None:
    members = {name for name in vars(DeepSpeedAccelerator) if not name.startswith("_")}
    assert DELEGATED.keys() | ADDED.keys() == members
    assert DELEGATED.keys() & ADDED.keys() == set()
    assert all([*DELEGATED.values(), *ADDED.values(), *DESPITE_TORCH.values()])


def test_torch_has_not_grown_what_this_layer_adds() -> None:
    grown = {SYNONYMS.get(name, name) for name in offered()} & ADDED.keys()
    assert grown == {SYNONYMS[name] for name in offered() & SYNONYMS.keys()} & DESPITE_TORCH.keys(), (
        "torch.accelerator has what this layer implements: ask torch there, or say in DESPITE_TORCH why not"
    )


def test_all_that_torch_accelerator_offers_is_accounted_for() -> None:
    unknown = offered() - {*DELEGATED, *ADDED, *SYNONYMS, *BESIDE}
    assert unknown == set(), "torch.accelerator has something new: does it answer a member of the contract?"


def test_a_torch_that_grows_an_added_member_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def supported_dtypes() -> None: ...

    supported_dtypes.__module__ = "torch.accelerator"
    monkeypatch.setattr(torch.accelerator, "supported_dtypes", supported_dtypes, raising=False)
    with pytest.raises(AssertionError, match="ask torch there"):
        test_torch_has_not_grown_what_this_layer_adds()


class Recorder:
    """A device module that answers anything and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.asked.append(name)
        return lambda *_args, **_kwargs: 0


@pytest.mark.parametrize("member", sorted(DELEGATED.keys() - {"random"}))
def test_a_delegated_member_asks_the_device_module(member: str) -> None:
    class Acme(TorchAccelerator):
        device_type = "acme"
        communication_backend = None
        visible_devices_variables = ()

        @classmethod
        def device_module(cls) -> object:  # type: ignore[override]
            return Recorder()

    arguments: dict[str, tuple[object, ...]] = {
        "set_device": (0,),
        "set_rng_state": (None,),
        "manual_seed": (1,),
        "manual_seed_all": (1,),
        "stream": (None,),
        "lazy_call": (lambda: None,),
    }
    accelerator = Acme()
    value = getattr(accelerator, member)
    if not isinstance(vars(DeepSpeedAccelerator)[member], property):
        value(*arguments.get(member, ()))
    assert accelerator._module.asked
