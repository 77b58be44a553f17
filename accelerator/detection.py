"""Choosing one accelerator among candidates, with the reason for each; a function of its arguments only.

An exception that a candidate raises is the reason for its rejection, so a broken vendor package
never affects another device. The values are named tuples, which take a third of a dataclass's
time to create: every process that asks for its accelerator imports this module.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from accelerator.errors import AcceleratorSelectionError, describe
from accelerator.structure import structural_faults
from accelerator.vendors import import_vendor

if TYPE_CHECKING:
    from accelerator.abstract_accelerator import DeepSpeedAccelerator


class Candidate(NamedTuple):
    """An accelerator that could be chosen."""

    name: str
    """What the override calls it; several candidates may share a name."""
    label: str
    """What the trace calls it."""
    priority: int
    """Higher is asked earlier."""
    load: Callable[[], Any]
    """Returns the accelerator's class; may raise."""
    vendor_package: str | None = None
    """Imported before the class when a device is asked for; absent on most machines."""
    requirement: str = ""
    """Beginning of the error where it was named and cannot be used; empty: ask ``missing_message()`` of the class."""
    probe: str = "probe"
    """The class's method that returns why the device cannot be used here, or None; empty: ask ``is_available()``."""
    without_device: bool = False
    """Whether an override takes it without probing."""
    reason_to_skip: Callable[[], str | None] | None = None
    """Why detection should ignore it although it works; not asked in an override."""
    fault: str | None = None
    """Why it can never be chosen; part of every trace."""


class Verdict(NamedTuple):
    """One line of the trace; ``reason`` is why the candidate was rejected, None for the chosen one."""

    name: str
    label: str
    reason: str | None


class Chosen(NamedTuple):
    """One accelerator was chosen; ``requested`` is the override's name, None when it was detected."""

    name: str
    accelerator: "DeepSpeedAccelerator"
    requested: str | None
    trace: tuple[Verdict, ...]


class Refused(NamedTuple):
    """No accelerator can be used, as ``error`` explains."""

    error: AcceleratorSelectionError
    trace: tuple[Verdict, ...]


def select(candidates: Iterable[Candidate], name: str | None = None) -> Chosen | Refused:
    """The first candidate that works; those after it are not asked.

    Args:
        candidates: without ``name`` they are asked by falling priority, equal ones in the given order.
        name: the override; only candidates of that name are asked, in the given order.
    """
    candidates = list(candidates)
    if name is None:
        candidates.sort(key=lambda candidate: -candidate.priority)
    trace: list[Verdict] = []
    rejected: list[tuple[Candidate, str]] = []  # those that were asked
    chosen: Candidate | None = None
    accelerator: Any = None
    for candidate in candidates:
        if candidate.fault is None and name not in (None, candidate.name):
            reason: str | None = f"not asked: the environment names {name!r}"
        elif candidate.fault is None and chosen is not None:
            reason = f"not asked: {chosen.label} comes first"
        else:
            reason, found = _ask(candidate, is_named=name is not None)
            if reason is None:
                chosen, accelerator = candidate, found
            elif name in (None, candidate.name):
                rejected.append((candidate, reason))
        trace.append(Verdict(candidate.name, candidate.label, reason))
    if chosen is not None:
        return Chosen(chosen.name, accelerator, name, tuple(trace))
    return Refused(_refusal(name, candidates, rejected), tuple(trace))


def _ask(candidate: Candidate, *, is_named: bool) -> tuple[str | None, Any]:
    """Why the candidate is rejected, and its accelerator; one of the two is None."""
    if candidate.fault is not None:
        return candidate.fault, None
    try:
        if candidate.vendor_package is not None:
            import_vendor(candidate.vendor_package)
        accelerator_class = candidate.load()
        reason = None if is_named and candidate.without_device else _probe(accelerator_class, candidate.probe)
        if reason is None and not is_named and candidate.reason_to_skip is not None:
            reason = candidate.reason_to_skip()
        if reason is not None:
            is_text = isinstance(reason, str) and reason.strip()
            return reason if is_text else f"probe() must return None or a reason (str), found {reason!r}", None
        accelerator = accelerator_class()
        faults = structural_faults(accelerator)
        return ("not an accelerator: " + "; ".join(faults), None) if faults else (None, accelerator)
    except (Exception, SystemExit) as error:
        return describe(error), None


def _probe(accelerator_class: Any, method: str) -> str | None:
    """The class's own answer; without such a method, whether an object of it is available."""
    probe: Callable[[], str | None] | None = getattr(accelerator_class, method, None)
    if probe is not None:
        return probe()
    return None if accelerator_class().is_available() else "no device is available: is_available() is False"


def _refusal(
    name: str | None, candidates: list[Candidate], rejected: list[tuple[Candidate, str]]
) -> AcceleratorSelectionError:
    if name is None:
        reasons = "".join(f"\n  {candidate.label}: {reason}" for candidate, reason in rejected)
        return AcceleratorSelectionError(
            f"No accelerator can be used, not even the CPU:{reasons}", "Check the installation of torch."
        )
    other = "set ACCEL_ACCELERATOR to another name, or unset ACCEL_ACCELERATOR and DS_ACCELERATOR to detect one."
    if not rejected:
        allowed = ", ".join(dict.fromkeys(candidate.name for candidate in candidates))
        return AcceleratorSelectionError(f"Unknown accelerator {name!r}; allowed are {allowed}.", f"S{other[1:]}")
    reason = rejected[0][1]
    if len(rejected) > 1:
        reason = "; ".join(f"{candidate.label}: {reason}" for candidate, reason in rejected)
    return AcceleratorSelectionError(_unusable(rejected[0][0], reason), f"Install what is missing, {other}")


def _unusable(candidate: Candidate, reason: str) -> str:
    if not candidate.requirement:
        try:
            return str(candidate.load().missing_message(reason))
        except (Exception, SystemExit):  # where torch is broken, so is the class that has the sentence
            pass
    return f"{candidate.requirement or f'Accelerator {candidate.name!r} cannot be used'} ({reason})."
