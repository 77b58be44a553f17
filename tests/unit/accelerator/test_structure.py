"""What counts as an accelerator."""

# ruff: noqa: ARG001, ARG005 - stand-ins take the arguments that they stand in for

from __future__ import annotations

import functools
from typing import Any

import pytest

from accelerator import get_accelerator, is_current_accelerator_supported, set_accelerator
from accelerator.abstract_accelerator import Accelerator, DeepSpeedAccelerator
from accelerator.cpu_accelerator import CPU_Accelerator
from accelerator.detection import rejection_reasons
from accelerator.errors import InvalidAcceleratorError
from accelerator.pinned_memory import PinnedMemory
from tests.support.machines import Recording

CONCRETE, PROPERTIES, METHODS = (
    set(names.split())
    for names in (
        "get_device_properties device_capability memory_snapshot is_fp8_supported amp prefer_triton_grouped_mm "
        "is_fp64_supported is_current_stream_capturing pin_memory is_pinned unpin_memory pin_empty pin_empty_like "
        "register_host_memory unregister_host_memory pin_memory_alignment supports_nvtx_domain",
        "Stream Event BFloat16Tensor ByteTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor",
        "is_synchronized_device use_host_timers resolves_data_dependency handles_memory_backpressure "
        "device_name device set_device current_device current_device_name device_count "
        "synchronize is_available random set_rng_state get_rng_state manual_seed manual_seed_all initial_seed "
        "default_generator stream current_stream default_stream empty_cache memory_allocated max_memory_allocated "
        "reset_max_memory_allocated memory_cached max_memory_cached reset_max_memory_cached memory_stats "
        "reset_peak_memory_stats memory_reserved max_memory_reserved total_memory available_memory "
        "is_bf16_supported is_fp16_supported supported_dtypes range_push range_pop lazy_call "
        "communication_backend_name is_triton_supported create_graph capture_to_graph replay_graph on_accelerator "
        "op_builder_dir create_op_builder get_op_builder build_extension export_envs visible_devices_envs "
        "set_visible_devices_envs get_compile_backend set_compile_backend",
    )
)


def test_the_abstract_class_has_exactly_the_contract() -> None:
    declared = {**vars(PinnedMemory), **vars(DeepSpeedAccelerator)}
    public = {name for name in declared if not name.startswith("_")}
    assert public == CONCRETE | PROPERTIES | METHODS
    assert DeepSpeedAccelerator.__abstractmethods__ == PROPERTIES | METHODS
    assert {name for name in public if isinstance(declared[name], property)} == PROPERTIES
    assert Accelerator is DeepSpeedAccelerator
    assert all(declared[name].__doc__ for name in public)


def members(without: str | None = None, **changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = {name: (lambda self, *_args: None) for name in METHODS}
    body.update({name: property(lambda self: None) for name in PROPERTIES})
    body.pop(without or "", None)
    return {**body, **changes}


def test_a_subclass_of_the_abstract_members_alone_instantiates() -> None:
    accelerator = type("Older", (DeepSpeedAccelerator,), members())()
    assert accelerator.is_fp8_supported() is accelerator.prefer_triton_grouped_mm() is False
    assert accelerator.supports_nvtx_domain is accelerator.is_current_stream_capturing() is False
    assert accelerator.is_fp64_supported() is True
    assert accelerator.amp() is accelerator.get_device_properties() is accelerator.device_capability() is None
    assert accelerator.memory_snapshot() == []


@pytest.mark.usefixtures("fresh")
def test_set_accelerator_checks_members_not_ancestry() -> None:
    stranger: Any = type("Stranger", (), members(device_name=lambda self, index=None: "quantum"))()
    assert set_accelerator(stranger) is get_accelerator() is stranger
    assert is_current_accelerator_supported() is False
    set_accelerator(CPU_Accelerator())
    assert is_current_accelerator_supported() is True


def start_device(self: object) -> None:
    raise AssertionError("a property was evaluated")


@pytest.mark.parametrize(
    "candidate",
    [
        Recording(CPU_Accelerator()),
        type("Odd", (), members(memory_allocated=functools.partialmethod(lambda self, index=None: 1)))(),
        type("Lazy", (), members(Stream=property(start_device)))(),
    ],
)
def test_an_object_with_all_members_is_an_accelerator(candidate: object) -> None:
    assert rejection_reasons(candidate) == []


FAULTS = [
    (object(), "got object, which is not an accelerator: missing: is_synchronized_device"),
    (None, "got NoneType"),
    ("cpu", "set_accelerator() got str, which is not"),
    (CPU_Accelerator, "it is the class CPU_Accelerator, not an instance of it"),
    (type("Lacks", (), members(without="stream"))(), "missing: stream."),
    (type("Value", (), members(device_count=8))(), "device_count must be a method, found a value of type int"),
    (type("Prop", (), members(device=property(str)))(), "device must be a method, found a property"),
    (type("Once", (), members(device=functools.cached_property(str)))(), "a method, found a value of type cached_prop"),
    (type("Slot", (), members(amp=type("S", (), {"__slots__": ("x",)}).x))(), "a value of type member_descriptor"),
    (type("Meth", (), members(Stream=lambda self: None))(), "Stream must be a property, found a method"),
    (type("Nvtx", (), members(supports_nvtx_domain=lambda self: False))(), "must be a bool, found a method"),
]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("candidate", "message"), FAULTS)
def test_set_accelerator_reports_faults_and_changes_nothing(candidate: Any, message: str) -> None:
    before = set_accelerator(CPU_Accelerator())
    with pytest.raises(InvalidAcceleratorError) as caught:
        set_accelerator(candidate)
    assert isinstance(caught.value, TypeError)
    assert message in str(caught.value)
    assert get_accelerator() is before
