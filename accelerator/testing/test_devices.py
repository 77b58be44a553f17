"""Identity and devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.detection import rejection_reasons
from accelerator.testing import devices, each_device, ignores_indices, is_int

_BOUND = "set_device() accepts any number and changes nothing: something else binds the process"


def test_has_every_member(accelerator: Any) -> None:
    """All members of the contract exist, methods as methods and properties as properties."""
    assert rejection_reasons(accelerator) == []


def test_sets_its_names_when_constructed(accelerator: Any) -> None:
    """The constructor sets _name, _communication_backend_name and _compile_backend, which the methods return."""
    if not isinstance(accelerator, DeepSpeedAccelerator):
        pytest.skip("the class is not a subclass of DeepSpeedAccelerator")
    assert {"_name", "_communication_backend_name", "_compile_backend"} <= vars(accelerator).keys()
    assert isinstance(accelerator._name, str)
    assert accelerator._communication_backend_name == accelerator.communication_backend_name()
    assert accelerator._compile_backend == accelerator.get_compile_backend()


def test_predicates_return_bools(accelerator: Any) -> None:
    """Every predicate returns a bool, never None; on a synchronized device those that follow from it are True."""
    implied = ("use_host_timers", "resolves_data_dependency", "handles_memory_backpressure")
    others = (
        "is_synchronized_device is_triton_supported prefer_triton_grouped_mm is_available "
        "is_current_stream_capturing is_bf16_supported is_fp16_supported is_fp8_supported is_fp64_supported"
    )
    assert isinstance(getattr(accelerator, "supports_nvtx_domain", False), bool)
    for name in (*implied, *others.split()):
        assert isinstance(getattr(accelerator, name)(), bool), name
    if accelerator.is_synchronized_device():
        for name in implied:
            assert getattr(accelerator, name)(), name


def test_communication_backend_is_known(accelerator: Any) -> None:
    """communication_backend_name() is None or a backend of torch.distributed."""
    name = accelerator.communication_backend_name()
    if name is not None:
        assert isinstance(name, str)
        assert not torch.distributed.is_available() or name in torch.distributed.Backend.backend_list


def test_ranges_open_and_close(accelerator: Any) -> None:
    """range_push() and range_pop() take a message, a domain and a category, and nest."""
    accelerator.range_push("outer")
    accelerator.range_push("inner", domain="conformance", category="check")
    accelerator.range_pop(domain="conformance")
    accelerator.range_pop()


def test_lazy_call_runs_once(accelerator: Any) -> None:
    """On a device that is initialised, lazy_call() has run its callback, once, when it returns."""
    accelerator.synchronize()  # initialises the device
    calls: list[int] = []
    accelerator.lazy_call(lambda: calls.append(1))
    assert len(calls) == 1


def test_device_count_is_positive(accelerator: Any) -> None:
    """An available accelerator has at least one device."""
    count = accelerator.device_count()
    assert is_int(count)
    assert count >= 1


def test_device_strings_parse(accelerator: Any) -> None:
    """torch.device parses every device_name(), and device() is the same device."""
    for index in (None, *devices(accelerator)):
        name = accelerator.device_name(index)
        assert isinstance(name, str)
        parsed = torch.device(name)
        assert accelerator.device(index) == parsed
        assert parsed.type == accelerator.device_name().partition(":")[0]
        # A device without an index in its string is one device, whatever the number.
        assert parsed.index in (None, index)


def test_current_device_is_named(accelerator: Any) -> None:
    """current_device() is an int, and current_device_name() its device string."""
    current = accelerator.current_device()
    assert is_int(current)
    assert current in devices(accelerator) or ignores_indices(accelerator)  # on the host: the launcher's rank
    assert accelerator.current_device_name() == accelerator.device_name(current)


def test_set_device_round_trips(accelerator: Any) -> None:
    """After set_device(i), current_device() is i, for every device."""
    if ignores_indices(accelerator):
        pytest.skip(_BOUND)
    for index in each_device(accelerator):
        assert accelerator.current_device() == index


def test_index_out_of_range_is_an_error(accelerator: Any) -> None:
    """set_device() refuses the index after the last device, and -1."""
    if ignores_indices(accelerator):
        pytest.skip(_BOUND)
    for outside in (accelerator.device_count(), -1):  # torch.cuda takes -1 and does nothing
        with pytest.raises(Exception) as raised:  # torch's own error differs from device to device
            accelerator.set_device(outside)
        assert not isinstance(raised.value, (AttributeError, NameError, TypeError))


def test_synchronize_returns(accelerator: Any) -> None:
    """synchronize() waits for the current device, and for each by its index."""
    accelerator.synchronize()
    for index in devices(accelerator):
        accelerator.synchronize(index)


def test_properties_have_one_type(accelerator: Any) -> None:
    """get_device_properties() and device_capability() return one type for the current and for each device."""
    for method in (accelerator.get_device_properties, accelerator.device_capability):
        assert len({type(method(index)) for index in (None, *devices(accelerator))}) == 1
