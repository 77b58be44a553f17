"""The members that call a function of the torch device module."""

from __future__ import annotations

import pytest

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.torch_accelerator import TorchAccelerator

SAME_NAME = (
    "amp current_device current_stream default_stream device_count empty_cache Event get_device_properties "
    "get_rng_state initial_seed is_bf16_supported is_fp8_supported manual_seed manual_seed_all "
    "max_memory_allocated max_memory_reserved memory_allocated memory_reserved memory_snapshot memory_stats "
    "reset_peak_memory_stats set_device set_rng_state Stream stream synchronize"
)
DELEGATED = {
    **{name: name for name in SAME_NAME.split()},
    "device_capability": "get_device_capability",
    "is_available": "device_count",  # the module's is_available starts the driver on some devices
    "lazy_call": "_lazy_call",
}


class Recorder:
    """A device module that records its calls."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.called.append(name)
        return lambda *_args, **_kwargs: 1


@pytest.mark.parametrize("member", sorted(DELEGATED))
def test_a_member_calls_its_function_of_the_device_module(member: str) -> None:
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
    before = {"device_count"} if member == "memory_snapshot" else set()  # a snapshot requires a device
    assert set(recorder.called) == {DELEGATED[member]} | before
