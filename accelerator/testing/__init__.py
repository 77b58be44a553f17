"""The conformance kit: does an object keep the whole contract of an accelerator?

A vendor proves his device in one test::

    from accelerator.testing import check_conformance

    def test_acme() -> None:
        report = check_conformance(AcmeAccelerator())
        assert report.passed, str(report)

or in one test per check::

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_acme(check: Check) -> None:
        check.require(AcmeAccelerator())  # raises ConformanceError; skip on NotApplicable if you like

``python -m accelerator.conformance NAME`` is its command line. Each check is a function with one
sentence of what it proves. A check that hangs, hangs; the command line runs them in a process of
their own and gives up on one after a time.
"""

from __future__ import annotations

from accelerator.testing.checks import CHECKS
from accelerator.testing.model import (
    Ability,
    Check,
    CheckResult,
    ConformanceError,
    ConformanceReport,
    Failed,
    NotApplicable,
    Passed,
)
from accelerator.testing.run import check_conformance

__all__ = [
    "CHECKS",
    "Ability",
    "Check",
    "CheckResult",
    "ConformanceError",
    "ConformanceReport",
    "Failed",
    "NotApplicable",
    "Passed",
    "check_conformance",
]
