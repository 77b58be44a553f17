"""Collectives between hosts, by gloo. The first rank of each host is its leader and takes part."""

from __future__ import annotations

import contextlib
import hashlib
import struct
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from op_builder.errors import CommunicationError
from op_builder.ops.comm.arguments import Tensors
from op_builder.ops.comm.gloo import LentTensors, has_ended, keep_while
from op_builder.ops.comm.hosts import Layout

_NOTE_KEY = "accel/gave_up"
_GLOO_OPS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
# How long to wait for the note after a failure: ranks notice the death of one on their host within half a second.
NOTE_PATIENCE_S = 1.0
_PAUSE_S = 0.05
_CALL_BYTES = 512  # descriptions of calls are shorter


def store_for_threads(store: Store) -> Store:
    """The same store with a connection of its own, for a thread that runs collectives.

    A thread that waits for a key locks torch's TCPStore, as the main thread may in ``new_group()``.
    """
    try:
        cloned: Store = store.clone()  # type: ignore[attr-defined]  # missing in torch's stubs
        return cloned
    except RuntimeError as error:
        if "pure virtual" not in str(error):
            raise
        return store  # a store written in Python has neither clone() nor that lock


class FailureNote:
    """Which rank gave up first, and why: one line in the group's store.

    To the other hosts a missing leader looks like a slow one. So a rank that gives up leaves this note, and waiting
    leaders check for it.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store_for_threads(store)
        self._rank = rank

    def leave(self, why: str) -> None:
        """Write the note, unless there is one already."""
        with contextlib.suppress(RuntimeError):  # the store may have ended with the rank that served it
            self._store.compare_set(_NOTE_KEY, "", f"Rank {self._rank} of the group gave up: {why}")

    def read(self, patience_s: float = 0.0) -> str:
        """The note; empty if no rank writes one within that time."""
        deadline = time.monotonic() + patience_s
        try:
            while not self._store.check([_NOTE_KEY]):
                if time.monotonic() >= deadline:
                    return ""
                time.sleep(_PAUSE_S)
            return self._store.get(_NOTE_KEY).decode()
        except RuntimeError:
            return ""

    def require_none(self) -> None:
        """Raise a CommunicationError if a rank has left a note."""
        if note := self.read():
            raise CommunicationError(
                f"A collective between hosts failed. {note}",
                "Fix the error in that rank's log, then restart all ranks.",
            )


class Across:
    """The leaders' collectives by torch's gloo; leaders are numbered like their hosts.

    Each raises a CommunicationError when gloo fails, a rank of any host has left a note, or another thread closes it.
    """

    def __init__(self, store: Store, layout: Layout, timeout: timedelta, note: FailureNote) -> None:
        self._hosts = len(layout.hosts)
        self._note = note
        prefixed = PrefixStore("across", store_for_threads(store))  # gloo may read it during the first collective
        self._gloo: Any = dist.ProcessGroupGloo(prefixed, layout.host, self._hosts, timeout)
        self._lent = LentTensors()

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce ``tensor`` over all hosts, in place; ``op`` is sum, max or min."""
        options = dist.AllreduceOptions()
        options.reduceOp = _GLOO_OPS[op]
        self._run(tensor, lambda gloo, lent: gloo.allreduce(lent, options))

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """Send the tensor of host ``src`` to all hosts."""
        options = dist.BroadcastOptions()
        options.rootRank = src
        self._run(tensor, lambda gloo, lent: gloo.broadcast(lent, options))

    def set_timeout(self, timeout_s: float) -> None:
        """Change the limit of the collectives that start from now on."""
        if (gloo := self._gloo) is not None:
            gloo._set_default_timeout(timedelta(seconds=timeout_s))

    def close(self) -> None:
        """Release its connections."""
        self._gloo = None  # gloo's shutdown() does nothing; its connections are closed with the last reference

    def _run(self, tensor: torch.Tensor, start: Callable[[Any, Tensors], Any]) -> None:
        gloo, work = self._gloo, None
        try:
            _require_open(gloo is not None)
            work = self._lent.lend([tensor], lambda lent: start(gloo, lent))
            while not has_ended(work):
                _require_open(self._gloo is not None)
                self._note.require_none()
        except BaseException as error:
            if work is not None and not work.is_completed():
                keep_while(self._lent.are_used, (gloo, self._lent))
            if isinstance(error, CommunicationError) or not isinstance(error, RuntimeError):
                raise
            raise CommunicationError(
                f"gloo failed between the {self._hosts} hosts of the group: {str(error).splitlines()[0]}",
                "Check that all ranks are running and that GLOO_SOCKET_IFNAME names the network interface.",
            ) from error


def compare_calls(across: Across, layout: Layout, text: str) -> None:
    """Raise a CommunicationError that shows two calls if the hosts make different calls."""
    numbers = struct.unpack("<2I", hashlib.sha256(text.encode()).digest()[:8])
    words = torch.tensor([number >> 1 for number in numbers], dtype=torch.int32, device="cpu")  # 31 bits each
    extremes = torch.cat([words, -words])
    across.all_reduce(extremes, "max")
    if torch.equal(extremes[:2], -extremes[2:]):
        return
    calls = []
    for host in range(len(layout.hosts)):
        encoded = text.encode()[:_CALL_BYTES].ljust(_CALL_BYTES) if host == layout.host else bytes(_CALL_BYTES)
        message = torch.tensor(list(encoded), dtype=torch.uint8, device="cpu")
        across.broadcast(message, host)
        calls.append(bytes(message.tolist()).decode(errors="replace").rstrip())
    other = next(host for host, call in enumerate(calls) if call != text)
    raise CommunicationError(
        f"Rank {layout.rank} called {text}, rank {layout.hosts[other][0]} called {calls[other]}.",
        "Call the same collectives in the same order on all ranks of a group. Create a new group for the ranks.",
    )


def _require_open(is_open: bool) -> None:
    if not is_open:
        raise CommunicationError("The group was destroyed during a collective between hosts.", "Create a new group.")
