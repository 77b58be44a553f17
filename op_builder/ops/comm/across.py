"""Collectives between hosts: of each host's first rank, its leader, by gloo or oneCCL."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import struct
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from op_builder.cpu import CCLCommBuilder
from op_builder.errors import CommunicationError, EnvironmentValueError
from op_builder.ops.comm.gloo import has_ended
from op_builder.ops.comm.hosts import Layout

ACROSS = ("gloo", "ccl")
_KVS_KEY = "accel/kvs"
_NOTE_KEY = "accel/gave_up"
_GLOO_OPS: dict[str, Any] = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
_NOTE_COMES_S = 1.0  # after a death: ranks of that host look around every half a second
_PAUSE_S = 0.05
_CALL_BYTES = 512  # of a call in words


class Across(Protocol):
    """Collectives of the hosts' leaders, by the hosts' numbers.

    Each raises a CommunicationError where its transport fails, where a rank of any host has left a note, and, soon,
    where it is closed by another thread.
    """

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """Reduce ``tensor`` over all hosts, in place; ``op`` is sum, max or min."""

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """Give all hosts the tensor of host ``src``."""

    def close(self) -> None:
        """Give back what it holds."""


def store_for_threads(store: Store) -> Store:
    """The same store by a connection of its own, for whatever thread does collectives.

    torch's TCPStore is locked by whoever waits for a key, as the main thread may in ``new_group()``, until that comes.
    """
    try:
        cloned: Store = store.clone()  # type: ignore[attr-defined]  # torch has it since 2.8, its stubs have not
        return cloned
    except RuntimeError as error:
        if "pure virtual" not in str(error):
            raise
        return store  # of a class written in Python, which has no clone() and none of that lock


class GiveUpNote:
    """Who gave up first, and why: one line in the group's store.

    A leader that does not come looks to the other hosts like one that is slow. So whoever gives up on any host leaves
    this note, and leaders that wait look at it now and then.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store_for_threads(store)
        self._rank = rank

    def leave(self, why: str) -> None:
        """Write it. The first one stays."""
        with contextlib.suppress(RuntimeError):  # the store may be gone with the rank that served it
            self._store.compare_set(_NOTE_KEY, "", f"Rank {self._rank} of the group gave up: {why}")

    def read(self, patience_s: float = 0.0) -> str:
        """What a rank wrote; empty where none did within that time."""
        deadline = time.monotonic() + patience_s
        try:
            while not self._store.check([_NOTE_KEY]):
                if time.monotonic() >= deadline:
                    return ""
                time.sleep(_PAUSE_S)
            return self._store.get(_NOTE_KEY).decode()
        except RuntimeError:
            return ""

    def read_after_failure(self) -> str:
        """What a rank wrote; waits a little, as who sees the cause may be slower than who sees its effect."""
        return self.read(_NOTE_COMES_S)

    def require_none(self) -> None:
        """Raise a CommunicationError where there is one."""
        if note := self.read():
            raise CommunicationError(
                f"A collective between hosts was given up. {note}", "See that rank's error. The ranks need a new group."
            )


class GlooAcross:
    """The leaders by torch's gloo."""

    def __init__(self, store: Store, layout: Layout, timeout: timedelta, note: GiveUpNote) -> None:
        self._hosts = len(layout.hosts)
        self._note = note
        prefixed = PrefixStore("across", store_for_threads(store))  # gloo may read it when a collective first needs to
        self._gloo: Any = dist.ProcessGroupGloo(prefixed, layout.host, self._hosts, timeout)

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = _GLOO_OPS[op]
        self._do(lambda gloo: gloo.allreduce([tensor], options))

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = src
        self._do(lambda gloo: gloo.broadcast([tensor], options))

    def close(self) -> None:
        self._gloo = None  # gloo's shutdown() does nothing; its connections are closed with the last reference

    def _do(self, start: Callable[[Any], Any]) -> None:
        gloo, work = self._gloo, None
        try:
            _require_open(gloo is not None)
            work = start(gloo)
            while not has_ended(work):
                _require_open(self._gloo is not None)
                self._note.require_none()
        except BaseException as error:
            if work is not None and not work.is_completed():
                # To free gloo would be to wait for what it does. So it stays until the process ends. So does the work:
                # it has the tensors, and gloo's thread cannot free them while the interpreter ends.
                for kept in (gloo, work):
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
            if isinstance(error, CommunicationError) or not isinstance(error, RuntimeError):
                raise
            raise CommunicationError(
                f"Between the {self._hosts} hosts of the group gloo failed: {str(error).splitlines()[0]}",
                "See which host's ranks have ended, and whether its network interface is the one of "
                "GLOO_SOCKET_IFNAME.",
            ) from error


class CCLAcross:
    """The leaders by oneCCL."""

    def __init__(self, store: Store, layout: Layout, timeout: timedelta, note: GiveUpNote) -> None:
        module = CCLCommBuilder().load()
        if layout.host == 0:
            store.set(_KVS_KEY, bytes(module.get_sub_kvs_addr(True)))  # type: ignore[arg-type]
        address = list(store.get(_KVS_KEY))
        self._is_open = True
        self._note = note
        self._comm = module.new_communicator(
            len(layout.hosts), layout.host, address, timeout_s=timeout.total_seconds(), watch=self._watch
        )

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        self._comm.all_reduce(tensor, op).wait()

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        self._comm.broadcast(tensor, src).wait()

    def close(self) -> None:
        self._is_open = False
        self._comm.close()

    def _watch(self) -> None:
        _require_open(self._is_open)
        self._note.require_none()


def require_across(name: str) -> str:
    """``name``, if it is one of :data:`ACROSS`.

    Raises:
        EnvironmentValueError: it is not.
    """
    if name not in ACROSS:
        raise EnvironmentValueError("ACCEL_DISTRIBUTED_ACROSS", name, " or ".join(ACROSS))
    return name


def connect_hosts(name: str, store: Store, layout: Layout, timeout: timedelta, note: GiveUpNote) -> Across | None:
    """The leaders' collectives, by gloo or ccl; None on a rank that does not lead its host."""
    if not layout.is_leader:
        return None
    make = CCLAcross if name == "ccl" else GlooAcross
    return make(store, layout, timeout, note)


def compare_calls(across: Across, layout: Layout, text: str) -> None:
    """Compare what the hosts are about to do.

    Raises:
        CommunicationError: it is not the same; the message has both calls.
    """
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
    other = next((host for host, call in enumerate(calls) if call != text), layout.host)
    raise CommunicationError(
        f"Rank {layout.rank} called {text}, rank {layout.hosts[other][0]} called {calls[other]}.",
        "Make all ranks of a group call the same, in the same order. The ranks need a new group.",
    )


def _require_open(is_open: bool) -> None:
    if not is_open:
        raise CommunicationError("The group was destroyed during a collective between hosts.", "Make a new one.")
