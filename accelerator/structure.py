"""What makes an object an accelerator: the members it has, not the class it descends from."""

from __future__ import annotations

import inspect
from functools import cached_property
from types import FunctionType

from accelerator.abstract_accelerator import DeepSpeedAccelerator

_ABSENT = object()
_MOST_NAMES = 8


def structural_faults(candidate: object) -> list[str]:
    """What keeps ``candidate`` from being an accelerator, as phrases; empty when nothing does.

    The abstract members must be there; those that :class:`DeepSpeedAccelerator` defines itself may
    be missing. All that are there must be of the right kind, a method or a value. No property is
    evaluated, since that may start the device.
    """
    if isinstance(candidate, type):
        return [f"it is the class {candidate.__name__}, where an object of it is needed"]
    missing: list[str] = []
    wrong: list[str] = []
    for name, declared in vars(DeepSpeedAccelerator).items():
        if name.startswith("_"):
            continue
        member = _member(candidate, name)
        if member is _ABSENT:
            if getattr(declared, "__isabstractmethod__", False):
                missing.append(name)
        elif isinstance(declared, property):
            if isinstance(member, (FunctionType, classmethod, staticmethod)):
                wrong.append(f"{name} must be a property, found a method")
        elif not _is_method(member):
            wrong.append(f"{name} must be a method, found {_kind(member)}")
    if len(missing) > _MOST_NAMES:
        return [f"missing: {', '.join(missing[:_MOST_NAMES])} and {len(missing) - _MOST_NAMES} more", *wrong]
    return ([f"missing: {', '.join(missing)}"] if missing else []) + wrong


def _member(candidate: object, name: str) -> object:
    member = inspect.getattr_static(candidate, name, _ABSENT)
    if member is _ABSENT and hasattr(type(candidate), "__getattr__"):  # a proxy answers only when asked
        return getattr(candidate, name, _ABSENT)
    return member


def _is_method(member: object) -> bool:
    """Whether it is called, or is a descriptor that gives what is called: classmethod, functools.partialmethod ..."""
    gives_value = isinstance(member, cached_property) or hasattr(type(member), "__set__")  # as every property has
    return callable(member) or (hasattr(type(member), "__get__") and not gives_value)


def _kind(member: object) -> str:
    return "a property" if isinstance(member, property) else f"a value of type {type(member).__name__}"
