"""Collectives by gloo: those that a process group leaves to it, and those between hosts."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.distributed_c10d import Work

from op_builder.errors import CommunicationError, OpArgumentError
from op_builder.ops.arguments import require_memory
from op_builder.ops.comm.arguments import (
    Tensors,
    dense,
    flat_tensors,
    is_plain,
    replace_tensors,
    require_apart,
    require_gloo_tensors,
    write_back,
)

_POLL_INTERVAL = timedelta(seconds=0.5)  # how long a wait for gloo lasts before it checks for other reasons to end
_PAUSE_S = 0.001


def has_ended(work: Any) -> bool:
    """Whether a work of gloo's ends within half a second; raises its RuntimeError if it failed.

    torch's reduce_scatter never says that it is completed: it failed if its wait ends early.
    """
    began = time.monotonic()
    try:
        work.wait(_POLL_INTERVAL)
    except RuntimeError:  # failed, or timed out
        if work.is_completed():
            work.wait()
        elif time.monotonic() - began < _POLL_INTERVAL.total_seconds():
            raise
        else:
            return False
    return True


class LentTensors:
    """The tensors that gloo works on, kept until its threads have dropped them, and its barriers until they end.

    A thread of gloo drops a collective's tensors shortly after the collective is done. A thread that drops the last
    reference needs Python to free the tensor. If the interpreter is ending, that aborts the process.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant for signal handlers
        self._lent: list[torch.Tensor | Work] = []

    def lend(self, tensors: Tensors, start: Callable[[Tensors], Work]) -> Work:
        """Start a collective on new tensor objects of the same memory, to which only we and gloo have references."""
        # A sparse tensor's memory is replaced by the result, so gloo gets the caller's own object.
        lent = [tensor.detach() if is_plain(tensor) else tensor for tensor in tensors]
        work = start(lent)
        with self._lock:
            self._lent = [*self._used(), *lent, *([] if lent else [work])]
        return work

    def are_back_by(self, deadline: float) -> bool:
        """Whether gloo finishes everything and drops all tensors before ``deadline`` (``time.monotonic()``)."""
        while self.are_used():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE_S)
        return True

    def are_used(self) -> bool:
        """Whether gloo still works on a tensor or keeps one."""
        with self._lock:
            self._lent = self._used()
            return bool(self._lent)

    def _used(self) -> list[torch.Tensor | Work]:
        return [each for each in self._lent if _is_used(each)]


def _is_used(lent: torch.Tensor | Work) -> bool:
    if isinstance(lent, Work):  # a barrier has no tensors
        return not lent.is_completed()
    # A running collective refers to its tensors. Python's references count as one.
    return bool(lent._use_count() > 1)  # type: ignore[attr-defined]


_kept: list[tuple[Callable[[], bool], object]] = []


def keep_while(is_used: Callable[[], bool], kept: object) -> None:
    """Keep an object as long as gloo uses it: freeing it earlier would wait for gloo's collective.

    What gloo has finished with is freed at the next call of this function.
    """
    _kept[:] = [each for each in _kept if each[0]()]
    _kept.append((is_used, kept))


def never_free(kept: object) -> None:
    """Keep an object for the rest of the process, which ends while gloo may use it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


@atexit.register
def _never_free_kept() -> None:
    for _, kept in _kept:
        never_free(kept)


class GroupGloo(dist.ProcessGroupGloo):
    """gloo as the backend of a group. torch changes a group's timeout through it, so it reports the change."""

    on_timeout: Callable[[float], None] | None = None

    def _set_default_timeout(self, timeout: timedelta) -> None:
        super()._set_default_timeout(timeout)
        if self.on_timeout is not None:
            self.on_timeout(timeout.total_seconds())

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the limit of a wait for another rank."""
        self._set_default_timeout(timeout)


class GlooCollectives:
    """gloo's part of a group.

    Attributes:
        group: a plain group around gloo, which has all collectives of the installed torch.
    """

    def __init__(self, store: Store, rank: int, size: int, backend: dist.ProcessGroupGloo) -> None:
        self.group = dist.ProcessGroup(store, rank, size)
        self._owner = os.getpid()
        self._lent = LentTensors()
        self._is_closed = False
        register_backend(self.group, backend)

    def run(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Run a collective until it or the group ends; also raises gloo's errors. Tensors need not be contiguous."""
        require_gloo_tensors(name, arguments, keywords)
        given, outputs = flat_tensors(arguments), flat_tensors(arguments[:1])
        require_apart(outputs)
        copies = [dense(tensor) for tensor in given]
        start = getattr(self.group, name)
        work = self._lent.lend(copies, lambda lent: start(*replace_tensors(arguments, iter(lent)), **keywords))
        while not has_ended(work):
            if self._is_closed:
                raise CommunicationError("The group was destroyed during a collective.", "Create a new group.")
        for tensor, result in zip(outputs, copies[: len(outputs)], strict=True):
            write_back(tensor, result)

    def send_or_receive(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Work:
        """Start a transfer between two ranks. The caller's wait finishes it. A tensor to fill must be contiguous."""
        for tensor in flat_tensors(arguments[0]):
            require_memory("The tensor", tensor)
        if name != "send" and not all(tensor.is_contiguous() for tensor in flat_tensors(arguments[0])):
            raise OpArgumentError(
                "The tensor to receive into is not contiguous.", "Receive into x.contiguous(), and copy that to x."
            )
        if name == "send":
            arguments = (replace_tensors(arguments[0], map(dense, flat_tensors(arguments[0]))), *arguments[1:])
        work: Work = getattr(self.group, name)(*arguments, **keywords)
        return work

    def close(self) -> None:
        """End the wait of a collective that is running."""
        self._is_closed = True

    def is_busy(self) -> bool:
        """Whether gloo still works for this group."""
        return self._lent.are_used()

    def finishes_by(self, deadline: float) -> bool:
        """Whether gloo finishes everything, successfully or not, before ``deadline`` (``time.monotonic()``)."""
        return os.getpid() != self._owner or self._lent.are_back_by(deadline)  # a fork's copy has no threads of gloo


def register_backend(group: dist.ProcessGroup, backend: dist.ProcessGroupGloo) -> None:
    """Make gloo the backend of ``group`` for all devices that it serves."""
    kinds = dist.ProcessGroup.BackendType
    group._set_default_backend(kinds.GLOO)
    for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        group._register_backend(torch.device(device), kinds.GLOO, backend)
