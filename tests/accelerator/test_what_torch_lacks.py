"""What this layer adds over ``torch.accelerator``, method by method; fails when torch has grown the same.

A member of the contract stands in exactly one table. DELEGATED members ask the device module, which
knows more devices and more arguments than ``torch.accelerator`` did at torch 2.10, the oldest that is
supported; what a device answers itself instead stands in OVERRIDES. Where ``torch.accelerator`` has a
function of such a name, it must be listed as known, so that a newer torch with more of them makes these
tests fail, and somebody looks.
"""

from __future__ import annotations

import importlib
import inspect

import pytest
import torch

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.torch_accelerator import TorchAccelerator

# The function of the device module that a member asks. "random" is the one that asks torch itself.
DELEGATED = {
    "amp": "amp",
    "current_device": "current_device",
    "current_stream": "current_stream",
    "default_stream": "default_stream",
    "device_capability": "get_device_capability",
    "device_count": "device_count",
    "empty_cache": "empty_cache",
    "Event": "Event",
    "get_device_properties": "get_device_properties",
    "get_rng_state": "get_rng_state",
    "initial_seed": "initial_seed",
    "is_available": "device_count",  # the module's own starts the driver on some devices
    "is_bf16_supported": "is_bf16_supported",
    "is_fp8_supported": "is_fp8_supported",
    "lazy_call": "_lazy_call",
    "manual_seed": "manual_seed",
    "manual_seed_all": "manual_seed_all",
    "max_memory_allocated": "max_memory_allocated",
    "max_memory_reserved": "max_memory_reserved",
    "memory_allocated": "memory_allocated",
    "memory_reserved": "memory_reserved",
    "memory_snapshot": "memory_snapshot",
    "memory_stats": "memory_stats",
    "random": "torch.random",
    "reset_peak_memory_stats": "reset_peak_memory_stats",
    "set_device": "set_device",
    "set_rng_state": "set_rng_state",
    "Stream": "Stream",
    "stream": "stream",
    "synchronize": "synchronize",
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
    "is_fp16_supported": "no device module tells",
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


# What a device's class does itself, instead of asking its module as TorchAccelerator does, and why.
ONE_QUEUE = "there is one queue"
RESIDENT = "there is no allocator to ask; the resident set of the process stands for it"
GENERATOR = "torch.cpu has no generator of its own"
NO_PEAKS = "torch.mps has other names for its counters, and keeps no peaks"
OVERRIDES = {
    "cuda": {
        "available_memory": "NVML sees the memory of all processes and needs no context",
        "device_capability": "None without a device, where torch raises",
        "is_bf16_supported": "torch.cuda's raises without a device on some versions",
        "is_fp16_supported": "from capability 7",
        "is_fp8_supported": "from capability 8.9, or by AMD's architecture",
        "is_triton_supported": "from capability 7",
        "range_pop": "NVTX",
        "range_push": "NVTX",
        "supports_nvtx_domain": "NVTX",
    },
    "cpu": {
        **dict.fromkeys(("current_stream", "default_stream", "stream", "Stream"), ONE_QUEUE),
        "Event": "torch.cpu's tells no time",
        **dict.fromkeys(("capture_to_graph", "create_graph", "replay_graph"), "there are no graphs to record"),
        "current_device": "the launcher's LOCAL_RANK",
        "device_count": "NUMA nodes with cores, or the launcher's LOCAL_SIZE",
        "set_device": "the launcher binds a process to its cores",
        "is_available": "always there, whatever the environment says",
        "get_device_properties": "there is no record",
        **dict.fromkeys(("default_generator", "get_rng_state", "set_rng_state", "initial_seed"), GENERATOR),
        **dict.fromkeys(("manual_seed", "manual_seed_all"), GENERATOR),
        "empty_cache": "there is no cache",
        **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_stats"), RESIDENT),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "reset_peak_memory_stats"), RESIDENT),
        **dict.fromkeys(("total_memory", "available_memory"), "the cgroup's limit"),
        "is_fp16_supported": "oneDNN tells by an op",
        "pin_memory": "no device copies from the tensor",
    },
    "xpu": {
        "build_extension": "IPEX has a command of its own",
        "default_stream": "torch.xpu has none",
        "is_pinned": "memory from the AsyncIO op, and torch's for this device",
        "pin_memory": "see is_pinned",
        "unpin_memory": "see is_pinned",
        "use_host_timers": "events of old IPEX carry no time",
    },
    "mps": {
        **dict.fromkeys(("current_stream", "default_stream", "stream", "Stream"), ONE_QUEUE),
        "Event": "torch.mps's; the class for one queue has the host's",
        **dict.fromkeys(("current_device", "set_device"), "there is one device"),
        "get_device_properties": "there is no record",
        **dict.fromkeys(("default_generator", "initial_seed", "manual_seed_all"), "torch.mps has one generator"),
        **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_stats"), NO_PEAKS),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "reset_peak_memory_stats"), NO_PEAKS),
        **dict.fromkeys(("total_memory", "available_memory"), NO_PEAKS),
        "synchronize": "torch.mps's takes no device",
        "use_host_timers": "the contract says so",
    },
    "hpu": {
        "capture_to_graph": "the module's takes no pool",
        "default_generator": "the module has no name for it outside its random",
        "empty_cache": "some versions have none",
        "handles_memory_backpressure": "a fact about the device",
        "memory_stats": "the module has keys of its own",
        "resolves_data_dependency": "a fact about the device",
        "synchronize": "the module's takes no device",
        "total_memory": "the module's record is a text",
    },
    **{device: {} for device in ("npu", "mlu", "sdaa")},
}

# Overrides although torch's own module of that device has the name.
DESPITE_DEVICE_MODULE = {
    "cuda": {"is_bf16_supported"},
    "cpu": {
        *(
            "Event",
            "Stream",
            "current_stream",
            "stream",
        ),  # placeholders: no time, no priority
        *("current_device", "set_device", "device_count", "is_available"),  # "cpu", nothing, 1 and True
    },
    "mps": {"Event", "synchronize"},
}


def overrides(device: str) -> set[str]:
    """The members of the contract that a device's class, or a class it mixes in, defines."""
    cls = getattr(importlib.import_module(f"accelerator.{device}_accelerator"), f"{device.upper()}_Accelerator")
    own = cls.__mro__[: cls.__mro__.index(TorchAccelerator)]
    return {name for each in own for name in vars(each) if name in vars(DeepSpeedAccelerator) and name[0] != "_"}


@pytest.mark.parametrize("device", OVERRIDES)
def test_each_override_of_a_device_has_its_reason(device: str) -> None:
    assert overrides(device) == OVERRIDES[device].keys()


@pytest.mark.parametrize("device", ["cuda", "cpu", "xpu", "mps"])
def test_the_device_module_has_not_grown_what_a_device_overrides(device: str) -> None:
    grown = {name for name in OVERRIDES[device] if hasattr(getattr(torch, device), name)}
    assert grown == DESPITE_DEVICE_MODULE.get(device, set()), (
        f"torch.{device} has what its accelerator implements: ask it there, or say in DESPITE_DEVICE_MODULE why not"
    )


class Recorder:
    """A device module that answers anything and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.asked.append(name)
        return lambda *_args, **_kwargs: 1


@pytest.mark.parametrize("member", sorted(DELEGATED.keys() - {"random"}))
def test_a_delegated_member_asks_that_function_of_the_device_module(member: str) -> None:
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
    asked = [name for name in accelerator._module.asked if name != "device_count" or member in WITHOUT_MORE]
    assert asked == [DELEGATED[member]]


WITHOUT_MORE = {"device_count", "is_available"}  # a snapshot is asked only where there is a device


def test_random_is_torchs_own() -> None:
    assert TorchAccelerator.random(None) is torch.random  # type: ignore[arg-type]
