"""The conformance kit on the CPU and on broken accelerators."""

# ruff: noqa: ARG002 - broken accelerators take the arguments of the methods they stand for

from __future__ import annotations

from typing import Any

import pytest
import torch

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.cpu_accelerator import CPU_Accelerator
from accelerator.errors import AcceleratorUnavailableError
from accelerator.testing import CHECKS, ConformanceError, check_conformance
from tests.support.machines import Recording


def test_the_cpu_conforms_and_every_member_is_checked_and_the_generators_are_restored() -> None:
    state = torch.get_rng_state()
    recording = Recording(CPU_Accelerator())
    report = check_conformance(recording)
    assert report.passed, str(report)
    assert {name for name in vars(DeepSpeedAccelerator) if not name.startswith("_")} <= recording.asked
    assert torch.equal(torch.get_rng_state(), state)
    assert len({check.name for check in CHECKS}) == len({check.proves for check in CHECKS}) == len(CHECKS)


class Broken(CPU_Accelerator):
    def memory_snapshot(self, *args: Any, **kwargs: Any) -> Any:
        raise SystemExit("the driver gave up")

    def lazy_call(self, callback: Any) -> Any:
        return None


def test_faults_and_exceptions_fail_their_checks() -> None:
    report = check_conformance(Broken())
    assert {result.check.name: result.note for result in report.failures} == {
        "lazy_call_runs_once": "expected number of calls 1, found 0",
        "statistics_are_a_dict": "it raised SystemExit: the driver gave up",
    }
    for result in report.failures:
        assert result.note in str(report)
        with pytest.raises(ConformanceError, match=f"{result.check.name}: {result.check.proves[:10]}"):
            result.check.require(Broken())


def test_a_missing_device_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "is_available", lambda _self: False)
    with pytest.raises(AcceleratorUnavailableError, match="No device of Broken is available"):
        check_conformance(Broken())


def test_an_object_that_is_no_accelerator_fails_without_a_crash() -> None:
    report = check_conformance(object(), {"graphs": "not today", "cache_empties": "not today"})
    assert not report.passed
    assert "has_every_member: expected no structural fault, found missing: is_synchronized_device" in str(report)
    skipped = {result.check.name for result in report.results if result.note == "not today"}
    assert skipped == {"graphs_replay", "cache_empties"}, "whose reason was given by name or group"
