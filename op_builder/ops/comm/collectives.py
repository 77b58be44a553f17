"""Collectives of a group on several hosts: shared memory inside each host, gloo between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from op_builder.errors import CommunicationError, OpArgumentError, SharedMemoryCommError
from op_builder.ops.arguments import bytes_of
from op_builder.ops.comm.across import NOTE_PATIENCE_S, Across, FailureNote, compare_calls
from op_builder.ops.comm.hosts import Layout

_NARROW = (torch.bfloat16, torch.float16)


class Collectives(Protocol):
    """Collectives of a group. Tensors are contiguous and in host memory; ``op`` is sum, max, min or avg.

    Each raises a CommunicationError if a rank does not take part.
    """

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce ``tensor`` over all ranks, in place."""

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, op: str) -> None:
        """Reduce ``input``, which has one part per rank, and give each rank its part."""

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> None:
        """Fill ``output`` with the inputs of all ranks, one after another."""

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """Send the tensor of rank ``src`` of the group to all ranks."""

    def barrier(self) -> None:
        """Return when all ranks have called it."""

    def agree(self, text: str) -> None:
        """Compare ``text``, which describes a call, with that of the other ranks; a difference is an error on all."""

    def set_timeout(self, timeout_s: float) -> None:
        """Change the limit of a wait for another rank."""

    def close(self) -> None:
        """Release the resources of this rank."""


class HierarchicalCollectives:
    """Collectives of ranks on several hosts: inside each host, between the hosts' first ranks, inside each host.

    Before each, the ranks of a host compare their calls, and then the first ranks of the hosts.

    All ranks get the same result, bit for bit. 16-bit floats are summed in float32 and rounded once. A rank that fails
    leaves the group of its host and writes a note for the other hosts, so that no rank waits for it. The group is
    broken then. Only the hosts' first ranks have ``across``.
    """

    def __init__(self, layout: Layout, inside: Collectives, across: Across | None, note: FailureNote) -> None:
        self._layout = layout
        self._own = inside
        self._across = across
        self._note = note
        self._failure: CommunicationError | None = None
        self._is_closed = False

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        if self._is_empty(f"all_reduce ({op}) of {_elements(tensor)}", tensor):
            return
        self._reduce(tensor, op)

    def _reduce(self, tensor: torch.Tensor, op: str) -> None:
        step = "sum" if op == "avg" else op
        # In float32 between the hosts, too, so that the sum of a mean fits.
        wide = tensor.float() if step == "sum" and tensor.dtype in _NARROW else tensor
        self._from_leader(lambda inside: inside.all_reduce(wide, step))
        self._between(lambda across: across.all_reduce(wide, step))
        if self._across is not None:
            if op == "avg":
                wide.div_(self._layout.size)
            if wide is not tensor:
                tensor.copy_(wide)
        self._from_leader(lambda inside: inside.broadcast(tensor, 0))

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, op: str) -> None:
        """Sends everything to all hosts, twice what is needed."""
        if self._is_empty(f"reduce_scatter ({op}) of {_elements(input)}", input):
            return
        whole = input.detach().clone()
        self._reduce(whole, op)
        parts = whole.view(self._layout.size, -1)
        output.view(-1).copy_(parts[self._layout.rank])

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> None:
        if self._is_empty(f"all_gather of {_elements(input)}", input):
            return
        layout = self._layout
        rows = bytes_of(output).view(layout.size, -1)
        # Ranks may alternate between hosts; the block is ordered by host.
        block = rows if layout.are_in_order else torch.empty_like(rows)
        ends = [sum(map(len, layout.hosts[: number + 1])) for number in range(len(layout.hosts))]
        parts = [block[end - len(ranks) : end] for end, ranks in zip(ends, layout.hosts, strict=True)]
        self._from_leader(lambda inside: inside.all_gather(parts[layout.host], bytes_of(input)))

        def exchange(across: Across) -> None:
            for number, part in enumerate(parts):
                across.broadcast(part, number)

        self._between(exchange)
        self._from_leader(lambda inside: inside.broadcast(block, 0))
        if block is not rows:
            rows[[rank for ranks in layout.hosts for rank in ranks]] = block

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        if self._is_empty(f"broadcast of {_elements(tensor)} from rank {src}", tensor):
            return
        layout = self._layout
        host = layout.host_of(src)
        if host == layout.host:
            self._from_leader(lambda inside: inside.broadcast(tensor, layout.hosts[host].index(src)))
        self._between(lambda across: across.broadcast(bytes_of(tensor), host))
        if host != layout.host:
            self._from_leader(lambda inside: inside.broadcast(tensor, 0))

    def barrier(self) -> None:
        self.agree("barrier")

    def agree(self, text: str) -> None:
        self._compare(text)
        self._from_leader(lambda inside: inside.barrier())

    def set_timeout(self, timeout_s: float) -> None:
        self._own.set_timeout(timeout_s)
        if self._across is not None:
            self._across.set_timeout(timeout_s)

    def close(self) -> None:
        self._is_closed = True
        self._own.close()
        if self._across is not None:
            self._across.close()

    def _is_empty(self, text: str, tensor: torch.Tensor) -> bool:
        """Compare the calls; return True if ``tensor`` is empty on all ranks, so that nothing remains to be done."""
        if tensor.numel() == 0:
            self.agree(text)
            return True
        self._compare(text)
        return False

    def _compare(self, text: str) -> None:
        """:meth:`agree`, after which ranks other than leaders know only that the ranks of their host agree."""
        self._inside(lambda inside: inside.agree(text))
        self._between(lambda across: compare_calls(across, self._layout, text))

    def _inside(self, step: Callable[[Collectives], None]) -> None:
        """A step between the ranks of this host."""
        self._require_usable()
        try:
            step(self._own)
        except OpArgumentError as error:
            if not self._is_closed:  # nothing was sent
                raise
            destroyed = CommunicationError("The group was destroyed during a collective.", "Create a new group.")
            self._give_up(destroyed)
            raise destroyed from error
        except SharedMemoryCommError as error:
            if error.is_group_usable:  # but ranks of other hosts were about to continue
                error = changed(
                    error,
                    remedy="Call the same collectives in the same order on all ranks of a group. "
                    "Create a new group for the ranks.",
                )
            self._give_up(error)
            raise error
        except BaseException as error:
            self._give_up(error)
            raise

    def _between(self, step: Callable[[Across], None]) -> None:
        """A step between the hosts, on a leader."""
        self._require_usable()
        if self._across is None:
            return
        try:
            step(self._across)
        except CommunicationError as error:
            # If this rank itself closed the group, no other rank leaves a note.
            note = "" if self._is_closed else self._note.read(NOTE_PATIENCE_S)
            if note not in error.message:
                error = CommunicationError(f"{error.message} {note}", error.remedy)
            self._give_up(error)
            raise error
        except BaseException as error:
            self._give_up(error)
            raise

    def _from_leader(self, step: Callable[[Collectives], None]) -> None:
        """A step inside the host that waits for the leader, which may have failed between the hosts."""
        try:
            self._inside(step)
        except SharedMemoryCommError as error:
            if self._layout.is_leader or error.rank != 0:
                raise
            note = self._note.read(NOTE_PATIENCE_S)
            raise changed(
                error,
                f" It is the first rank of its host and gave up between the {len(self._layout.hosts)} hosts of the "
                f"group, or is still waiting there. {note}".rstrip(),
                remedy="Read that rank's error in its output, find "
                "which rank of another host is missing, and make a new group.",
            ) from error

    def _require_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _give_up(self, error: BaseException) -> None:
        """Leave the group, and notify all other ranks."""
        failure = error if isinstance(error, CommunicationError) else None
        self._failure = failure or CommunicationError(
            f"{type(error).__name__} ended a collective.", "Create a new group for the ranks."
        )
        self._note.leave(self._failure.message + self._rank_in_group(error))
        self.close()

    def _rank_in_group(self, error: BaseException) -> str:
        """A sentence with the rank in the group if it differs from the error's, which counts within this host."""
        if not isinstance(error, SharedMemoryCommError) or error.rank is None:
            return ""
        rank = self._layout.local_ranks[error.rank]
        return f" That is rank {rank} of the group." if rank != error.rank else ""


def changed(
    error: SharedMemoryCommError, more: str = "", *, remedy: str | None = None, rank: int | None = None
) -> SharedMemoryCommError:
    """The same error with more in its message, or another remedy or rank. A new remedy marks the group as broken."""
    return SharedMemoryCommError(
        f"{error.message}{more}",
        error.remedy if remedy is None else remedy,
        rank=error.rank if rank is None else rank,
        operation=error.operation,
        waited_s=error.waited_s,
        is_group_usable=error.is_group_usable and remedy is None,
    )


def _elements(tensor: torch.Tensor) -> str:
    return f"{tensor.numel()} {tensor.dtype}".replace("torch.", "")
