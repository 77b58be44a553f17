"""The conformance kit on fake vendor packages, whose devices are host memory.

The accelerator classes, the tensors and torch's dispatcher are real. A process can have one such device, so each runs
in its own process.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.machines import ROOT, run_python

FAKES = ROOT / "tests" / "support" / "fake_vendors"

pytestmark = pytest.mark.slow  # the device is compiled first, with torch's C++ headers


def conformance(*arguments: str) -> Any:
    command = [str(FAKES / "run_conformance.py"), *arguments]
    done = run_python(*command, PYTHONPATH=f"{ROOT}:{FAKES}", ACCEL_ACCELERATOR=None)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# The checks that do not apply to each fake device.
FLOAT8 = {"float8_converts"}
PINNING = {
    "pinning_keeps_the_tensor",
    "pinning_in_whole_pages",
    "pinned_tensors_are_known",
    "unpinning_keeps_the_values",
    "new_tensors_are_pinned",
    "host_memory_registers",
}
LEFT_OUT = {
    "npu": FLOAT8,
    "mlu": set(),
    "sdaa": FLOAT8,
    "hpu": {*FLOAT8, "tensors_are_made_on_the_current_device", "cache_empties"},
    "xpu": {*FLOAT8, *PINNING},
    "xpu.native": {*FLOAT8, *PINNING, "visible_devices_are_honoured"},
    "mps": {
        *FLOAT8,
        *PINNING,
        "stream_context_switches",
        "peak_remembers_what_was_freed",
        "resets_lower_the_peaks",
        "tensors_are_made_on_the_current_device",
        "visible_devices_are_honoured",
    },
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_device_conforms(name: str) -> None:
    results = conformance(name)
    assert {check: note for check, (status, note) in results.items() if status == "failed"} == {}
    left_out = {check for check, (status, _) in results.items() if status == "not applicable"}
    assert left_out == LEFT_OUT[name]


def test_every_check_finds_a_fault() -> None:
    results = conformance("npu", "mutated")
    assert {check: result for check, result in results.items() if result[0] != "failed"} == {}
