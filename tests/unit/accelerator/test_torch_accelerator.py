"""Which members ask the torch device module, and whether ``torch.accelerator`` has grown something new."""

from __future__ import annotations

import inspect

import pytest
import torch

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.torch_accelerator import TorchAccelerator

# The function of the device module that a member asks. The module knows more devices and more arguments than
# torch.accelerator does in torch 2.10, the oldest that is supported.
SAME_NAME = (
    "amp current_device current_stream default_stream device_count empty_cache Event get_device_properties "
    "get_rng_state initial_seed is_bf16_supported is_fp8_supported manual_seed manual_seed_all "
    "max_memory_allocated max_memory_reserved memory_allocated memory_reserved memory_snapshot memory_stats "
    "reset_peak_memory_stats set_device set_rng_state Stream stream synchronize"
)
DELEGATED = {
    **{name: name for name in SAME_NAME.split()},
    "device_capability": "get_device_capability",
    "is_available": "device_count",  # the module's own starts the driver on some devices
    "lazy_call": "_lazy_call",
}

# What torch.accelerator has under another name than the contract, or what the contract does not have.
OTHER_NAMES = (
    "current_accelerator current_device_idx current_device_index set_device_idx set_device_index device_index Graph "
    "get_device_capability get_memory_info empty_host_cache reset_accumulated_memory_stats set_stream"
)


def test_everything_that_torch_accelerator_offers_is_known() -> None:
    """Fails where a newer torch has more functions: then see whether a member of the contract should ask them."""
    offered = {
        name
        for name, value in vars(torch.accelerator).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and getattr(value, "__module__", "").startswith("torch.accelerator")
    }
    assert offered - set(OTHER_NAMES.split()) - DELEGATED.keys() == set()


class Recorder:
    """A device module that answers anything and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.asked.append(name)
        return lambda *_args, **_kwargs: 1


@pytest.mark.parametrize("member", sorted(DELEGATED))
def test_a_delegated_member_asks_that_function_of_the_device_module(member: str) -> None:
    recorder = Recorder()

    class Acme(TorchAccelerator):
        device_type = "acme"
        communication_backend = None
        visible_devices_variables = ()

        @classmethod
        def device_module(cls) -> object:  # type: ignore[override]
            return recorder

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
    before = {"device_count"} if member == "memory_snapshot" else set()  # taken only where there is a device
    assert set(recorder.asked) == {DELEGATED[member]} | before
