"""Runs of the conformance suite in this process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

# This process runs pytest already: the inner one leaves its terminal, its fault handler and its workers alone.
ALONE = ["-c", os.devnull, *(f"-pno:{plugin}" for plugin in ("terminal", "cacheprovider", "faulthandler", "xdist"))]


class _Recorder:
    """A pytest plugin that keeps the outcome of each test, and its message."""

    def __init__(self) -> None:
        self.outcomes: dict[str, tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.outcomes[report.nodeid.rpartition("::")[2]] = (report.outcome, str(report.longrepr or ""))


def run_suite(*options: str, plugins: Sequence[Any] = ()) -> dict[str, tuple[str, str]]:
    """The outcome and the message of each test; without ``--accelerator``, on the current accelerator."""
    recorder = _Recorder()
    suite = ["-p", "accelerator.testing", "--pyargs", "accelerator.testing"]
    pytest.main([*ALONE, *suite, *options], plugins=[recorder, *plugins])
    return recorder.outcomes


def with_outcome(outcome: str, outcomes: dict[str, tuple[str, str]]) -> dict[str, str]:
    """The messages of the tests that ``passed``, ``failed`` or were ``skipped``."""
    return {name: message for name, (found, message) in outcomes.items() if found == outcome}
