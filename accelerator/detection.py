"""Choosing one accelerator among candidates, and saying why: functions of their arguments only.

A :class:`Candidate` knows how to ask for its device and how to make its object. The functions here
put candidates in order, ask them, and give back the choice with a trace that has one
:class:`Verdict` for each candidate. What a candidate raises is the reason of its rejection, so a
broken vendor package never breaks anybody else's device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accelerator.errors import AcceleratorSelectionError, describe
from accelerator.structure import structural_faults

if TYPE_CHECKING:
    from accelerator.abstract_accelerator import DeepSpeedAccelerator


@dataclass(frozen=True)
class Candidate:
    """An accelerator that could be chosen.

    Attributes:
        name: what the override calls it; several candidates may be ways to one name.
        label: what the trace calls it.
        priority: higher is asked earlier.
        probe: why the device cannot be used here, or None when it can; may raise.
        create: makes the accelerator object; may raise.
        needs: the full sentence for a person who asked for this one by name, from the reason.
        objection: why detection should not take it although it works; not asked in an override.
        without_device: whether an override takes it without probing.
        fault: why it can never be chosen, whatever the devices; told also when another is taken.
    """

    name: str
    label: str
    priority: int
    probe: Callable[[], str | None]
    create: Callable[[], DeepSpeedAccelerator]
    needs: Callable[[str], str] = str
    objection: Callable[[], str | None] | None = None
    without_device: bool = False
    fault: str | None = None


@dataclass(frozen=True)
class Accepted:
    """The candidate was chosen."""

    accelerator: DeepSpeedAccelerator


@dataclass(frozen=True)
class Rejected:
    """The candidate was not chosen, and why; ``missing_package`` is what it failed to import."""

    reason: str
    missing_package: str | None = None


@dataclass(frozen=True)
class Verdict:
    """One line of the trace."""

    name: str
    label: str
    outcome: Accepted | Rejected


@dataclass(frozen=True)
class Chosen:
    """One accelerator was chosen; ``requested`` is the override's name, None when it was detected."""

    name: str
    accelerator: DeepSpeedAccelerator
    requested: str | None
    trace: tuple[Verdict, ...]


@dataclass(frozen=True)
class Refused:
    """No accelerator can be had, as ``error`` explains."""

    error: AcceleratorSelectionError
    trace: tuple[Verdict, ...]


def detect(candidates: Iterable[Candidate]) -> Chosen | Refused:
    """The first candidate, by falling priority, that works; those after it are not asked.

    Candidates of equal priority are asked in the given order.
    """
    trace: list[Verdict] = []
    chosen: Verdict | None = None
    for candidate in sorted(candidates, key=lambda candidate: -candidate.priority):
        if chosen is None or candidate.fault is not None:
            verdict = Verdict(candidate.name, candidate.label, _ask(candidate, named=False))
            if isinstance(verdict.outcome, Accepted):
                chosen = verdict
        else:
            verdict = Verdict(candidate.name, candidate.label, Rejected(f"not asked: {chosen.label} comes first"))
        trace.append(verdict)
    complaint = "No accelerator can be used, not even the CPU:" + _listing(trace)
    return _conclude(chosen, None, trace, complaint, "Check the installation of torch.")


def select_named(name: str, candidates: Iterable[Candidate]) -> Chosen | Refused:
    """The accelerator that an override names: the first candidate of that name that works."""
    trace: list[Verdict] = []
    chosen: Verdict | None = None
    refused: list[tuple[Candidate, Rejected]] = []
    allowed: dict[str, None] = {}  # a set that keeps its order
    for candidate in candidates:
        allowed[candidate.name] = None
        if candidate.fault is None and (candidate.name != name or chosen is not None):
            verdict = Verdict(candidate.name, candidate.label, Rejected(f"not asked: the environment names {name!r}"))
        else:
            verdict = Verdict(candidate.name, candidate.label, _ask(candidate, named=True))
            if isinstance(verdict.outcome, Accepted):
                chosen = verdict
            elif candidate.name == name:
                refused.append((candidate, verdict.outcome))
        trace.append(verdict)
    complaint = f"Unknown accelerator {name!r}; allowed are {', '.join(allowed)}."
    if len(refused) == 1:
        complaint = _needs(refused[0][0], refused[0][1].reason)
    elif refused:
        complaint = _needs(
            refused[0][0], "; ".join(f"{candidate.label}: {outcome.reason}" for candidate, outcome in refused)
        )
    missing = [outcome.missing_package for _, outcome in refused]
    remedy = "set ACCEL_ACCELERATOR to another name, or unset ACCEL_ACCELERATOR and DS_ACCELERATOR to detect one."
    if any(missing):  # of several ways, one may lack something else than a package
        remedy = (
            f"install {' or '.join(dict.fromkeys(map(str, missing))) if all(missing) else 'one of these'}, {remedy}"
        )
    remedy = remedy[0].upper() + remedy[1:]
    return _conclude(chosen, name, trace, complaint, remedy)


def _needs(candidate: Candidate, reason: str) -> str:
    try:
        return candidate.needs(reason)
    except KeyboardInterrupt:
        raise
    except BaseException:  # where torch is broken, so is the class that has the sentence
        return f"Accelerator {candidate.name!r} cannot be used: {reason}."


def _ask(candidate: Candidate, *, named: bool) -> Accepted | Rejected:
    if candidate.fault is not None:
        return Rejected(candidate.fault)
    try:
        reason = None if named and candidate.without_device else candidate.probe()
        if reason is None and not named and candidate.objection is not None:
            reason = candidate.objection()
        if reason is not None:
            told = isinstance(reason, str) and reason.strip()
            return Rejected(reason if told else f"probe() must return None or a reason (str), found {reason!r}")
        accelerator = candidate.create()
        faults = structural_faults(accelerator)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a vendor's import may raise anything, SystemExit included
        return Rejected(describe(error), error.name if isinstance(error, ModuleNotFoundError) else None)
    return Rejected("not an accelerator: " + "; ".join(faults)) if faults else Accepted(accelerator)


def _conclude(
    chosen: Verdict | None, requested: str | None, trace: list[Verdict], complaint: str, remedy: str
) -> Chosen | Refused:
    if chosen is not None and isinstance(chosen.outcome, Accepted):
        return Chosen(chosen.name, chosen.outcome.accelerator, requested, tuple(trace))
    return Refused(AcceleratorSelectionError(complaint, remedy), tuple(trace))


def _listing(trace: Iterable[Verdict]) -> str:
    return "".join(
        f"\n  {verdict.label}: {verdict.outcome.reason}" for verdict in trace if isinstance(verdict.outcome, Rejected)
    )
