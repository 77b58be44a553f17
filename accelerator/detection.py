"""Choosing one accelerator among candidates, with the reason for each; a function of its arguments only.

If a candidate raises an exception, the candidate is rejected and the exception is the reason, so a broken vendor
package never affects another device. The classes are plain ones: every process that asks for its accelerator imports
this module, and a dataclass or named tuple takes ten times as long to create.
"""

from __future__ import annotations

from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.errors import AcceleratorSelectionError, describe
from accelerator.pinned_memory import PinnedMemory
from accelerator.vendors import import_vendor
from op_builder.messages import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_ABSENT = object()
_MOST_NAMES = 8


class Candidate:
    """An accelerator that could be chosen.

    Args:
        name: its name in the override; several candidates may share a name.
        label: its name in the trace.
        priority: candidates with a higher one are tried earlier.
        load: returns the accelerator's class; may raise.
        vendor_package: imported before the class when a device is probed; absent on most machines.
        requirement: beginning of the error if the override names it and it is unusable; by default the class's
            ``missing_message()``.
        without_device: whether an override accepts it without a probe.
        reason_to_skip: why detection should ignore it although it works; an override ignores this.
        rejection: why it can never be chosen; part of every trace.
    """

    def __init__(
        self,
        name: str,
        label: str,
        priority: int,
        load: Callable[[], Any],
        *,
        vendor_package: str | None = None,
        requirement: str = "",
        without_device: bool = False,
        reason_to_skip: Callable[[], str | None] | None = None,
        rejection: str | None = None,
    ) -> None:
        self.name, self.label, self.priority, self.load = name, label, priority, load
        self.vendor_package, self.requirement, self.without_device = vendor_package, requirement, without_device
        self.reason_to_skip, self.rejection = reason_to_skip, rejection


class TraceEntry:
    """One line of the trace; ``reason`` is why the candidate was not chosen, None for the chosen one."""

    def __init__(self, name: str, label: str, reason: str | None) -> None:
        self.name, self.label, self.reason = name, label, reason


class Selection:
    """The result of a choice.

    Attributes:
        accelerator: the chosen one, or None if none can be used.
        name: its name; empty if none was chosen.
        requested: the override's name, None for detection.
        error: why no accelerator can be used, or None.
        trace: an entry for each candidate, in the order tried.
    """

    def __init__(
        self,
        trace: Iterable[TraceEntry] = (),
        *,
        accelerator: DeepSpeedAccelerator | None = None,
        name: str = "",
        requested: str | None = None,
        error: AcceleratorSelectionError | None = None,
    ) -> None:
        self.trace, self.accelerator, self.name = tuple(trace), accelerator, name
        self.requested, self.error = requested, error

    def require(self) -> DeepSpeedAccelerator:
        """The accelerator; raises the error if none was found."""
        if self.accelerator is None:
            raise self.error or AcceleratorSelectionError("No accelerator was chosen.")
        return self.accelerator


def select(candidates: Iterable[Candidate], name: str | None = None) -> Selection:
    """The first candidate that works; later ones are not tried.

    Args:
        candidates: without ``name`` they are tried by falling priority, equal ones in the given order.
        name: the override, in small letters; only candidates with that name are tried, in the given order.
    """
    candidates = list(candidates)
    if name is None:
        candidates.sort(key=lambda candidate: -candidate.priority)
    trace: list[TraceEntry] = []
    rejected: list[tuple[Candidate, str]] = []
    chosen: Candidate | None = None
    accelerator: Any = None
    for candidate in candidates:
        is_meant = name in (None, candidate.name.lower())
        if candidate.rejection is None and not is_meant:
            reason: str | None = f"not tried: the environment selects {name!r}"
        elif candidate.rejection is None and chosen is not None:
            reason = f"not tried: {chosen.label} comes first"
        else:
            reason, found = _try(candidate, is_named=name is not None)
            if reason is None:
                chosen, accelerator = candidate, found
            elif is_meant:
                rejected.append((candidate, reason))
        trace.append(TraceEntry(candidate.name, candidate.label, reason))
    if chosen is not None:
        return Selection(trace, accelerator=accelerator, name=chosen.name, requested=name)
    return Selection(trace, requested=name, error=_selection_error(name, candidates, rejected))


def _try(candidate: Candidate, *, is_named: bool) -> tuple[str | None, Any]:
    """The reason for a rejection, or the accelerator; the other is None."""
    if candidate.rejection is not None:
        return candidate.rejection, None
    try:
        if candidate.vendor_package is not None:
            import_vendor(candidate.vendor_package)
        accelerator_class = candidate.load()
        reason = None if is_named and candidate.without_device else _probe(accelerator_class)
        if reason is None and not is_named and candidate.reason_to_skip is not None:
            reason = candidate.reason_to_skip()
        if reason is not None:
            is_text = isinstance(reason, str) and reason.strip()
            return reason if is_text else f"probe() must return None or a reason (str), found {reason!r}", None
        accelerator = accelerator_class()
        reasons = rejection_reasons(accelerator)
        return ("not an accelerator: " + "; ".join(reasons), None) if reasons else (None, accelerator)
    except (Exception, SystemExit) as error:
        return describe(error), None


def _probe(accelerator_class: Any) -> str | None:
    """Why the device is unusable, or None: the class's ``probe()``, else whether an object of it is available."""
    probe: Callable[[], str | None] | None = getattr(accelerator_class, "probe", None)
    if probe is not None:
        return probe()
    return None if accelerator_class().is_available() else "no device is available: is_available() is False"


def _selection_error(
    name: str | None, candidates: list[Candidate], rejected: list[tuple[Candidate, str]]
) -> AcceleratorSelectionError:
    if name is None:
        reasons = "".join(f"\n  {candidate.label}: {reason}" for candidate, reason in rejected)
        return AcceleratorSelectionError(
            f"No accelerator can be used, not even the CPU:{reasons}",
            "Run `pip install 'torch>=2.10'`. If torch is installed, fix the error of `python -c 'import torch'`.",
        )
    other = "ACCEL_ACCELERATOR to another name, or unset ACCEL_ACCELERATOR and DS_ACCELERATOR to detect one."
    if not rejected:
        names = list(dict.fromkeys(candidate.name for candidate in candidates))
        remedy = f"{did_you_mean(name, names)} Set {other}".lstrip()
        return AcceleratorSelectionError(f"Unknown accelerator {name!r}; allowed are {', '.join(names)}.", remedy)
    reason = rejected[0][1]
    if len(rejected) > 1:
        reason = "; ".join(f"{candidate.label}: {reason}" for candidate, reason in rejected)
    return AcceleratorSelectionError(_unusable(rejected[0][0], reason), f"Install what is missing, set {other}")


def _unusable(candidate: Candidate, reason: str) -> str:
    if not candidate.requirement:
        try:
            return str(candidate.load().missing_message(reason))
        except (Exception, SystemExit):  # a broken torch breaks the class, too
            pass
    return f"{candidate.requirement or f'Accelerator {candidate.name!r} cannot be used'} ({reason})."


def rejection_reasons(candidate: object) -> list[str]:
    """Why ``candidate`` is not an accelerator, as phrases; empty if it is one. Its base classes do not matter.

    The abstract members must exist, and every member must be of the right kind, a method or a property. No property is
    evaluated, since that may start the device.
    """
    if isinstance(candidate, type):
        return [f"it is the class {candidate.__name__}, not an instance of it"]
    # inspect.getattr_static() for eighty names takes longer than everything else in get_accelerator().
    namespaces = [getattr(candidate, "__dict__", {}), *map(vars, type(candidate).__mro__)]
    is_proxy = hasattr(type(candidate), "__getattr__")
    missing: list[str] = []
    wrong: list[str] = []
    for name, declared in {**vars(PinnedMemory), **vars(DeepSpeedAccelerator)}.items():
        if name.startswith("_"):
            continue
        member = next((namespace[name] for namespace in namespaces if name in namespace), _ABSENT)
        if member is _ABSENT and is_proxy:
            member = getattr(candidate, name, _ABSENT)
        if member is _ABSENT:
            if getattr(declared, "__isabstractmethod__", False):
                missing.append(name)
        elif isinstance(declared, property):
            if isinstance(member, (FunctionType, classmethod, staticmethod)):
                wrong.append(f"{name} must be a property, found a method")
        elif isinstance(declared, bool):
            if callable(member):
                wrong.append(f"{name} must be a bool, found a method")
        elif not _is_method(member):
            kind = "a property" if isinstance(member, property) else f"a value of type {type(member).__name__}"
            wrong.append(f"{name} must be a method, found {kind}")
    if missing:
        more = f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
        return [f"missing: {', '.join(missing[:_MOST_NAMES])}{more}", *wrong]
    return wrong


def _is_method(member: object) -> bool:
    """Whether it is callable or a descriptor that returns a callable, such as functools.partialmethod."""
    returns_value = isinstance(member, cached_property) or hasattr(type(member), "__set__")  # as every property has
    return callable(member) or (hasattr(type(member), "__get__") and not returns_value)
