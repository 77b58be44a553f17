"""Collectives over the hosts of a group: inside each host by shared memory, between them by gloo or oneCCL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from op_builder.errors import CommunicationError, EnvironmentValueError, SharedMemoryCommError
from op_builder.ops.distributed_hosts import Layout

ACROSS = ("gloo", "ccl")
_KVS_KEY = "accel/kvs"
_GLOO_OPS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
_NARROW = (torch.bfloat16, torch.float16)


class Collectives(Protocol):
    """What a group's ranks do together. Tensors are contiguous and in host memory; ``op`` is sum, max, min or avg.

    Each raises a CommunicationError, or what its transport raises, where a rank does not take part.
    """

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce ``tensor`` over all ranks, in place."""

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, op: str) -> None:
        """Reduce ``input``, of one part for each rank, and give each rank its part."""

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> None:
        """Fill ``output`` with the inputs of all ranks, one after another."""

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """Give all ranks the tensor of rank ``src`` of the group."""

    def barrier(self) -> None:
        """Return when all ranks have called it."""

    def close(self) -> None:
        """Give back what it holds; what other ranks do then is theirs."""


class Across(Protocol):
    """Collectives of the hosts' leaders, by the hosts' numbers."""

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce ``tensor`` over all hosts, in place; ``op`` is sum, max or min."""

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """Give all hosts the tensor of host ``src``."""

    def barrier(self) -> None:
        """Return when all hosts have called it."""

    def close(self) -> None:
        """Give back what it holds."""


class HierarchicalCollectives:
    """Collectives of ranks on several hosts: inside, across by each host's first rank, inside.

    The result is the same on all ranks, bit for bit: the leaders have one result, which the others are given. 16-bit
    floats are added up in float32 and rounded once. Where a leader's part between hosts fails it leaves the ranks of
    its host, so that they fail, too, instead of waiting for it.

    Args:
        layout: which rank is where.
        inside: the collectives of this host's ranks.
        across: those of the leaders; None on other ranks.
    """

    def __init__(self, layout: Layout, inside: Collectives, across: Across | None) -> None:
        self._layout = layout
        self._own = inside
        self._across = across
        self._failure: CommunicationError | None = None

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """See :class:`Collectives`."""
        step = "sum" if op == "avg" else op
        # Between the hosts, too, so that no sum is too large for the type of its mean.
        wide = tensor.float() if step == "sum" and tensor.dtype in _NARROW else tensor
        self._inside.all_reduce(wide, step)
        self._between(lambda across: across.all_reduce(wide, step))
        if self._across is not None:
            if op == "avg":
                wide.div_(self._layout.size)
            if wide is not tensor:
                tensor.copy_(wide)
        self._from_leader(lambda inside: inside.broadcast(tensor, 0))

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, op: str) -> None:
        """See :class:`Collectives`. Sends all of it to all hosts: twice what is needed."""
        whole = input.detach().clone()
        self.all_reduce(whole, op)
        parts = whole.view(self._layout.size, -1)
        output.view(-1).copy_(parts[self._layout.rank])

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> None:
        """See :class:`Collectives`."""
        layout = self._layout
        rows = _bytes_of(output).view(layout.size, -1)
        # The hosts' ranks may be anywhere among each other; in this order they are one after another.
        block = rows if layout.are_in_order else torch.empty_like(rows)
        ends = [sum(map(len, layout.hosts[: number + 1])) for number in range(len(layout.hosts))]
        parts = [block[end - len(ranks) : end] for end, ranks in zip(ends, layout.hosts, strict=True)]
        self._inside.all_gather(parts[layout.host], _bytes_of(input))

        def exchange(across: Across) -> None:
            for number, part in enumerate(parts):
                across.broadcast(part, number)

        self._between(exchange)
        self._from_leader(lambda inside: inside.broadcast(block, 0))
        if block is not rows:
            rows[[rank for ranks in layout.hosts for rank in ranks]] = block

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """See :class:`Collectives`."""
        layout = self._layout
        host = layout.host_of(src)
        if host == layout.host:
            self._inside.broadcast(tensor, layout.hosts[host].index(src))
        self._between(lambda across: across.broadcast(_bytes_of(tensor), host))
        if host != layout.host:
            self._from_leader(lambda inside: inside.broadcast(tensor, 0))

    def barrier(self) -> None:
        """See :class:`Collectives`."""
        self._inside.barrier()
        self._between(lambda across: across.barrier())
        self._from_leader(lambda inside: inside.barrier())

    def close(self) -> None:
        """See :class:`Collectives`."""
        self._own.close()
        if self._across is not None:
            self._across.close()

    @property
    def _inside(self) -> Collectives:
        if self._failure is not None:
            raise self._failure
        return self._own

    def _between(self, step: Callable[[Across], None]) -> None:
        """On a leader, its part between hosts; where that fails, the ranks of its host are to know."""
        if self._across is None:
            return
        try:
            step(self._across)
        except BaseException as error:
            said = error if isinstance(error, CommunicationError) else None
            self._failure = said or CommunicationError(
                f"A collective between hosts was ended by {type(error).__name__}.", "The ranks need a new group."
            )
            self._own.close()
            raise

    def _from_leader(self, step: Callable[[Collectives], None]) -> None:
        """A step inside that waits for the leader, who comes from between the hosts."""
        try:
            step(self._inside)
        except SharedMemoryCommError as error:
            if self._layout.is_leader or error.rank != 0:
                raise
            raise SharedMemoryCommError(
                f"{error.message} It is the first rank of its host and gave up between the {len(self._layout.hosts)} "
                "hosts of the group, or is still there.",
                "See that rank's error, and which rank of another host is missing. The ranks need a new group.",
                rank=error.rank,
                operation=error.operation,
                waited_s=error.waited_s,
            ) from error


class GlooAcross:
    """The leaders by torch's gloo."""

    def __init__(self, store: Store, host: int, hosts: int, timeout: timedelta) -> None:
        self._hosts = hosts
        self._gloo: Any = dist.ProcessGroupGloo(PrefixStore("across", store), host, hosts, timeout)

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """See :class:`Across`."""
        options = dist.AllreduceOptions()
        options.reduceOp = _GLOO_OPS[op]
        self._wait(lambda: self._gloo.allreduce([tensor], options))

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """See :class:`Across`."""
        options = dist.BroadcastOptions()
        options.rootRank = src
        self._wait(lambda: self._gloo.broadcast([tensor], options))

    def barrier(self) -> None:
        """See :class:`Across`."""
        self._wait(lambda: self._gloo.barrier())

    def close(self) -> None:
        """See :class:`Across`."""
        self._gloo.shutdown()

    def _wait(self, start: Callable[[], Any]) -> None:
        try:
            start().wait()
        except RuntimeError as error:
            raise CommunicationError(
                f"Between the {self._hosts} hosts of the group gloo failed: {str(error).splitlines()[0]}",
                "See which host's ranks have ended, and whether its network interface is the one of "
                "GLOO_SOCKET_IFNAME.",
            ) from error


class CCLAcross:
    """The leaders by oneCCL."""

    def __init__(self, store: Store, host: int, hosts: int, timeout: timedelta) -> None:
        from op_builder.host.ccl_comm import CCLCommBuilder

        module = CCLCommBuilder().load()
        if host == 0:
            store.set(_KVS_KEY, bytes(module.get_sub_kvs_addr(True)))  # type: ignore[arg-type]
        address = list(store.get(_KVS_KEY))
        self._comm = module.new_communicator(hosts, host, address, timeout_s=timeout.total_seconds())

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """See :class:`Across`."""
        self._comm.all_reduce(tensor, op).wait()

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """See :class:`Across`."""
        self._comm.broadcast(tensor, src).wait()

    def barrier(self) -> None:
        """See :class:`Across`."""
        self._comm.barrier().wait()

    def close(self) -> None:
        """See :class:`Across`."""
        self._comm.close()


def require_across(name: str) -> str:
    """``name``, if it is one of :data:`ACROSS`.

    Raises:
        EnvironmentValueError: it is not.
    """
    if name not in ACROSS:
        raise EnvironmentValueError("ACCEL_DISTRIBUTED_ACROSS", name, " or ".join(ACROSS))
    return name


def connect_hosts(name: str, store: Store, layout: Layout, timeout: timedelta) -> Across | None:
    """The leaders' collectives, by gloo or ccl; None on a rank that does not lead its host."""
    if not layout.is_leader:
        return None
    make = CCLAcross if name == "ccl" else GlooAcross
    return make(store, layout.host, len(layout.hosts), timeout)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor: of whatever type it is, gloo and oneCCL have that one."""
    return tensor.view(-1).view(torch.uint8)
