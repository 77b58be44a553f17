"""States of parameters that record when they are changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Changes:
    """Whether an entry of several dictionaries was changed."""

    __slots__ = ("any",)

    def __init__(self) -> None:
        self.any = False


class StateEntry(dict[str, Any]):
    """A parameter's state that records when it is changed.

    Comparing the tensors of ten thousand entries would take a sixth of a step. It is copied and saved as a plain
    dictionary.
    """

    __slots__ = ("_changes",)

    def __init__(self, entries: Mapping[str, Any], changes: Changes) -> None:
        super().__init__(entries)
        self._changes = changes

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _recording(name: str) -> Any:
    method = getattr(dict, name)

    def changed(self: StateEntry, *arguments: Any, **keywords: Any) -> Any:
        self._changes.any = True
        return method(self, *arguments, **keywords)

    return changed


for _name in ("__setitem__", "__delitem__", "__ior__", "update", "setdefault", "pop", "popitem", "clear"):
    setattr(StateEntry, _name, _recording(_name))
