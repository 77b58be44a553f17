"""The outcome of a check: it holds, or it does not, with a reason and a remedy.

A module of its own, because a warm load may create an outcome and must not import modules of compilers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from op_builder.errors import AccelError, IncompatibleOpError

T = TypeVar("T")


class Rejection(NamedTuple):
    """Why something is not used, or does not work here, and what to do about it."""

    reason: str
    remedy: str = ""


class Passed(NamedTuple):
    """A check that passed; ``detail`` is what was found."""

    name: str
    detail: str


class Failed(NamedTuple):
    """A check that does not hold: why, and what to do about it."""

    name: str
    rejection: Rejection

    @property
    def reason(self) -> str:
        return self.rejection.reason

    @property
    def remedy(self) -> str:
        return self.rejection.remedy


CheckOutcome = Passed | Failed


def facts_of(outcome: CheckOutcome) -> dict[str, str]:
    """For JSON: the name with the detail, or with the reason and the remedy."""
    if isinstance(outcome, Failed):
        return {"name": outcome.name, **outcome.rejection._asdict()}
    return outcome._asdict()


def failures(outcomes: Iterable[CheckOutcome]) -> list[Failed]:
    """Those that failed, in order."""
    return [outcome for outcome in outcomes if isinstance(outcome, Failed)]


def guarded(name: str, make: Callable[[], T]) -> T | Failed:
    """``make()``, with an error it raises turned into a failed check."""
    try:
        return make()
    except AccelError as error:
        return Failed(name, Rejection(error.message, error.remedy))
    except Exception as error:
        # A check of another package's builder may raise anything; the report must survive it.
        return Failed(
            name, Rejection(f"the check itself failed: {type(error).__name__}: {error}", "Report this to its author.")
        )


def require(op: str, outcomes: Iterable[CheckOutcome]) -> None:
    """Raise an IncompatibleOpError that names every failed check."""
    failed = failures(outcomes)
    if failed:
        reasons = "; ".join(f"{failure.name}: {failure.reason.removesuffix('.')}" for failure in failed)
        remedies = " ".join(dict.fromkeys(failure.remedy for failure in failed if failure.remedy))
        raise IncompatibleOpError(f"Op '{op}' is not available here. {reasons}.", remedies)
