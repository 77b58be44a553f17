"""The outcome of a check: it holds, or it does not, with a reason and a remedy.

A module of its own, because a warm load may create an outcome and must not import modules of compilers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from op_builder.errors import AccelError, IncompatibleOpError

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Rejection(NamedTuple):
    """Why something is not used, or does not work here, and what to do about it; both are sentences."""

    reason: str
    remedy: str = ""

    @staticmethod
    def of(error: AccelError) -> Rejection:
        return Rejection(error.message, error.remedy)

    def __str__(self) -> str:
        return f"{self.reason} {self.remedy}".rstrip()


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
        return Failed(name, Rejection.of(error))
    except Exception as error:
        # A check of another package's builder may raise anything; the report must survive it.
        logger.debug("%s failed.", name, exc_info=True)
        text = str(error).rstrip(".")
        return Failed(
            name,
            Rejection(f"The check itself failed: {type(error).__name__}: {text}.", "Report this to the op's author."),
        )


def checked(name: str, find: Callable[[], str]) -> CheckOutcome:
    """The check that passes if ``find`` returns, with its result as the detail; its error is the rejection."""
    found = guarded(name, find)
    return found if isinstance(found, Failed) else Passed(name, found)


def rejection_of(outcomes: Iterable[CheckOutcome]) -> Rejection | None:
    """One rejection for all failed checks; None if all passed."""
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    if not failed:
        return None
    names: dict[str, str] = {}  # by reason: the first check that has it
    for failure in failed:
        names.setdefault(failure.reason, failure.name)
    reasons = [reason if len(names) == 1 else f"{name}: {reason}" for reason, name in names.items()]
    return Rejection(" ".join(reasons), " ".join(dict.fromkeys(failure.remedy for failure in failed if failure.remedy)))


def unavailable(op: str, rejection: Rejection) -> IncompatibleOpError:
    """The error of an op that cannot be built or loaded here."""
    return IncompatibleOpError(f"Op '{op}' is not available here. {rejection.reason}", rejection.remedy)


def require(op: str, outcomes: Iterable[CheckOutcome]) -> None:
    """Raise an IncompatibleOpError with the reason of every failed check."""
    if (rejection := rejection_of(outcomes)) is not None:
        raise unavailable(op, rejection)
