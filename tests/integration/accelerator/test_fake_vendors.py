"""The conformance kit on fake vendor packages, whose devices are host memory.

The accelerator classes, the tensors and torch's dispatcher are real. A process can have one such device, so each runs
in a child process.
"""

from __future__ import annotations

import functools
import json

import pytest

from tests.support.foreign_package import ROOT, python

FAKES = ROOT / "tests" / "support" / "fake_vendors"

pytestmark = pytest.mark.slow  # the device is compiled first, with torch's C++ headers


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


@functools.cache
def results() -> dict[str, dict[str, list[str]]]:
    """The status and the note of each check, by device."""
    command = [str(FAKES / "run_conformance.py"), *LEFT_OUT, "npu.mutated"]
    done = python(*command, PYTHONPATH=f"{ROOT}:{FAKES}", ACCEL_ACCELERATOR=None)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_device_conforms(name: str) -> None:
    found = results()[name]
    assert {check: note for check, (status, note) in found.items() if status == "failed"} == {}
    assert {check for check, (status, _) in found.items() if status == "not applicable"} == LEFT_OUT[name]


def test_every_check_finds_a_fault() -> None:
    assert {check: found for check, found in results()["npu.mutated"].items() if found[0] != "failed"} == {}
