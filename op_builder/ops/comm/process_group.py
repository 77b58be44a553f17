"""The process group of the backend "accel"."""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.distributed_c10d import Work

from op_builder.errors import CommunicationError, SharedMemoryCommError
from op_builder.ops.comm.arguments import (
    REDUCIBLE,
    Tensors,
    are_alike,
    are_plain,
    as_list,
    is_async,
    reduction,
)
from op_builder.ops.comm.collectives import Collectives
from op_builder.ops.comm.hosts import Layout
from op_builder.ops.comm.work import CollectiveWork, WorkQueue

logger = logging.getLogger(__name__)

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]

_WITHOUT_THREAD = ("send", "recv", "recv_anysource")  # the caller's own wait ends them
_PATIENCE_S = 5.0  # how long the end of a group or of the process waits for what gloo has not finished


@dataclass(frozen=True)
class CollectiveCounts:
    """How often a group did what, by the names of :class:`torch.distributed.ProcessGroup`'s methods.

    Attributes:
        ours: collectives through shared memory, and between hosts through what was chosen for that.
        gloo: what was given to gloo, because it is not covered.
    """

    ours: Mapping[str, int]
    gloo: Mapping[str, int]


@dataclass(frozen=True)
class Parts:
    """What a group is made of.

    Attributes:
        gloo: does what is not covered.
        collectives: do what is; None where shared memory cannot be used, so that gloo does all.
        layout: which rank is on which host.
        name: of the group, for messages.
        global_ranks: of its ranks, those they have in the default group; empty for that one.
    """

    gloo: dist.ProcessGroupGloo
    collectives: Collectives | None
    layout: Layout
    name: str
    global_ranks: tuple[int, ...] = ()


_living: weakref.WeakSet[AccelProcessGroup] = weakref.WeakSet()


class AccelProcessGroup(dist.ProcessGroup):
    """Collectives of CPU tensors through shared memory, and through gloo what that does not do.

    Covered are all-reduce and reduce-scatter with sum, avg, max and min of float32, bfloat16, float16 and int32 (but
    no avg of that), and all-gather, broadcast and barrier of any type; with their coalesced forms, under the names of
    torch 2.13 and the older ones. Tensors that are sparse, elsewhere than in host memory or of a subclass go to gloo.

    Synchronous collectives are done by the caller. Asynchronous ones are done by a thread of the group, or by whoever
    waits for them first; all in the order in which they were called.
    """

    def __init__(self, store: Store, rank: int, size: int, parts: Parts) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # with a store it takes no Python subclass
        self._store = store
        self._size = size
        self._layout = parts.layout
        self._global_ranks = list(parts.global_ranks) or list(range(size))
        self._collectives = parts.collectives
        self._queue = WorkQueue(f"the process group {parts.name} (accel)")
        self._ours: collections.Counter[str] = collections.Counter()
        self._others: collections.Counter[str] = collections.Counter()
        self._counting = threading.RLock()  # a signal's handler may come in between
        self._owner = os.getpid()
        # A thread of gloo drops a collective's tensors shortly after the collective is done. A thread that drops the
        # last reference needs Python to free the tensor; while the interpreter ends, that aborts the process. So the
        # group keeps the works that are not done, and the last one: during it gloo's threads drop the one before.
        self._with_gloo: list[Work] = []
        # A plain group around gloo has every method of this torch, whatever they are called. This group has gloo as
        # its backend too: torch asks it for names, devices and sequence numbers, and for what only C++ calls.
        self._gloo = dist.ProcessGroup(store, rank, size)
        kinds = dist.ProcessGroup.BackendType
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        self._closer = weakref.finalize(self, _close, self._queue, parts.collectives, self._owner)
        _living.add(self)
        for group in (self, self._gloo):
            group._set_default_backend(kinds.GLOO)
            for device in devices:
                group._register_backend(torch.device(device), kinds.GLOO, parts.gloo)

    # What it is ----------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """``accel``. torch calls it by this name."""
        return "accel"

    @property
    def layout(self) -> Layout:
        """Which rank is on which host."""
        return self._layout

    def get_group_store(self) -> Store:
        """The store at which the group's ranks met."""
        return self._store

    def counts(self) -> CollectiveCounts:
        """How often it did what, so far."""
        with self._counting:
            return CollectiveCounts(dict(self._ours), dict(self._others))

    def shutdown(self) -> None:
        """Give back what the group holds; ``destroy_process_group()`` calls it, or the process's end.

        What waits to be done fails, and what waits for other ranks ends. What gloo does is waited for, some seconds.
        """
        self._closer()
        if not self._wait_for_gloo(time.monotonic() + _PATIENCE_S):
            _never_free(self)  # to free gloo would be to wait for what it does
        super().shutdown()

    def abort(self) -> None:
        """As :meth:`shutdown`."""
        self.shutdown()

    def _wait_for_gloo(self, deadline: float) -> bool:
        """Whether gloo finishes, well or not, until then all that it was given."""
        if os.getpid() != self._owner:  # a fork's copy has none of gloo's threads
            return True
        for work in self._with_gloo:
            left_s = max(deadline - time.monotonic(), 0.001)  # zero would be without end
            with contextlib.suppress(RuntimeError):  # it failed, or the time is over
                work.wait(timedelta(seconds=left_s))
            if not work.is_completed():
                return False
        return True

    # Collectives: each takes the name that was called, as torch has several for one, and the call's arguments. ------

    def _all_reduce(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """Reduce tensors in place: ``(tensors, opts)``, ``(tensors, op)`` or ``(tensor, op)``."""
        tensors, rest = as_list(arguments[0]), arguments[1:]
        op, is_async = reduction(rest, keywords)
        if op is None or not self._covers(tensors, REDUCIBLE[op]):
            return self._by_gloo(name, arguments, keywords)

        def reduce() -> None:
            for tensor in tensors:
                _fill(tensor, lambda dense: self._native.all_reduce(dense, op))

        return self._do(name, reduce, tensors, is_async)

    def _broadcast(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """Give all ranks one rank's tensors: ``(tensors, opts)`` or ``(tensor, root)``."""
        tensors, rest = as_list(arguments[0]), arguments[1:]
        given: Any = rest[0] if rest else keywords.get("opts", keywords.get("root", 0))
        src = given if isinstance(given, int) else int(given.rootRank)
        if not self._covers(tensors):
            return self._by_gloo(name, arguments, keywords)

        def send() -> None:
            for tensor in tensors:
                _fill(tensor, lambda dense: self._native.broadcast(dense, src))

        return self._do(name, send, tensors, is_async(rest, keywords))

    def _reduce_scatter(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """Reduce inputs, of one part for each rank, and give each rank its part."""
        outputs, inputs, rest = as_list(arguments[0]), as_list(arguments[1]), arguments[2:]
        op, is_async = reduction(rest, keywords)
        if op is None or not self._covers([*outputs, *inputs], REDUCIBLE[op]):
            return self._by_gloo(name, arguments, keywords)
        self._require_sizes(name, inputs, outputs)

        def scatter() -> None:
            for output, whole in zip(outputs, inputs, strict=True):
                self._scatter(output, whole, op)

        return self._do(name, scatter, outputs, is_async)

    def _reduce_scatter_lists(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """The same, where each input is a list of one tensor for each rank."""
        outputs, rest = as_list(arguments[0]), arguments[2:]
        lists = arguments[1] if isinstance(arguments[0], (list, tuple)) else [arguments[1]]
        op, is_async = reduction(rest, keywords)
        flat = [tensor for parts in lists for tensor in parts]
        if (
            op is None
            or not self._covers([*outputs, *flat], REDUCIBLE[op])
            or not are_alike(outputs, lists, self._size)
        ):
            return self._by_gloo(name, arguments, keywords)

        def scatter() -> None:
            for output, parts in zip(outputs, lists, strict=True):
                self._scatter(output, torch.cat([part.reshape(-1) for part in parts]), op)

        return self._do(name, scatter, outputs, is_async)

    def _scatter(self, output: torch.Tensor, whole: torch.Tensor, op: str) -> None:
        _fill(output, lambda dense: self._native.reduce_scatter(dense, whole.contiguous(), op))

    def _all_gather(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """Give all ranks the inputs of all, one after another in one output."""
        outputs, inputs, rest = as_list(arguments[0]), as_list(arguments[1]), arguments[2:]
        if not self._covers([*outputs, *inputs]):
            return self._by_gloo(name, arguments, keywords)
        self._require_sizes(name, outputs, inputs)

        def gather() -> None:
            for output, part in zip(outputs, inputs, strict=True):
                self._gather(output, part)

        return self._do(name, gather, outputs, is_async(rest, keywords))

    def _all_gather_lists(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """The same, where each output is a list of one tensor for each rank."""
        inputs, rest = as_list(arguments[1]), arguments[2:]
        lists = arguments[0] if isinstance(arguments[1], (list, tuple)) else [arguments[0]]
        flat = [tensor for parts in lists for tensor in parts]
        if not self._covers([*inputs, *flat]) or not are_alike(inputs, lists, self._size):
            return self._by_gloo(name, arguments, keywords)

        def gather() -> None:
            for parts, source in zip(lists, inputs, strict=True):
                whole = torch.empty((self._size, source.numel()), dtype=source.dtype)
                self._gather(whole, source)
                for part, row in zip(parts, whole, strict=True):
                    part.copy_(row.view(part.shape))

        return self._do(name, gather, flat, is_async(rest, keywords))

    def _gather(self, output: torch.Tensor, part: torch.Tensor) -> None:
        _fill(output, lambda dense: self._native.all_gather(dense, part.contiguous()))

    def _barrier(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """Return when all ranks have called it."""
        if self._collectives is None:
            return self._by_gloo(name, arguments, keywords)
        return self._do(name, self._native.barrier, [], is_async(arguments, keywords))

    def _by_gloo(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """Done by gloo, not through shared memory."""
        with self._counting:
            self._others[name] += 1
        work: Work = getattr(self._gloo, name)(*arguments, **keywords)
        if name not in _WITHOUT_THREAD:
            with self._counting:
                self._with_gloo = [*(earlier for earlier in self._with_gloo if not earlier.is_completed()), work]
        return work

    # How -----------------------------------------------------------------------------------------

    @property
    def _native(self) -> Collectives:
        assert self._collectives is not None
        return self._collectives

    def _covers(self, tensors: Tensors, dtypes: tuple[torch.dtype, ...] | None = None) -> bool:
        """Whether shared memory does it. What it depends on is the same on all ranks."""
        return self._collectives is not None and are_plain(tensors, dtypes)

    def _require_sizes(self, name: str, wholes: Tensors, parts: Tensors) -> None:
        for whole, part in zip(wholes, parts, strict=True):
            if whole.numel() != part.numel() * self._size or whole.dtype != part.dtype:
                raise ValueError(
                    f"{name}: a tensor of {tuple(whole.shape)} {whole.dtype} does not hold {self._size} of "
                    f"{tuple(part.shape)} {part.dtype}, one for each rank."
                )

    def _do(self, name: str, function: Callable[[], None], result: Tensors, is_async: bool) -> Work:
        with self._counting:
            self._ours[name] += 1
        call = functools.partial(self._call, function)
        if is_async:
            return self._queue.submit(call, result)
        self._queue.run(call)
        return CollectiveWork(result)

    def _call(self, function: Callable[[], None]) -> None:
        try:
            with torch.no_grad():  # here, because the mode belongs to a thread
                function()
        except SharedMemoryCommError as error:
            raise self._with_global_rank(error) from error

    def _with_global_rank(self, error: SharedMemoryCommError) -> SharedMemoryCommError:
        """The same, naming the rank as the program does; ``shm_comm`` knows only the ranks of a host of the group."""
        if error.rank is None:
            return error
        rank = self._global_ranks[self._layout.local_ranks[error.rank]]
        if rank == error.rank:
            return error
        message = f"{error.message} That is rank {rank} of the default group."
        return SharedMemoryCommError(
            message, error.remedy, rank=rank, operation=error.operation, waited_s=error.waited_s
        )


def _fill(tensor: torch.Tensor, collective: Callable[[torch.Tensor], object]) -> None:
    """Give ``collective`` contiguous memory for ``tensor``."""
    if tensor.numel() == 0:
        return
    dense = tensor.contiguous()
    collective(dense)
    if dense is not tensor:
        tensor.copy_(dense)


def _method(name: str, implementation: Callable[..., Work]) -> Callable[..., Work]:
    def method(self: AccelProcessGroup, *arguments: Any, **keywords: Any) -> Work:
        return implementation(self, name, arguments, keywords)

    method.__name__, method.__doc__ = name, implementation.__doc__
    return method


# By torch's names, those of 2.13 and the older ones.
_METHODS: dict[Callable[..., Work], tuple[str, ...]] = {
    AccelProcessGroup._all_reduce: ("allreduce", "allreduce_coalesced"),
    AccelProcessGroup._broadcast: ("broadcast",),
    AccelProcessGroup._reduce_scatter_lists: ("reduce_scatter",),
    AccelProcessGroup._reduce_scatter: (
        *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
        *("_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    ),
    AccelProcessGroup._all_gather_lists: ("allgather",),
    AccelProcessGroup._all_gather: (
        *("all_gather_single", "all_gather_single_coalesced"),
        *("_allgather_base", "allgather_into_tensor_coalesced"),
    ),
    AccelProcessGroup._barrier: ("barrier",),
    AccelProcessGroup._by_gloo: (
        *("reduce", "gather", "scatter", "allgather_coalesced", "alltoall", "all_to_all_single", "alltoall_base"),
        *_WITHOUT_THREAD,
    ),
}
for _implementation, _names in _METHODS.items():
    for _name in _names:
        setattr(AccelProcessGroup, _name, _method(_name, _implementation))


def _close(queue: WorkQueue, collectives: Collectives | None, owner: int) -> None:
    if os.getpid() != owner:  # a fork's copy is no rank, and has no threads to wait for
        return
    queue.close(CommunicationError("The process group was destroyed before this collective was done."))
    if collectives is not None:
        collectives.close()
    queue.join()


def _never_free(group: AccelProcessGroup) -> None:
    _living.discard(group)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


@atexit.register
def _end_with_the_process() -> None:
    """Settle the groups that are left, before the interpreter ends.

    They are not freed any more, as the threads of gloo may still use what the groups keep.
    """
    groups = list(_living)
    for group in groups:
        _never_free(group)
    deadline = time.monotonic() + _PATIENCE_S
    for group in groups:
        group._wait_for_gloo(deadline)
