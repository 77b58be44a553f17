"""An object is an accelerator by its members, not by its base classes."""

from __future__ import annotations

from functools import cached_property
from types import FunctionType

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.pinned_memory import PinnedMemory

_ABSENT = object()
_MOST_NAMES = 8


def structural_faults(candidate: object) -> list[str]:
    """Why ``candidate`` is not an accelerator, as phrases; empty if it is one.

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
