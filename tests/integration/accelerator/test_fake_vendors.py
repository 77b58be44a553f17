"""The conformance suite on fake vendor packages, whose devices are host memory.

The accelerator classes, the tensors and torch's dispatcher are real. A process can have one such device, so each runs
in a child process.
"""

from __future__ import annotations

import functools
import json

import pytest

from tests.support.conformance import with_outcome
from tests.support.fake_vendors.mutations import MUTATIONS
from tests.support.foreign_package import ROOT, output_of

FAKES = ROOT / "tests" / "support" / "fake_vendors"

pytestmark = pytest.mark.slow  # the device is compiled first, with torch's C++ headers

FLOAT8 = {"test_float8_converts"}
ONE_DEVICE = {"test_tensors_are_made_on_the_current_device"}
SKIPPED = {
    "npu": FLOAT8,
    "mlu": set(),
    "sdaa": FLOAT8,
    "hpu": {*FLOAT8, *ONE_DEVICE, "test_cache_empties"},
    "xpu": FLOAT8,
    "mps": {
        *(*FLOAT8, *ONE_DEVICE, "test_stream_context_switches"),
        *("test_peak_remembers_what_was_freed", "test_resets_lower_the_peaks"),
    },
}
"""The tests that each fake device skips."""


@functools.cache
def results() -> dict[str, dict[str, tuple[str, str]]]:
    """The outcome and the message of each test, by device."""
    command = [str(FAKES / "run_conformance.py"), *SKIPPED, "npu.mutated"]
    lines = output_of(*command, paths=[FAKES], ACCEL_ACCELERATOR=None).splitlines()
    return dict(map(json.loads, lines))


@pytest.mark.parametrize("name", SKIPPED)
def test_a_device_conforms(name: str) -> None:
    outcomes = results()[name]
    assert len(outcomes) > 50
    assert with_outcome("failed", outcomes) == {}
    assert set(with_outcome("skipped", outcomes)) == SKIPPED[name]


def test_every_test_finds_a_fault() -> None:
    outcomes = results()["npu.mutated"]
    assert set(with_outcome("failed", outcomes)) == set(outcomes) == {f"test_{name}" for name in MUTATIONS}
