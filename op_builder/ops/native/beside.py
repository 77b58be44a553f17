"""Python code that runs on the calling thread while a native op works on torch's other threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

Value = TypeVar("Value")

# With fewer, what is to be done is done before threads could share it.
_MANY_TENSORS = 1000

_Function = ctypes.CFUNCTYPE(None)


def are_many(tensors: int) -> bool:
    """Whether so many tensors are worth working on beside Python."""
    return tensors >= _MANY_TENSORS


class LookedAt(Protocol):
    """What a native op keeps and looks at before each use.

    Attributes:
        numbers: of the native lists.
        unchanged: for each of them, what the next update need not look at again (``WatchedList::Unchanged`` in
            csrc/bindings/watched_tensors.h).
    """

    numbers: Sequence[int]
    unchanged: list[int]


class _Work(Generic[Value]):
    """A function and what became of it."""

    def __init__(self, function: Callable[[], Value]) -> None:
        self._function = function
        self._error: BaseException | None = None
        self._values: list[Value] = []

    def turns(self) -> Iterator[None]:
        """Calls the function when asked for its second item.

        What a signal's handler raises before the function's first line is kept, too: a generator goes on inside
        its ``try``, where a function would yet have to enter it, and ctypes drops what leaves a callback.
        """
        try:
            yield
            self._values.append(self._function())
        except GeneratorExit:  # nobody asked
            return
        except BaseException as error:
            self._error = error
        yield

    def value(self) -> Value:
        """What the function returned; what it raised is raised."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # whose traceback holds this object
        return self._values[0] if self._values else self._function()


def call_beside(op: Callable[..., Any], arguments: Sequence[Any], work: Callable[[], Value]) -> tuple[Any, Value]:
    """Call an op that calls a C function of ours on this thread, while torch's others do what else there is to do.

    Args:
        op: takes ``arguments`` and the function's address.
        work: what the function does; it must leave the op's tensors as they are.

    Returns:
        What the op returned, and what ``work`` did.

    Raises:
        Exception: what the op raised, before or without ``work``; or what ``work`` did, after all else was done.
    """
    doing = _Work(work)
    turns = doing.turns()
    next(turns)
    function = _Function(partial(next, turns))
    address = ctypes.c_void_p.from_buffer(function).value  # cast() would make a reference cycle
    result = op(*arguments, address)
    return result, doing.value()


def look_beside(look: Callable[..., Any], kept: Sequence[LookedAt], work: Callable[[], Value]) -> Value:
    """Look whether kept tensors are as they were while ``work`` runs. The next update need not do so again.

    Args:
        look: the op that keeps them all.
        work: must leave the tensors as they are.
    """
    numbers = [number for one in kept for number in one.numbers]
    unchanged, value = call_beside(look, (numbers,), work)
    found = iter(unchanged)
    for one in kept:
        one.unchanged = [next(found) for _ in one.numbers]
    return value
