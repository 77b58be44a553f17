"""Checks, their results, and helpers for writing checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from accelerator.errors import AcceleratorUnavailableError, describe
from op_builder.errors import AccelError

PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"


class ConformanceError(AccelError, AssertionError):
    """A check failed; the message has the expected and the found value."""


class DoesNotApplyError(Exception):
    """Raised inside a check: it does not apply, for this reason."""


@dataclass(frozen=True)
class Check:
    """One named check.

    Attributes:
        cls: the class whose method it is.
        name: the method's name; unique.
        group: the theme it belongs to.
        proves: one sentence.
    """

    cls: type[Checks]
    name: str
    group: str
    proves: str

    def __str__(self) -> str:
        return self.name

    def run(self, accelerator: Any, without: Mapping[str, str] | None = None) -> CheckResult:
        """The result on ``accelerator``; whatever the check raises is a failure.

        Args:
            without: names of checks or groups that do not apply to this set-up, with the reason.
        """
        for name in {self.name, self.group} & set(without or ()):
            return CheckResult(self, NOT_APPLICABLE, (without or {})[name])
        try:
            with _restored_state(accelerator):
                return CheckResult(self, PASSED, getattr(self.cls(accelerator), self.name)() or "")
        except DoesNotApplyError as reason:
            return CheckResult(self, NOT_APPLICABLE, str(reason))
        except ConformanceError as reason:
            return CheckResult(self, FAILED, str(reason))
        except (Exception, SystemExit) as error:
            return CheckResult(self, FAILED, f"it raised {describe(error)}")

    def require(self, accelerator: Any, without: Mapping[str, str] | None = None) -> CheckResult:
        """Like :meth:`run`, but raises :class:`ConformanceError` if the check failed."""
        result = self.run(accelerator, without)
        if result.status == FAILED:
            raise ConformanceError(f"{self.name}: {self.proves} {result.note}.")
        return result


@dataclass(frozen=True)
class CheckResult:
    """One line of the report.

    Attributes:
        status: ``passed``, ``failed`` or ``not applicable``.
        note: the reason, or what a passed check has found.
    """

    check: Check
    status: str
    note: str


@dataclass(frozen=True)
class ConformanceReport:
    """The results of all checks on one accelerator; ``str()`` lists the failures and the count of each status."""

    accelerator: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(result for result in self.results if result.status == FAILED)

    @property
    def summary(self) -> str:
        """The count of each status, in one line."""
        statuses = [result.status for result in self.results]
        counts = ", ".join(f"{statuses.count(status)} {status}" for status in (PASSED, FAILED, NOT_APPLICABLE))
        return f"{self.accelerator}: {len(statuses)} checks: {counts}."

    def __str__(self) -> str:
        return "\n".join([*(f"{failed.check}: {failed.note}" for failed in self.failures), self.summary])


class Checks:
    """A group of checks: each public method of a subclass is one, and its docstring states what it proves.

    A check returns a note or None, and raises if it fails or does not apply.
    """

    group: str

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator

    @classmethod
    def collect(cls) -> list[Check]:
        """The checks, in the order of their definition."""
        return [
            Check(cls, name, cls.group, (method.__doc__ or "").strip())
            for name, method in vars(cls).items()
            if callable(method) and not name.startswith("_")
        ]

    def _indices(self) -> range:
        return range(self.accelerator.device_count())

    def _each_device(self) -> Iterator[int]:
        """Every index, made the current device in turn."""
        for index in self._indices():
            self.accelerator.set_device(index)
            yield index

    def _ignores_indices(self) -> bool:
        """Whether set_device() accepts any number and changes nothing, as on the host."""
        former = self.accelerator.current_device()
        if self.accelerator.device_name(former) != self.accelerator.device_name():
            return False  # device strings carry an index, so it must count
        try:
            self.accelerator.set_device(self.accelerator.device_count())
            return bool(self.accelerator.current_device() == former)
        except Exception:
            return False
        finally:
            self.accelerator.set_device(former)

    def _tensor(self, data: Any) -> torch.Tensor:
        """A tensor on the current device."""
        return torch.tensor(data, device=self.accelerator.device_name())

    def _draw(self) -> list[float]:
        """Random numbers from the current device."""
        numbers: list[float] = torch.rand(16, device=self.accelerator.device_name()).cpu().tolist()
        return numbers


@contextmanager
def _restored_state(accelerator: Any) -> Iterator[None]:
    """Restore the current device and the generators, as far as a broken accelerator allows."""
    states: dict[int, Any] = {}
    device = None
    with suppress(Exception):
        device = accelerator.current_device()
        states = {index: accelerator.get_rng_state(index) for index in range(accelerator.device_count())}
    try:
        yield
    finally:
        with suppress(Exception):
            accelerator.set_device(device)
            for index, state in states.items():
                accelerator.set_rng_state(state, index)


def require_device(accelerator: Any) -> None:
    """Raise unless a device is available.

    Raises:
        AcceleratorUnavailableError: ``is_available()`` is False.
    """
    is_available = getattr(accelerator, "is_available", None)
    if is_available is not None and not is_available():  # has_every_member fails without the method
        raise AcceleratorUnavailableError(
            f"No device of {type(accelerator).__name__} is available; the kit needs one.",
            "Run it on a machine with the device and its driver.",
        )


# Used by checks -----------------------------------------------------------------------------


def expect(condition: bool, expected: str, found: object) -> None:
    """Fail the check unless ``condition``."""
    if not condition:
        fail(expected, found)


def fail(expected: str, found: object) -> NoReturn:
    """Fail the check."""
    raise ConformanceError(f"expected {expected}, found {found if isinstance(found, str) else repr(found)}")


def expect_equal(what: str, found: object, expected: object) -> None:
    """Fail the check unless the two are equal."""
    expect(found == expected, f"{what} {expected!r}", found)


def expect_type(what: str, value: object, *kinds: type) -> None:
    """Fail the check unless ``value`` is of one of these types; a bool is no int."""
    is_right = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    names = " or ".join(kind.__name__ for kind in kinds)
    expect(is_right, f"{what} of type {names}", f"{value!r} of type {type(value).__name__}")


def does_not_apply(reason: str) -> NoReturn:
    """End the check: it has no meaning for this device."""
    raise DoesNotApplyError(reason)
