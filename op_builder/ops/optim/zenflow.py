"""The object that ``load()`` returns for Adam on host tensors: the steps of DeepSpeed's ZenFlow in another process.

A trainer and a worker process share the tensors and a control block. The trainer submits a step and computes on; the
worker updates the parameters, and the trainer waits for it before it submits the next one.
"""

import ctypes
import itertools
import os
import time
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from op_builder.errors import IncompatibleOpError, OpArgumentError
from op_builder.ops.arguments import checked_numbers, step_number, switch
from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.tensor_lists import TensorLists

MAX_GROUPS = 1024  # the size of a control block is needed before the number of groups is known
_POLL_S = 1.0  # how often the worker checks that the trainer runs


class _Semaphore(ctypes.Structure):
    _fields_ = [("of_the_c_library", ctypes.c_long * 8)]  # 32 bytes in glibc and musl


class _Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Control(ctypes.Structure):
    """What trainer and worker share; the semaphores order all reads and writes."""

    _fields_ = [
        ("submitted", _Semaphore),
        ("finished", _Semaphore),
        ("count", ctypes.c_int64),  # of groups
        ("requests", ctypes.c_int64),  # how many steps were submitted
        ("state", ctypes.c_int64),
        ("step", ctypes.c_int64),
        ("options", ctypes.c_double * 6 * MAX_GROUPS),  # lr, beta1, beta2, eps, weight_decay, bias_correction
    ]


class _Group(NamedTuple):
    param: torch.Tensor
    grads: tuple[torch.Tensor, torch.Tensor]
    states: tuple[list[list[torch.Tensor]], list[list[torch.Tensor]]]
    stale: torch.Tensor


class _Worker(NamedTuple):
    modes: dict[str, bool]
    cpus: frozenset[int]
    groups: list[_Group]


class ZenFlowOp(HostOp):
    """Adam on host tensors, by :class:`HostOp`'s functions and by DeepSpeed's ``zenflow_adam_`` functions.

    An ``address`` is that of a control block: ``zenflow_adam_ctrl_size()`` bytes of memory that both processes share,
    aligned to 8 bytes, which the caller keeps. Invalid arguments are an OpArgumentError, and change nothing.
    """

    def __init__(self, ops: Any) -> None:
        super().__init__(ops)
        self._workers: dict[int, _Worker] = {}  # by handle
        self._handles = itertools.count()

    def zenflow_adam_create(self, optimizer_id: int, cpus: Sequence[int]) -> int:
        """Return the handle of a worker for an optimizer that ``create_adam`` has made.

        ``cpus`` are the cores that the worker uses, one thread on each; empty for no change.
        """
        try:
            cores = frozenset(map(int, cpus))
        except (TypeError, ValueError):
            raise OpArgumentError(
                f"cpus is {cpus!r}; a list of ints is required.", "Pass a list with the numbers of cores."
            ) from None
        modes = self._modes[self._existing_id(optimizer_id)]
        handle = next(self._handles)
        self._workers[handle] = _Worker(modes, cores, [])
        return handle

    def zenflow_adam_register_group(
        self,
        handle: int,
        param: torch.Tensor,
        grad0: torch.Tensor,
        grad1: torch.Tensor,
        exp_avg0: torch.Tensor,
        exp_avg1: torch.Tensor,
        exp_avg_sq0: torch.Tensor,
        exp_avg_sq1: torch.Tensor,
        stale: torch.Tensor,
    ) -> None:
        """Add a group, one contiguous tensor, to a worker; all tensors are in memory that both processes share.

        A step takes the gradient and the moments of the number that is submitted with it, updates ``param`` and
        copies it to ``stale``. A worker has at most 1,024 groups. The steps check the other tensors.
        """
        groups = self._worker(handle).groups
        if len(groups) == MAX_GROUPS:
            raise OpArgumentError(f"Worker {handle} has {MAX_GROUPS} groups.", "Register fewer, larger groups.")
        if stale.numel() != param.numel():
            raise OpArgumentError(
                f"stale has {stale.numel()} elements, param {param.numel()}.", "Pass tensors of equal length."
            )
        states = ([[exp_avg0], [exp_avg_sq0]], [[exp_avg1], [exp_avg_sq1]])
        groups.append(_Group(param, (grad0, grad1), states, stale))

    def zenflow_adam_run_worker(self, handle: int, address: int) -> None:
        """Run the submitted steps, until ``zenflow_adam_ctrl_exit`` or the end of the parent process.

        The calling thread runs on the worker's cores from then on. Start its process by spawn: after a fork, OpenMP
        waits for threads that only the parent has.
        """
        worker = self._worker(handle)
        control = _Control.from_address(address)
        if control.count != len(worker.groups):
            raise OpArgumentError(
                f"Worker {handle} has {len(worker.groups)} groups, the control block {control.count}.",
                "Register all groups, and pass their number to zenflow_adam_ctrl_init.",
            )
        cores = worker.cpus & os.sched_getaffinity(0)
        if cores:
            os.sched_setaffinity(0, cores)
            torch.set_num_threads(len(cores))
        parent, done = os.getppid(), 0
        while True:
            while not _wait_for(control.submitted, _POLL_S):
                if os.getppid() != parent:
                    return
            if control.requests == done:  # no new step: zenflow_adam_ctrl_exit() was called
                return
            self._step(worker, control)
            done += 1
            _post(control.finished)

    def _step(self, worker: _Worker, control: Any) -> None:
        number = control.state
        for group, given in zip(worker.groups, control.options, strict=False):
            values = {**self.declaration.constants, **worker.modes, **dict(zip(_NAMES, given, strict=True))}
            options = [values[name] for name in self.options]
            tensors = TensorLists([group.param], [group.grads[number]], group.states[number])
            self.update_list(tensors, control.step, options)
            with torch.no_grad():
                group.stale.view(-1).copy_(group.param.view(-1))

    def zenflow_adam_ctrl_size(self) -> int:
        """The size of a control block in bytes."""
        return ctypes.sizeof(_Control)

    def zenflow_adam_ctrl_init(self, address: int, groups: int) -> None:
        """Make a control block for a worker with that many groups, 1 to 1,024.

        Raises:
            IncompatibleOpError: this system has no semaphores that processes can share.
        """
        if not 1 <= groups <= MAX_GROUPS:
            raise OpArgumentError(f"groups is {groups}.", f"Pass a number from 1 to {MAX_GROUPS}.")
        ctypes.memset(address, 0, ctypes.sizeof(_Control))
        control = _Control.from_address(address)
        for semaphore in (control.submitted, control.finished):
            if _library().sem_init(ctypes.byref(semaphore), 1, 0) != 0:
                raise OSError(ctypes.get_errno(), f"sem_init: {os.strerror(ctypes.get_errno())}")
        control.count = groups

    def zenflow_adam_submit(
        self,
        address: int,
        now_state: int,
        step: int,
        lrs: Sequence[float],
        beta1s: Sequence[float],
        beta2s: Sequence[float],
        epss: Sequence[float],
        weight_decays: Sequence[float],
        bias_corrections: Sequence[bool],
    ) -> None:
        """Submit a step and return. Wait for the previous one first.

        Args:
            now_state: 0 or 1, the number of the gradient and the moments.
            step: the number of the update, from 1.
            lrs: the learning rate of each group, and so on.
        """
        control = _Control.from_address(address)
        if now_state not in (0, 1):
            raise OpArgumentError(f"now_state is {now_state!r}; 0 or 1 is required.", "Pass 0 or 1.")
        number = step_number(step)
        lists = (lrs, beta1s, beta2s, epss, weight_decays, bias_corrections)
        lengths = {len(each) for each in lists}
        if lengths != {control.count}:
            raise OpArgumentError(
                f"The options have {sorted(lengths)} entries, and there are {control.count} groups.",
                "Pass one of each option for each group.",
            )
        rows = []
        for *numbers, correction in zip(*lists, strict=True):
            checked = checked_numbers(**dict(zip(_NAMES, numbers, strict=False)))
            rows.append((*checked.values(), float(switch("bias_correction", correction))))
        control.options[: len(rows)] = rows
        control.state, control.step = now_state, number
        control.requests += 1
        _post(control.submitted)

    def zenflow_adam_wait(self, address: int, timeout_s: float) -> bool:
        """Wait for a submitted step; False if none has finished after ``timeout_s`` seconds."""
        return _wait_for(_Control.from_address(address).finished, timeout_s)

    def zenflow_adam_ctrl_exit(self, address: int) -> None:
        """Let the worker return after the submitted step."""
        _post(_Control.from_address(address).submitted)

    def zenflow_adam_destroy(self, handle: int) -> None:
        """Forget a worker and its tensors. An unknown handle is ignored."""
        self._workers.pop(handle, None)

    def _worker(self, handle: int) -> _Worker:
        if handle not in self._workers:
            raise OpArgumentError(f"No worker has the handle {handle!r}.", "Call zenflow_adam_create first.")
        return self._workers[handle]


_NAMES = ("lr", "beta1", "beta2", "eps", "weight_decay", "bias_correction")


@cache
def _library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "sem_timedwait"):
        raise IncompatibleOpError(
            "The C library has no sem_timedwait.", "Set `overlap_step` to false in ZenFlow's configuration."
        )
    return library


def _post(semaphore: Any) -> None:
    _library().sem_post(ctypes.byref(semaphore))


def _wait_for(semaphore: Any, timeout_s: float) -> bool:
    """Decrease a semaphore; False if it is 0 for ``timeout_s``. Signal handlers run meanwhile."""
    end = time.monotonic() + timeout_s
    while True:
        left = max(0.0, end - time.monotonic())
        # sem_timedwait reads the wall clock, which may be changed, so waits are short.
        seconds, fraction = divmod(time.time() + min(left, _POLL_S), 1)
        until = _Time(int(seconds), int(fraction * 1e9))
        if _library().sem_timedwait(ctypes.byref(semaphore), ctypes.byref(until)) == 0:
            return True
        if left == 0:
            return False
