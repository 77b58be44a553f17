"""How the ranks of a group find each other and exchange their shared memory.

The ranks publish their addresses in a ``torch.distributed`` store. The memory itself has no name: a rank sends its
descriptor through a Unix socket in the abstract namespace (unix(7)), to processes of the same user that know a secret
from the store. So a killed process leaves no file behind, and no other user can open the memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hmac import compare_digest
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from op_builder import env
from op_builder.errors import OpArgumentError, SharedMemoryCommError, SharedMemorySpaceError
from op_builder.system.cgroups import HostFiles, available_memory_bytes, cpu_quota_cores

_SECRET_BYTES = 16
_HELLO = struct.Struct(f"!{_SECRET_BYTES}sI")  # the secret of who is called, the rank of who calls
_PEER_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_HELLO_TIMEOUT_S = 5.0
_LOOK_AROUND_S = 0.2
_LONGEST_PAUSE_S = 0.02
_CHECKED_BYTES = 16 << 20  # from this size on, free memory is checked first

_process_secret = os.urandom(8).hex()  # the same for ranks that are threads of one process


def _forget_secret() -> None:
    global _process_secret
    _process_secret = os.urandom(8).hex()


os.register_at_fork(after_in_child=_forget_secret)


class RankFacts(NamedTuple):
    """What a rank publishes to the others.

    Attributes:
        address: the address of its socket.
        secret: what clients of the socket must send.
        process: the process that it is a thread of.
        host: the running kernel and its network namespace, in which the socket can be reached.
        cpus: the cores that it may run on.
        quota_cores: its CPU quota, in cores; None without one.
        error: why it cannot take part; empty if it can.
    """

    address: str
    secret: str
    process: str
    host: str
    cpus: list[int]
    quota_cores: float | None = None
    error: str = ""

    @property
    def is_in_this_process(self) -> bool:
        return self.process == _process_secret


class Meeting:
    """One exchange between all ranks of a group.

    Args:
        store: where they publish their facts.
        key: the same on all ranks, and never used before in this store.
        size, rank: the size of the group, and the rank of this process.
        timeout_s: the limit of the exchange.
    """

    def __init__(self, store: Store, key: str, size: int, rank: int, timeout_s: float) -> None:
        self.store = store
        self.key = key
        self.size = size
        self.rank = rank
        self.timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def exchange(self, descriptor: int, error: str = "") -> tuple[list[RankFacts], list[int]]:
        """Send a descriptor of shared memory to all other ranks, and receive theirs.

        Args:
            descriptor: borrowed; -1 if creating the memory failed.
            error: why it failed. Then all ranks raise.

        Returns:
            the facts of the ranks, and their descriptors, both by rank. The caller closes the descriptors of the other
            ranks; its own is ``descriptor``.

        Raises:
            SharedMemoryCommError: a rank is missing, is on another host, or has an error; or the store failed.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            address = f"accel-shm-comm-{os.urandom(_SECRET_BYTES).hex()}"
            listener.bind(f"\0{address}")
            listener.listen(self.size + 8)
            own = RankFacts(
                address,
                os.urandom(_SECRET_BYTES).hex(),
                _process_secret,
                _host(),
                sorted(os.sched_getaffinity(0)),
                cpu_quota_cores(HostFiles()),
                error,
            )
            try:
                facts = [own] if self.size == 1 else self._exchange_facts(own)
            except SharedMemoryCommError:
                raise
            except RuntimeError as error:  # as torch's stores fail
                raise _store_error(f"group {self.key!r} was made", error, self.timeout_s) from error
            self._require_fit(facts)
            return facts, self._exchange_descriptors(listener, facts, descriptor)

    def forget(self) -> None:
        """Remove this rank's facts from the store, after all ranks have read them."""
        if self.size == 1:
            return
        try:
            self.store.delete_key(self._key_of(self.rank))
        except (
            RuntimeError,
            NotImplementedError,
        ):  # the server of the store may have ended, or the store cannot delete
            return

    def _key_of(self, rank: int) -> str:
        return f"{self.key}/{rank}"

    def _exchange_facts(self, own: RankFacts) -> list[RankFacts]:
        text = json.dumps(own._asdict())
        # If the key exists, two groups have one name, and would get each other's memory.
        if self.store.compare_set(self._key_of(self.rank), "", text).decode() != text:
            raise SharedMemoryCommError(
                f"The store already has a rank {self.rank} of group {self.key!r}.",
                "Give groups of different ranks different names: new_group(..., name=...).",
            )
        facts: dict[int, RankFacts] = {self.rank: own}
        pause_s = 0.0005
        while missing := [rank for rank in range(self.size) if rank not in facts]:
            ready = [rank for rank in missing if self.store.check([self._key_of(rank)])]
            facts |= {rank: RankFacts(**json.loads(self.store.get(self._key_of(rank)))) for rank in ready}
            if len(ready) < len(missing):
                self._require_time([rank for rank in missing if rank not in ready])
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return [facts[rank] for rank in range(self.size)]

    def _require_time(self, missing: Sequence[int]) -> None:
        if time.monotonic() > self._deadline:
            who = ", ".join(map(str, missing))
            raise SharedMemoryCommError(
                f"Rank {self.rank} of {self.size} waited {self.timeout_s:g} s for rank {who} to join group "
                f"{self.key!r}.",
                "Check why it did not, or raise timeout_s or ACCEL_COMM_TIMEOUT_S.",
                rank=missing[0],
                operation="new_group",
                waited_s=self.timeout_s,
            )

    def _require_fit(self, facts: Sequence[RankFacts]) -> None:
        for rank, other in enumerate(facts):
            if other.error:
                raise SharedMemoryCommError(f"Rank {rank} cannot take part: {other.error}", rank=rank)
            if other.host != facts[self.rank].host:
                raise SharedMemoryCommError(
                    f"Ranks {self.rank} and {rank} cannot share memory: they run on different hosts or in different "
                    "network namespaces.",
                    "Make groups of ranks on one host and in one network namespace.",
                    rank=rank,
                )

    def _exchange_descriptors(self, listener: socket.socket, facts: Sequence[RankFacts], descriptor: int) -> list[int]:
        """Connect to all other ranks, whose sockets queue the connections; answer theirs; read the answers."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        received: dict[int, int] = {}
        with contextlib.ExitStack() as stack:
            calls = {rank: stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for rank in others}
            try:
                for rank in others:
                    self._call(calls[rank], rank, facts[rank])
                self._answer(listener, facts[self.rank], calls, descriptor)
                for rank in others:
                    received[rank] = self._receive(calls[rank], rank)
            except BaseException:
                for other in received.values():
                    os.close(other)
                raise
        return [descriptor if rank == self.rank else received[rank] for rank in range(self.size)]

    def _call(self, connection: socket.socket, rank: int, facts: RankFacts) -> None:
        connection.settimeout(max(1.0, self._deadline - time.monotonic()))
        try:
            connection.connect(f"\0{facts.address}")
            if not _is_same_user(connection):
                raise SharedMemoryCommError("A rank runs as another user.", "Start all ranks as one user.")
            connection.sendall(_HELLO.pack(bytes.fromhex(facts.secret), self.rank))
        except OSError:
            self._require_time([rank])
            raise self._ended(rank) from None

    def _answer(
        self, listener: socket.socket, own: RankFacts, calls: Mapping[int, socket.socket], descriptor: int
    ) -> None:
        """Send the descriptor to each rank that connects, until all have it."""
        waiting = set(calls)
        listener.settimeout(_LOOK_AROUND_S)
        while waiting:
            self._require_time(sorted(waiting))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                for rank in waiting:
                    if _has_hung_up(calls[rank]):
                        raise self._ended(rank) from None
                continue
            with connection:
                rank = _caller(connection, own)
                if rank in waiting:
                    try:
                        socket.send_fds(connection, [b"."], [descriptor])
                    except ConnectionError:
                        raise self._ended(rank) from None
                    waiting.discard(rank)

    def _receive(self, connection: socket.socket, rank: int) -> int:
        while True:
            connection.settimeout(1.0)
            try:
                data, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
            except TimeoutError:
                self._require_time([rank])
                continue
            except OSError:
                data, descriptors = b"", []
            if data and descriptors:
                os.set_inheritable(descriptors[0], False)
                return descriptors[0]
            raise self._ended(rank)

    def _ended(self, rank: int) -> SharedMemoryCommError:
        return SharedMemoryCommError(
            f"Rank {rank} ended while it joined group {self.key!r}.",
            "Check why it ended.",
            rank=rank,
            operation="new_group",
        )


def shared_segments(
    ops: Any, meeting: Meeting, size_bytes: int, *, is_locked: bool = False
) -> tuple[list[RankFacts], list[int]]:
    """Create a segment and exchange it; returns the facts of all ranks, and their descriptors, which the caller closes.

    If the memory of one rank does not suffice all raise.
    """
    descriptor, failure = -1, None
    try:
        descriptor = _segment(ops, size_bytes, meeting.size)
        if is_locked:  # until this process ends: the others check it
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except SharedMemorySpaceError as error:
        failure = error
    try:
        return meeting.exchange(descriptor, failure.message if failure else "")
    except BaseException as error:
        if descriptor >= 0:
            os.close(descriptor)
        if failure is not None and isinstance(error, SharedMemoryCommError):
            raise failure from None
        raise


def _segment(ops: Any, size_bytes: int, ranks: int) -> int:
    """The descriptor of new shared memory.

    Raises:
        SharedMemorySpaceError: memory does not suffice for all ranks.
    """
    if size_bytes >= _CHECKED_BYTES:
        # Using more than is free would make the kernel kill a process, perhaps another one.
        available = available_memory_bytes(HostFiles())
        if size_bytes * ranks > available:
            raise SharedMemorySpaceError(
                f"{ranks} ranks need {size_bytes * ranks} bytes of shared memory ({size_bytes} each), but only "
                f"{available} are available.",
                "Request less, or free some memory.",
                needed_bytes=size_bytes * ranks,
            )
    descriptor: int = ops.create_segment(size_bytes)
    if descriptor < 0:
        raise space_error(size_bytes, -descriptor)
    return descriptor


def space_error(size_bytes: int, number: int) -> SharedMemorySpaceError:
    remedies = {
        errno.EFBIG: "Raise the file size limit (ulimit -f).",
        errno.EMFILE: "Raise the limit of open files (ulimit -n).",
        errno.ENOSYS: "The system has no memfd_create(2); use a newer kernel, or allow it in the sandbox.",
        errno.EPERM: "The sandbox forbids memfd_create(2) or sealing; allow them.",
    }
    return SharedMemorySpaceError(
        f"Allocating {size_bytes} bytes of shared memory failed: {os.strerror(number)}.",
        remedies.get(number, "Free some memory, or raise the limit of this control group."),
        needed_bytes=size_bytes,
    )


def _caller(connection: socket.socket, own: RankFacts) -> int:
    """The rank that connected; -1 for another user's process, or one that does not know the secret."""
    if not _is_same_user(connection):
        return -1
    connection.settimeout(_HELLO_TIMEOUT_S)
    try:
        secret, rank = _HELLO.unpack(connection.recv(_HELLO.size, socket.MSG_WAITALL))
    except (OSError, struct.error):
        return -1
    return int(rank) if compare_digest(secret, bytes.fromhex(own.secret)) else -1


def _has_hung_up(call: socket.socket) -> bool:
    """Whether the peer has ended without an answer."""
    try:
        return not call.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _is_same_user(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    _, user, _ = _PEER_CREDENTIALS.unpack(raw)
    return bool(user == os.geteuid())


def _host() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def _store_error(when: str, error: RuntimeError, timeout_s: float) -> SharedMemoryCommError:
    return SharedMemoryCommError(
        f"The ranks' store failed when {when}, within {timeout_s:g} s: {str(error).splitlines()[0]}",
        "Check that rank 0, which serves the store, runs at MASTER_ADDR, and that MASTER_PORT is free "
        "there; or raise timeout_s or ACCEL_COMM_TIMEOUT_S.",
        operation="new_group",
    )


def default_store(rank: int, timeout_s: float) -> Any:
    """The store of ``torch.distributed``'s default process group, else one at MASTER_ADDR:MASTER_PORT.

    Args:
        rank: the rank of this process if RANK is unset; rank 0 serves the store.

    Raises:
        OpArgumentError: both are missing.
        SharedMemoryCommError: the store cannot be reached in that time.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    host, port = env.MASTER_ADDR.get(), env.MASTER_PORT.get()
    if host is None or port is None:
        raise OpArgumentError(
            "The ranks have no common store: torch.distributed is not initialized, and MASTER_ADDR or MASTER_PORT is "
            "unset.",
            "Start them with a launcher, set the two variables, or pass new_group(..., store=...).",
        )
    own_rank = env.RANK.get()
    is_server = (rank if own_rank is None else own_rank) == 0 and not env.TORCHELASTIC_USE_AGENT_STORE.get()
    patience = timedelta(seconds=timeout_s)
    try:
        store = TCPStore(host, port, None, is_server, patience, wait_for_workers=False, multi_tenant=True)
    except RuntimeError as error:
        raise _store_error(f"a rank {'served' if is_server else 'called'} {host}:{port}", error, timeout_s) from error
    # An agent's store outlives restarted ranks.
    return PrefixStore(f"attempt_{env.TORCHELASTIC_RESTART_COUNT.get()}", store)
