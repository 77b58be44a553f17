"""The process group of the backend "accel"."""

from __future__ import annotations

import atexit
import collections
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.distributed_c10d import Work

from op_builder.errors import CommunicationError, OpArgumentError, SharedMemoryCommError
from op_builder.ops.arguments import require_memory
from op_builder.ops.comm.arguments import (
    REDUCIBLE,
    Tensors,
    are_alike,
    are_plain,
    as_list,
    dense,
    describe,
    fill,
    flat_tensors,
    is_async,
    reduction,
    require_apart,
    write_back,
)
from op_builder.ops.comm.collectives import Collectives, changed
from op_builder.ops.comm.gloo import GlooCollectives, GroupGloo, keep_while, never_free, register_backend
from op_builder.ops.comm.hosts import Layout
from op_builder.ops.comm.work import CollectiveWork, WorkQueue

logger = logging.getLogger(__name__)

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]

_GLOO_PATIENCE_S = 5.0  # how long the end of a group or of the process waits for gloo


@dataclass(frozen=True)
class CollectiveCounts:
    """How often a group ran which method of :class:`torch.distributed.ProcessGroup`: itself, or by gloo."""

    ours: Mapping[str, int]
    gloo: Mapping[str, int]


@dataclass(frozen=True)
class Parts:
    """What a group is made of.

    Attributes:
        gloo: runs what shared memory does not serve.
        collectives: run everything else; None where shared memory cannot be used, so that gloo runs everything.
        layout: which rank is on which host.
        name: of the group, for messages.
        global_ranks: the ranks of its members in the default group; empty for that group.
    """

    gloo: GroupGloo
    collectives: Collectives | None
    layout: Layout
    name: str
    global_ranks: tuple[int, ...] = ()


_living: weakref.WeakSet[AccelProcessGroup] = weakref.WeakSet()


class AccelProcessGroup(dist.ProcessGroup):
    """Collectives of CPU tensors through shared memory, and everything else through gloo.

    Shared memory serves all-reduce and reduce-scatter with sum, avg, max and min of float32, bfloat16, float16 and
    int32 (but not avg of int32), and all-gather, broadcast and barrier of any type, in all their forms. Tensors that
    are sparse, not in host memory, or of a subclass with its own ``__torch_dispatch__`` go to gloo.

    The caller runs a synchronous collective. A thread of the group, or the first caller who waits, runs an
    asynchronous one. All run in the order of the calls, also those of gloo. Before gloo runs a collective, the ranks
    compare their calls, so different calls are an error on all ranks. Tensors need not be contiguous.
    """

    def __init__(self, store: Store, rank: int, size: int, parts: Parts) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # with a store it takes no Python subclass
        self._store = store
        self._size = size
        self._layout = parts.layout
        self._global_ranks = list(parts.global_ranks) or list(range(size))
        self._collectives = parts.collectives
        self._queue = WorkQueue(f"the process group {parts.name!r}")
        self._ours: collections.Counter[str] = collections.Counter()
        self._others: collections.Counter[str] = collections.Counter()
        self._counts_lock = threading.RLock()  # reentrant for signal handlers
        self._gloo = GlooCollectives(store, rank, size, parts.gloo)
        self._closer = weakref.finalize(self, _close, self._queue, self._gloo, parts.collectives, os.getpid())
        _living.add(self)
        # torch asks this group's backend for names, devices and sequence numbers, and for what only C++ calls.
        register_backend(self, parts.gloo)
        self._backend = parts.gloo  # torch finds this object, instead of one of its own class, as long as it exists
        if parts.collectives is not None:
            parts.gloo.on_timeout = parts.collectives.set_timeout

    # Properties ------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """``accel``. torch requires this method name."""
        return "accel"

    @property
    def layout(self) -> Layout:
        """Which rank is on which host."""
        return self._layout

    def get_group_store(self) -> Store:
        """The store through which the ranks found each other."""
        return self._store

    def counts(self) -> CollectiveCounts:
        """How often the group has run which method."""
        with self._counts_lock:
            return CollectiveCounts(dict(self._ours), dict(self._others))

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the limit of a wait for another rank, also for waits that are running in shared memory."""
        self._backend.set_timeout(timeout)

    def shutdown(self) -> None:
        """Release the group's resources; ``destroy_process_group()`` calls it, or the end of the process.

        Queued collectives fail, and waits for other ranks end. gloo gets a few seconds to finish.
        """
        self._closer()
        if not self._gloo.finishes_by(time.monotonic() + _GLOO_PATIENCE_S):
            _living.discard(self)
            keep_while(self._gloo.is_busy, self)
        super().shutdown()

    def abort(self) -> None:
        """The same as :meth:`shutdown`."""
        self.shutdown()

    # Collectives: each takes the called method's name, as torch has several for one, and its arguments. -------------

    def _all_reduce(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """Reduce tensors in place: ``(tensors, opts)``, ``(tensors, op)`` or ``(tensor, op)``."""
        tensors, rest = as_list(arguments[0]), arguments[1:]
        op, is_async = reduction(rest, keywords)
        if op is None or not self._serves(tensors, REDUCIBLE[op]):
            return self._by_gloo(name, arguments, keywords)
        reduce = functools.partial(self._native.all_reduce, op=op)
        return self._run(name, lambda tensor: fill(tensor, reduce), [tensors], is_async)

    def _broadcast(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """Send one rank's tensors to all ranks: ``(tensors, opts)`` or ``(tensor, root)``."""
        tensors, rest = as_list(arguments[0]), arguments[1:]
        given: Any = rest[0] if rest else keywords.get("opts", keywords.get("root", 0))
        src = given if isinstance(given, int) else int(given.rootRank)
        if not self._serves(tensors):
            return self._by_gloo(name, arguments, keywords)
        send = functools.partial(self._native.broadcast, src=src)
        return self._run(name, lambda tensor: fill(tensor, send), [tensors], is_async(rest, keywords))

    def _reduce_scatter(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """Reduce inputs, which have one part per rank, and give each rank its part."""
        outputs, inputs, rest = as_list(arguments[0]), as_list(arguments[1]), arguments[2:]
        op, is_async = reduction(rest, keywords)
        if op is None or not self._serves([*outputs, *inputs], REDUCIBLE[op]):
            return self._by_gloo(name, arguments, keywords)
        self._require_sizes(name, inputs, outputs)
        return self._run(name, functools.partial(self._scatter, op), [outputs, inputs], is_async)

    def _reduce_scatter_lists(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """The same, where each input is a list with one tensor per rank."""
        outputs, rest = as_list(arguments[0]), arguments[2:]
        lists = arguments[1] if isinstance(arguments[0], (list, tuple)) else [arguments[1]]
        op, is_async = reduction(rest, keywords)
        if (
            op is None
            or not self._serves([*outputs, *flat_tensors(lists)], REDUCIBLE[op])
            or not are_alike(outputs, lists, self._size)
        ):
            return self._by_gloo(name, arguments, keywords)

        def scatter(output: torch.Tensor, parts: Tensors) -> None:
            for part in parts:
                require_memory("A part", part)
            self._scatter(op, output, torch.cat([dense(part).view(-1) for part in parts]))

        return self._run(name, scatter, [outputs, lists], is_async)

    def _scatter(self, op: str, output: torch.Tensor, whole: torch.Tensor) -> None:
        fill(output, lambda memory: self._native.reduce_scatter(memory, dense(whole), op))

    def _all_gather(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """Give all ranks the inputs of all, one after another in one output."""
        outputs, inputs, rest = as_list(arguments[0]), as_list(arguments[1]), arguments[2:]
        if not self._serves([*outputs, *inputs]):
            return self._by_gloo(name, arguments, keywords)
        self._require_sizes(name, outputs, inputs)

        def gather(output: torch.Tensor, part: torch.Tensor) -> None:
            fill(output, lambda memory: self._native.all_gather(memory, dense(part)))

        return self._run(name, gather, [outputs, inputs], is_async(rest, keywords))

    def _all_gather_lists(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """The same, where each output is a list with one tensor per rank."""
        inputs, rest = as_list(arguments[1]), arguments[2:]
        lists = arguments[0] if isinstance(arguments[1], (list, tuple)) else [arguments[0]]
        if not self._serves([*inputs, *flat_tensors(lists)]) or not are_alike(inputs, lists, self._size):
            return self._by_gloo(name, arguments, keywords)

        def gather(parts: Tensors, source: torch.Tensor) -> None:
            require_apart(parts)
            whole = torch.empty((self._size, source.numel()), dtype=source.dtype, device="cpu")
            self._native.all_gather(whole, dense(source))
            for part, row in zip(parts, whole, strict=True):
                write_back(part, row)

        return self._run(name, gather, [lists, inputs], is_async(rest, keywords))

    def _barrier(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """Return when all ranks have called it."""
        if self._collectives is None:
            return self._by_gloo(name, arguments, keywords)
        return self._run(name, lambda _: self._native.barrier(), [[()]], is_async(arguments, keywords))

    def _by_gloo(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """Run by gloo, not through shared memory."""
        with self._counts_lock:
            self._others[name] += 1

        def delegate() -> None:
            if self._collectives is not None:  # gloo itself would wait for its timeout, or mix different calls
                self._collectives.agree(f"{describe(name, arguments, keywords)} by gloo")
            self._gloo.run(name, arguments, keywords)

        return self._submit(delegate, flat_tensors(arguments[:1]), is_async(arguments, keywords))

    def _transfer(self, name: str, arguments: Arguments, keywords: Keywords) -> Work:
        """Run by gloo between two ranks."""
        with self._counts_lock:
            self._others[name] += 1
        return self._gloo.send_or_receive(name, arguments, keywords)

    # Helpers ---------------------------------------------------------------------------------------

    @property
    def _native(self) -> Collectives:
        assert self._collectives is not None
        return self._collectives

    def _serves(self, tensors: Tensors, dtypes: tuple[torch.dtype, ...] | None = None) -> bool:
        """Whether shared memory supports these tensors. If ranks disagree, their calls do not match: an error."""
        return self._collectives is not None and are_plain(tensors, dtypes)

    def _require_sizes(self, name: str, wholes: Tensors, parts: Tensors) -> None:
        for whole, part in zip(wholes, parts, strict=True):
            if whole.numel() != part.numel() * self._size or whole.dtype != part.dtype:
                raise OpArgumentError(
                    f"{name}: a tensor of {tuple(whole.shape)} {whole.dtype} does not have {self._size} parts of "
                    f"{tuple(part.shape)} {part.dtype}, one per rank.",
                    "Pass tensors of one dtype and of matching sizes.",
                )

    def _run(self, name: str, step: Callable[..., object], lists: Sequence[Sequence[Any]], is_async: bool) -> Work:
        """Call ``step`` with the first of each list, then with the second, ...; the first list has the results."""
        calls = list(zip(*lists, strict=True))
        with self._counts_lock:
            self._ours[name] += 1

        def run() -> None:
            if len(calls) != 1:  # the ranks compare each step, but not the number of steps
                self._native.agree(f"{name} of {len(calls)} tensors")
            for arguments in calls:
                step(*arguments)

        return self._submit(run, flat_tensors(lists[0]), is_async)

    def _submit(self, function: Callable[[], None], result: Tensors, is_async: bool) -> Work:
        call = functools.partial(self._call, function)
        if is_async:
            return self._queue.submit(call, result)
        self._queue.run(call)
        return CollectiveWork(result)

    def _call(self, function: Callable[[], None]) -> None:
        try:
            with torch.no_grad():
                function()
        except SharedMemoryCommError as error:
            raise self._with_global_rank(error) from error

    def _with_global_rank(self, error: SharedMemoryCommError) -> SharedMemoryCommError:
        """The same error with the rank in the default group; ``shm_comm`` knows only the ranks of a host."""
        if error.rank is None:
            return error
        rank = self._global_ranks[self._layout.local_ranks[error.rank]]
        if rank == error.rank:
            return error
        return changed(error, f" That is rank {rank} of the default group.", rank=rank)


def _method(name: str, implementation: Callable[..., Work]) -> Callable[..., Work]:
    def method(self: AccelProcessGroup, *arguments: Any, **keywords: Any) -> Work:
        return implementation(self, name, arguments, keywords)

    method.__name__, method.__doc__ = name, implementation.__doc__
    return method


# torch's names: those of 2.13 and the older ones.
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
    ),
    AccelProcessGroup._transfer: ("send", "recv", "recv_anysource"),
}
for _implementation, _names in _METHODS.items():
    for _name in _names:
        setattr(AccelProcessGroup, _name, _method(_name, _implementation))


def _close(queue: WorkQueue, gloo: GlooCollectives, collectives: Collectives | None, owner: int) -> None:
    if os.getpid() != owner:  # a fork's copy is no rank, and has no threads to wait for
        return
    gloo.close()
    queue.close(CommunicationError("The process group was destroyed before this collective was finished."))
    if collectives is not None:
        collectives.close()
    queue.join()


@atexit.register
def _wait_for_gloo_at_exit() -> None:
    """Let gloo finish before the interpreter ends.

    The groups are never freed, as gloo's threads may still use what they keep.
    """
    groups = list(_living)
    for group in groups:
        never_free(group)
    deadline = time.monotonic() + _GLOO_PATIENCE_S
    for group in groups:
        group._gloo.finishes_by(deadline)
