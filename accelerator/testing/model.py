"""What a check is, what comes of it, and what a check is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

from accelerator.errors import UnsupportedFeatureError, describe
from op_builder.errors import AccelError

if TYPE_CHECKING:
    import torch


class Ability(str, Enum):
    """What a set-up may lack, so that checks which need it say so instead of failing."""

    TENSORS = "tensors"
    STREAMS = "streams"
    EVENTS = "events"
    GRAPHS = "graphs"
    PINNED_MEMORY = "pinned-memory"
    CHILD_PROCESSES = "child-processes"


@dataclass(frozen=True)
class Passed:
    """The check holds; ``detail`` says what was seen, where that tells something."""

    detail: str = ""


@dataclass(frozen=True)
class Failed:
    """The check does not hold: what was expected against what was found."""

    reason: str


@dataclass(frozen=True)
class NotApplicable:
    """The check says nothing about this device, and why."""

    reason: str


Outcome = Passed | Failed | NotApplicable


class ConformanceError(AccelError, AssertionError):
    """A check failed."""


class UnmetExpectationError(Exception):
    """Raised inside a check: it failed for this reason."""


class DoesNotApplyError(Exception):
    """Raised inside a check: it does not apply, for this reason."""


def expect(condition: bool, expected: str, found: object) -> None:
    """Fail the check unless ``condition``."""
    if not condition:
        raise UnmetExpectationError(f"expected {expected}, found {found if isinstance(found, str) else repr(found)}")


def expect_equal(what: str, found: object, expected: object) -> None:
    """Fail the check unless the two are equal."""
    expect(found == expected, f"{what} {expected!r}", found)


def expect_type(what: str, value: object, kind: type | tuple[type, ...]) -> None:
    """Fail the check unless ``value`` is of that type; an int is wanted, so a bool is none."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    right = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    names = " or ".join(each.__name__ for each in kinds)
    expect(right, f"{what} of type {names}", f"{value!r} of type {type(value).__name__}")


def does_not_apply(reason: str) -> NoReturn:
    """End the check: it says nothing about this device."""
    raise DoesNotApplyError(reason)


@dataclass(frozen=True)
class Subject:
    """The accelerator under test, and what its set-up lacks by the caller's own word.

    Attributes:
        accelerator: any object that should keep the contract.
        lacks: reasons, by ability.
    """

    accelerator: Any
    lacks: Mapping[Ability, str] = field(default_factory=dict)

    def ignores_indices(self) -> bool:
        """Whether set_device() takes any number and changes nothing: the process is bound elsewhere, as on the host."""
        accelerator = self.accelerator
        former = accelerator.current_device()
        if accelerator.device_name(former) != accelerator.device_name():
            return False  # device strings carry an index, so it must count
        try:
            accelerator.set_device(accelerator.device_count())
            return bool(accelerator.current_device() == former)
        except Exception:
            return False
        finally:
            accelerator.set_device(former)

    def indices(self) -> range:
        """All device indices."""
        return range(self.accelerator.device_count())

    def tensor(self, data: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor on the current device, made as ``torch.tensor`` does."""
        import torch

        return torch.tensor(data, dtype=dtype, device=self.accelerator.device_name())

    def draw(self, count: int = 16) -> list[float]:
        """Random numbers from the current device."""
        import torch

        numbers: list[float] = torch.rand(count, device=self.accelerator.device_name()).cpu().tolist()
        return numbers

    @contextmanager
    def each_device(self) -> Iterator[Iterator[int]]:
        """Every index, made the current device in turn; the former one comes back at the end."""
        former = self.accelerator.current_device()

        def visit() -> Iterator[int]:
            for index in self.indices():
                self.accelerator.set_device(index)
                yield index

        try:
            yield visit()
        finally:
            self.accelerator.set_device(former)


CheckFunction = Callable[[Subject], "str | None"]


@dataclass(frozen=True)
class Check:
    """One named check.

    Attributes:
        name: the function's name; unique.
        group: the theme it belongs to.
        proves: one sentence.
        function: returns a detail or None, raises where the check fails or does not apply.
        needs: what the set-up must have.
    """

    name: str
    group: str
    proves: str
    function: CheckFunction
    needs: frozenset[Ability]

    def __str__(self) -> str:
        return self.name

    def run(self, accelerator: Any, lacks: Mapping[Ability, str] | None = None) -> CheckResult:
        """The result on ``accelerator``; whatever the check raises is a failure."""
        return CheckResult(self.name, self.group, self.proves, self._outcome(Subject(accelerator, lacks or {})))

    def require(self, accelerator: Any, lacks: Mapping[Ability, str] | None = None) -> CheckResult:
        """As :meth:`run`.

        Raises:
            ConformanceError: the check failed.
        """
        result = self.run(accelerator, lacks)
        if isinstance(result.outcome, Failed):
            raise ConformanceError(f"{self.name}: {self.proves} {result.outcome.reason}.")
        return result

    def _outcome(self, subject: Subject) -> Outcome:
        for ability in sorted(self.needs & set(subject.lacks)):
            return NotApplicable(subject.lacks[ability])
        try:
            return Passed(self.function(subject) or "")
        except DoesNotApplyError as reason:
            return NotApplicable(str(reason))
        except UnmetExpectationError as reason:
            return Failed(str(reason))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a device may raise anything, SystemExit included
            return Failed(f"it raised {describe(error)}")


@dataclass(frozen=True)
class CheckResult:
    """One line of the report."""

    name: str
    group: str
    proves: str
    outcome: Outcome

    @property
    def status(self) -> str:
        """``passed``, ``failed`` or ``not applicable``."""
        return {Passed: "passed", Failed: "failed", NotApplicable: "not applicable"}[type(self.outcome)]

    @property
    def note(self) -> str:
        """The reason, or the detail of a check that passed."""
        return self.outcome.detail if isinstance(self.outcome, Passed) else self.outcome.reason


@dataclass(frozen=True)
class ConformanceReport:
    """What came of all checks on one accelerator; ``str()`` lists what failed and the count of each outcome."""

    accelerator: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(result for result in self.results if isinstance(result.outcome, Failed))

    @property
    def summary(self) -> str:
        """The count of each outcome, in one line."""
        statuses = [result.status for result in self.results]
        counts = ", ".join(f"{statuses.count(status)} {status}" for status in ("passed", "failed", "not applicable"))
        return f"{self.accelerator}: {len(statuses)} checks: {counts}."

    def __str__(self) -> str:
        return "\n".join([*(f"{failed.name}: {failed.note}" for failed in self.failures), self.summary])


def collect(*groups: tuple[str, tuple[CheckFunction, ...]]) -> tuple[Check, ...]:
    """Checks of functions, by group; the first line of a function's docstring is what it proves."""
    return tuple(
        Check(
            name=function.__name__,
            group=group,
            proves=(function.__doc__ or "").strip().partition("\n")[0],
            function=function,
            needs=getattr(function, "needs", frozenset()),
        )
        for group, functions in groups
        for function in functions
    )


def needs(*abilities: Ability) -> Callable[[CheckFunction], CheckFunction]:
    """Declare what the set-up of a check must have."""

    def declare(function: CheckFunction) -> CheckFunction:
        function.needs = frozenset(abilities)  # type: ignore[attr-defined]
        return function

    return declare


def unless_unsupported(make: Callable[[], Any]) -> Any:
    """``make()``; where the device refuses it in the contract's way, the check does not apply."""
    try:
        return make()
    except UnsupportedFeatureError as refusal:
        does_not_apply(refusal.message)
