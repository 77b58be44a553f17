"""What makes an object an accelerator: the members it has, not the class it descends from."""

from __future__ import annotations

from functools import cached_property
from types import FunctionType

from accelerator.abstract_accelerator import DeepSpeedAccelerator

_ABSENT = object()
_MOST_NAMES = 8


def structural_faults(candidate: object) -> list[str]:
    """What keeps ``candidate`` from being an accelerator, as phrases; empty when nothing does.

    The abstract members must exist; those that :class:`DeepSpeedAccelerator` defines itself may be
    missing. All that exist must be of the right kind, a method or a value. No property is
    evaluated, since that may start the device.
    """
    if isinstance(candidate, type):
        return [f"it is the class {candidate.__name__}, where an object of it is needed"]
    # inspect.getattr_static() for eighty names takes longer than everything else in get_accelerator().
    namespaces = [getattr(candidate, "__dict__", {}), *map(vars, type(candidate).__mro__)]
    is_proxy = hasattr(type(candidate), "__getattr__")
    missing: list[str] = []
    wrong: list[str] = []
    for name, declared in vars(DeepSpeedAccelerator).items():
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
        elif not _is_method(member):
            kind = "a property" if isinstance(member, property) else f"a value of type {type(member).__name__}"
            wrong.append(f"{name} must be a method, found {kind}")
    if missing:
        more = f" and {len(missing) - _MOST_NAMES} more" if len(missing) > _MOST_NAMES else ""
        return [f"missing: {', '.join(missing[:_MOST_NAMES])}{more}", *wrong]
    return wrong


def _is_method(member: object) -> bool:
    """Whether it is called, or is a descriptor that gives what is called: classmethod, functools.partialmethod ..."""
    gives_value = isinstance(member, cached_property) or hasattr(type(member), "__set__")  # as every property has
    return callable(member) or (hasattr(type(member), "__get__") and not gives_value)
