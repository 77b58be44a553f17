"""The process group of the backend "accel"."""

from __future__ import annotations

import collections
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    as_called,
    as_list,
    is_async,
    reduction,
)
from op_builder.ops.comm.collectives import Collectives
from op_builder.ops.comm.hosts import Layout
from op_builder.ops.comm.work import DoneWork, WorkQueue

logger = logging.getLogger(__name__)


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
        # A plain group around gloo has every method of this torch, whatever they are called. This group has gloo as
        # its backend too: torch asks it for names, devices and sequence numbers, and for what only C++ calls.
        self._gloo = dist.ProcessGroup(store, rank, size)
        kinds = dist.ProcessGroup.BackendType
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        self._closer = weakref.finalize(self, _close, self._queue, parts.collectives, os.getpid())
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

        What waits to be done fails, and what waits for other ranks ends.
        """
        self._closer()
        super().shutdown()

    def abort(self) -> None:
        """As :meth:`shutdown`."""
        self.shutdown()

    # All-reduce ----------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, *rest: Any, **keywords: Any) -> Work:  # type: ignore[override]
        """Reduce tensors in place: ``(tensors, opts)``, ``(tensors, op)`` or ``(tensor, op)``."""
        return self._all_reduce("allreduce", tensors, rest, keywords)

    def allreduce_coalesced(self, tensors: Any, *rest: Any, **keywords: Any) -> Work:
        """Reduce several tensors in place."""
        return self._all_reduce("allreduce_coalesced", tensors, rest, keywords)

    def _all_reduce(self, name: str, tensors: Any, rest: tuple[Any, ...], keywords: dict[str, Any]) -> Work:
        listed = as_list(tensors)
        op, is_async = reduction(rest, keywords)
        if op is None or not self._covers(listed, REDUCIBLE[op]):
            return self._by_gloo(name, tensors, *rest, **keywords)
        reduce = functools.partial(self._each, listed, functools.partial(self._reduce_one, op))
        return self._do(name, reduce, listed, is_async)

    def _reduce_one(self, op: str, tensor: torch.Tensor) -> None:
        dense = tensor.contiguous()
        self._native.all_reduce(dense, op)
        if dense is not tensor:
            tensor.copy_(dense)

    # Reduce-scatter ------------------------------------------------------------------------------

    def reduce_scatter(self, outputs: Any, inputs: Any, *rest: Any, **keywords: Any) -> Work:  # type: ignore[override]
        """Reduce lists of tensors, one for each rank, and give each rank its own."""
        name = "reduce_scatter"
        nested = inputs if isinstance(outputs, (list, tuple)) else [inputs]
        outs = as_list(outputs)
        op, is_async = reduction(rest, keywords)
        flat = [tensor for listed in nested for tensor in listed]
        if op is None or not self._covers([*outs, *flat], REDUCIBLE[op]) or not are_alike(outs, nested, self._size):
            return self._by_gloo(name, outputs, inputs, *rest, **keywords)

        def reduce() -> None:
            for out, listed in zip(outs, nested, strict=True):
                self._scatter_one(op, out, torch.cat([tensor.reshape(-1) for tensor in listed]))

        return self._do(name, reduce, outs, is_async)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, *rest: Any, **keywords: Any) -> Work:  # type: ignore[override]
        """Reduce ``input``, of one part for each rank, and give each rank its part."""
        return self._reduce_scatter("reduce_scatter_single", [output], [input], rest, keywords)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, *rest: Any, **keywords: Any) -> Work:  # type: ignore[override]
        """The older name of :meth:`reduce_scatter_single`."""
        return self._reduce_scatter("_reduce_scatter_base", [output], [input], rest, keywords)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, *rest: Any, **keywords: Any) -> Work:  # type: ignore[override]
        """:meth:`reduce_scatter_single` of several tensors."""
        return self._reduce_scatter("reduce_scatter_single_coalesced", outputs, inputs, rest, keywords)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, *rest: Any, **keywords: Any) -> Work:  # type: ignore[override]
        """The older name of :meth:`reduce_scatter_single_coalesced`."""
        return self._reduce_scatter("reduce_scatter_tensor_coalesced", outputs, inputs, rest, keywords)

    def _reduce_scatter(
        self, name: str, outputs: Tensors, inputs: Tensors, rest: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Work:
        op, is_async = reduction(rest, keywords)
        if op is None or not self._covers([*outputs, *inputs], REDUCIBLE[op]):
            return self._by_gloo(name, *as_called(name, outputs, inputs), *rest, **keywords)
        self._require_sizes(name, inputs, outputs)

        def reduce() -> None:
            for out, source in zip(outputs, inputs, strict=True):
                self._scatter_one(op, out, source.contiguous())

        return self._do(name, reduce, outputs, is_async)

    def _scatter_one(self, op: str, out: torch.Tensor, source: torch.Tensor) -> None:
        if out.numel() == 0:
            return
        dense = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
        self._native.reduce_scatter(dense, source, op)
        if dense is not out:
            out.copy_(dense)

    # All-gather ----------------------------------------------------------------------------------

    def allgather(self, outputs: Any, inputs: Any, *rest: Any, **keywords: Any) -> Work:  # type: ignore[override]
        """Give all ranks the tensors of all: each rank's into a tensor of its own."""
        is_nested = isinstance(inputs, (list, tuple))
        nested, ins = (outputs, inputs) if is_nested else ([outputs], [inputs])
        flat = [tensor for listed in nested for tensor in listed]
        if not self._covers([*ins, *flat]) or not are_alike(ins, nested, self._size):
            return self._by_gloo("allgather", outputs, inputs, *rest, **keywords)

        def gather() -> None:
            for listed, source in zip(nested, ins, strict=True):
                whole = torch.empty((self._size, source.numel()), dtype=source.dtype)
                self._gather_one(whole, source)
                for out, part in zip(listed, whole, strict=True):
                    out.copy_(part.view(out.shape))

        return self._do("allgather", gather, flat, is_async(rest, keywords))

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, *rest: Any, **keywords: Any) -> Work:
        """Give all ranks the tensors of all, one after another in one tensor."""
        return self._all_gather("all_gather_single", [output], [input], rest, keywords)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, *rest: Any, **keywords: Any) -> Work:
        """The older name of :meth:`all_gather_single`."""
        return self._all_gather("_allgather_base", [output], [input], rest, keywords)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, *rest: Any, **keywords: Any) -> Work:  # type: ignore[override]
        """:meth:`all_gather_single` of several tensors."""
        return self._all_gather("all_gather_single_coalesced", outputs, inputs, rest, keywords)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, *rest: Any, **keywords: Any) -> Work:  # type: ignore[override]
        """The older name of :meth:`all_gather_single_coalesced`."""
        return self._all_gather("allgather_into_tensor_coalesced", outputs, inputs, rest, keywords)

    def _all_gather(
        self, name: str, outputs: Tensors, inputs: Tensors, rest: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Work:
        if not self._covers([*outputs, *inputs]):
            return self._by_gloo(name, *as_called(name, outputs, inputs), *rest, **keywords)
        self._require_sizes(name, outputs, inputs)

        def gather() -> None:
            for out, source in zip(outputs, inputs, strict=True):
                self._gather_one(out, source)

        return self._do(name, gather, outputs, is_async(rest, keywords))

    def _gather_one(self, out: torch.Tensor, source: torch.Tensor) -> None:
        if out.numel() == 0:
            return
        dense = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
        self._native.all_gather(dense, source.contiguous())
        if dense is not out:
            out.copy_(dense)

    # Broadcast and barrier -----------------------------------------------------------------------

    def broadcast(self, tensors: Any, *rest: Any, **keywords: Any) -> Work:  # type: ignore[override]
        """Give all ranks one rank's tensors: ``(tensors, opts)`` or ``(tensor, root)``."""
        listed = as_list(tensors)
        given = rest[0] if rest else keywords.get("opts", keywords.get("root", 0))
        src = given if isinstance(given, int) else int(given.rootRank)
        if not self._covers(listed):
            return self._by_gloo("broadcast", tensors, *rest, **keywords)
        send = functools.partial(self._each, listed, functools.partial(self._broadcast_one, src))
        return self._do("broadcast", send, listed, is_async(rest, keywords))

    def _broadcast_one(self, src: int, tensor: torch.Tensor) -> None:
        dense = tensor.contiguous()
        self._native.broadcast(dense, src)
        if dense is not tensor:
            tensor.copy_(dense)

    def barrier(self, *rest: Any, **keywords: Any) -> Work:
        """Return when all ranks have called it."""
        if self._collectives is None:
            return self._by_gloo("barrier", *rest, **keywords)
        return self._do("barrier", self._native.barrier, [], is_async(rest, keywords))

    # What gloo does ------------------------------------------------------------------------------

    def reduce(self, *arguments: Any, **keywords: Any) -> Work:
        """By gloo."""
        return self._by_gloo("reduce", *arguments, **keywords)

    def gather(self, *arguments: Any, **keywords: Any) -> Work:
        """By gloo."""
        return self._by_gloo("gather", *arguments, **keywords)

    def scatter(self, *arguments: Any, **keywords: Any) -> Work:
        """By gloo."""
        return self._by_gloo("scatter", *arguments, **keywords)

    def allgather_coalesced(self, *arguments: Any, **keywords: Any) -> Work:
        """By gloo."""
        return self._by_gloo("allgather_coalesced", *arguments, **keywords)

    def alltoall(self, *arguments: Any, **keywords: Any) -> Work:
        """By gloo."""
        return self._by_gloo("alltoall", *arguments, **keywords)

    def all_to_all_single(self, *arguments: Any, **keywords: Any) -> Work:
        """By gloo."""
        return self._by_gloo("all_to_all_single", *arguments, **keywords)

    def alltoall_base(self, *arguments: Any, **keywords: Any) -> Work:
        """By gloo. The older name of :meth:`all_to_all_single`."""
        return self._by_gloo("alltoall_base", *arguments, **keywords)

    def send(self, *arguments: Any, **keywords: Any) -> Work:
        """By gloo."""
        return self._by_gloo("send", *arguments, **keywords)

    def recv(self, *arguments: Any, **keywords: Any) -> Work:
        """By gloo."""
        return self._by_gloo("recv", *arguments, **keywords)

    def recv_anysource(self, *arguments: Any, **keywords: Any) -> Work:
        """By gloo."""
        return self._by_gloo("recv_anysource", *arguments, **keywords)

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

    @staticmethod
    def _each(tensors: Tensors, function: Callable[[torch.Tensor], None]) -> None:
        for tensor in tensors:
            if tensor.numel():
                function(tensor)

    def _do(self, name: str, function: Callable[[], None], result: Tensors, is_async: bool) -> Work:
        with self._counting:
            self._ours[name] += 1
        call = functools.partial(self._call, function)
        if is_async:
            return self._queue.submit(call, result)
        self._queue.run(call)
        return DoneWork(result)

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

    def _by_gloo(self, name: str, *arguments: Any, **keywords: Any) -> Work:
        with self._counting:
            self._others[name] += 1
        work: Work = getattr(self._gloo, name)(*arguments, **keywords)
        return work


def _close(queue: WorkQueue, collectives: Collectives | None, owner: int) -> None:
    if os.getpid() != owner:  # a fork's copy is no rank, and has no threads to wait for
        return
    queue.close(CommunicationError("The process group was destroyed before this collective was done."))
    if collectives is not None:
        collectives.close()
    queue.join()
