"""The collectives that a process group leaves to gloo."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.distributed_c10d import Work

from op_builder.errors import CommunicationError
from op_builder.ops.comm.arguments import dense, flat_tensors, replace_tensors, write_back

_LOOK = timedelta(seconds=0.5)  # how long a wait for gloo lasts before it checks for other reasons to end


def has_ended(work: Any) -> bool:
    """Whether a work of gloo's ends within half a second.

    Raises:
        RuntimeError: it failed.
    """
    try:
        work.wait(_LOOK)
    except RuntimeError:  # also after that time
        if not work.is_completed():
            return False
        work.wait()
    return True


class GlooCollectives:
    """gloo's part of a group.

    A thread of gloo drops a collective's tensors shortly after the collective is done. A thread that drops the last
    reference needs Python to free the tensor, and aborts the process if the interpreter is ending. So this object keeps
    the works that are not finished, and the last one: during it gloo's threads drop the one before.

    Attributes:
        group: a plain group around gloo, which has every method of the installed torch, whatever its name.
    """

    def __init__(self, store: Store, rank: int, size: int, backend: dist.ProcessGroupGloo) -> None:
        self.group = dist.ProcessGroup(store, rank, size)
        self._owner = os.getpid()
        self._lock = threading.RLock()  # reentrant for signal handlers
        self._works: list[Work] = []
        self._is_closed = False
        register_backend(self.group, backend)

    def run(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Run a collective to its end. Tensors need not be contiguous.

        Raises:
            CommunicationError: the group was destroyed meanwhile.
            OpArgumentError: elements of an output share memory, and their results differ.
            RuntimeError, ValueError: gloo's own errors.
        """
        given = flat_tensors(arguments)
        copies = [dense(tensor) for tensor in given]
        work = self._start(name, replace_tensors(arguments, iter(copies)), keywords)
        while not has_ended(work):
            if self._is_closed:
                raise CommunicationError("The group was destroyed during a collective.", "Make a new one.")
        outputs = flat_tensors(arguments[:1])
        for tensor, result in zip(outputs, copies[: len(outputs)], strict=True):
            write_back(tensor, result)

    def send_or_receive(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Work:
        """Start a transfer between two ranks. The caller's wait finishes it. gloo refuses to receive into a tensor that
        is not contiguous.
        """
        if name == "send":
            arguments = (replace_tensors(arguments[0], map(dense, flat_tensors(arguments[0]))), *arguments[1:])
        work: Work = getattr(self.group, name)(*arguments, **keywords)
        return work

    def close(self) -> None:
        """End the wait of a collective that is running."""
        self._is_closed = True

    def settles_by(self, deadline: float) -> bool:
        """Whether gloo finishes everything, successfully or not, before ``deadline`` (``time.monotonic()``)."""
        if os.getpid() != self._owner:  # a fork's copy has none of gloo's threads
            return True
        for work in self._works:
            left_s = max(deadline - time.monotonic(), 0.001)  # zero would mean no limit
            with contextlib.suppress(RuntimeError):  # it failed, or the time is over
                work.wait(timedelta(seconds=left_s))
            if not work.is_completed():
                return False
        return True

    def _start(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Work:
        work: Work = getattr(self.group, name)(*arguments, **keywords)
        with self._lock:
            self._works = [*(earlier for earlier in self._works if not earlier.is_completed()), work]
        return work


def register_backend(group: dist.ProcessGroup, backend: dist.ProcessGroupGloo) -> None:
    """Make gloo the backend of ``group`` for all devices that it serves."""
    kinds = dist.ProcessGroup.BackendType
    group._set_default_backend(kinds.GLOO)
    for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        group._register_backend(torch.device(device), kinds.GLOO, backend)
