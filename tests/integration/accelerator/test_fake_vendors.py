"""The conformance kit on fake vendor packages, whose devices are host memory.

The accelerator classes, the tensors and torch's dispatcher are real. A process can have one such device, so each runs
in a child process.
"""

from __future__ import annotations

import functools
import json

import pytest

from accelerator.testing import CHECKS
from tests.support.foreign_package import ROOT, python

FAKES = ROOT / "tests" / "support" / "fake_vendors"

pytestmark = pytest.mark.slow  # the device is compiled first, with torch's C++ headers

FLOAT8 = {"float8_converts"}
PINNING = {check.name for check in CHECKS if check.group == "pinned memory"}
ONE_DEVICE = {"tensors_are_made_on_the_current_device"}
HIDING = {"visible_devices_are_honoured"}
LEFT_OUT = {
    "npu": FLOAT8,
    "mlu": set(),
    "sdaa": FLOAT8,
    "hpu": {*FLOAT8, *ONE_DEVICE, "cache_empties"},
    "xpu": {*FLOAT8, *PINNING},
    "xpu.native": {*FLOAT8, *PINNING, *HIDING},
    "mps": {
        *(*FLOAT8, *PINNING, *ONE_DEVICE, *HIDING),
        *("stream_context_switches", "peak_remembers_what_was_freed", "resets_lower_the_peaks"),
    },
}
"""The checks that do not apply to each fake device."""


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
