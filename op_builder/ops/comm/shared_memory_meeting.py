"""How the ranks of a group find each other and exchange their shared memory.

The ranks publish their addresses in a ``torch.distributed`` store. The memory itself has no name: a rank sends its
descriptor through a Unix socket in the abstract namespace (unix(7)), to processes of the same user that know a secret
from the store. So a killed process leaves no file behind, and no other user can open the memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Collection, Sequence
from hmac import compare_digest
from pathlib import Path
from typing import Any, NamedTuple

from torch._C._distributed_c10d import Store

from op_builder.errors import SharedMemoryCommError
from op_builder.ops.comm.store import store_error
from op_builder.system.cgroups import HostFiles, cpu_quota_cores
from op_builder.system.records import (
    RecordError,
    Schema,
    decode,
    encode,
    is_count,
    is_name,
    is_number,
    is_text,
    list_of,
)

_SECRET_BYTES = 16
_LONGEST_ADDRESS = 100  # of a socket: unix(7)
_HELLO = struct.Struct(f"!{_SECRET_BYTES}sI")  # the secret of who is called, the rank of who calls
_PEER_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_HELLO_TIMEOUT_S = 0.2  # who is later connects again
_LOOK_AROUND_S = 0.2
_LONGEST_PAUSE_S = 0.02

_FORMAT = 1


def _is_secret(value: Any) -> bool:
    return type(value) is str and len(value) == 2 * _SECRET_BYTES and not value.strip("0123456789abcdef")


_SCHEMA: Schema = {
    "address": lambda value: is_name(value) and value.isascii() and len(value) <= _LONGEST_ADDRESS,
    "secret": _is_secret,
    "process": is_text,
    "host": is_text,
    "cpus": list_of(is_count),
    "quota_cores": lambda value: value is None or is_number(value),
    "error": is_text,
}

_process_secret = os.urandom(8).hex()  # the same for ranks that are threads of one process


def _forget_secret() -> None:
    global _process_secret
    _process_secret = os.urandom(8).hex()


if hasattr(os, "register_at_fork"):  # not on Windows
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
                raise store_error(f"group {self.key!r} was made", error, self.timeout_s) from error
            self._require_fit(facts)
            return facts, self._exchange_descriptors(listener, facts, descriptor)

    def forget(self) -> None:
        """Remove this rank's facts from the store, after all ranks have read them."""
        if self.size == 1:
            return
        try:
            self.store.delete_key(self._key_of(self.rank))
        except (RuntimeError, NotImplementedError):
            return  # the server of the store may have ended, or the store cannot delete

    def _key_of(self, rank: int) -> str:
        return f"{self.key}/{rank}"

    def _exchange_facts(self, own: RankFacts) -> list[RankFacts]:
        text = encode(own._asdict(), _FORMAT)
        # If the key exists, two groups have one name, and would get each other's memory.
        if self.store.compare_set(self._key_of(self.rank), "", text) != text.encode():
            raise SharedMemoryCommError(
                f"The store already has a rank {self.rank} of group {self.key!r}.",
                "Give groups of different ranks different names: new_group(..., name=...).",
            )
        facts: dict[int, RankFacts] = {self.rank: own}
        pause_s = 0.0005
        while missing := [rank for rank in range(self.size) if rank not in facts]:
            ready = [rank for rank in missing if self.store.check([self._key_of(rank)])]
            facts |= {rank: self._read(rank) for rank in ready}
            if len(ready) < len(missing):
                self._require_time([rank for rank in missing if rank not in ready])
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return [facts[rank] for rank in range(self.size)]

    def _read(self, rank: int) -> RankFacts:
        published = self.store.get(self._key_of(rank))
        try:
            return RankFacts(**decode(published.decode(errors="replace"), _SCHEMA, _FORMAT))
        except RecordError as error:
            raise SharedMemoryCommError(
                f"What rank {rank} published to group {self.key!r} cannot be read: {error}.",
                "Run the same version of accel-ops on all ranks, and let no other program write to their store.",
                rank=rank,
                operation="new_group",
            ) from None

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
        """Connect to all other ranks, whose sockets queue the connections; answer theirs; read the answers.

        Other processes can connect, too. If they fill a rank's queue, or keep it busy until it drops a connection, the
        others connect again.
        """
        unanswered = {rank for rank in range(self.size) if rank != self.rank}
        calls: dict[int, socket.socket] = {}
        received = {self.rank: descriptor}
        listener.setblocking(False)
        try:
            while silent := [rank for rank in range(self.size) if rank not in received or rank in unanswered]:
                self._require_time(silent)
                for rank in range(self.size):
                    if rank not in received and rank not in calls:
                        self._call(calls, rank, facts[rank])
                pending = [call for rank, call in calls.items() if rank not in received]
                _wait([listener, *pending], _LOOK_AROUND_S if len(calls) == self.size - 1 else _LONGEST_PAUSE_S)
                with contextlib.suppress(BlockingIOError):
                    unanswered.discard(self._answer(listener, facts[self.rank], unanswered, descriptor))
                for rank in [rank for rank in calls if rank not in received]:
                    self._receive(calls, rank, received)
        except BaseException:
            for rank in received.keys() - {self.rank}:
                os.close(received[rank])
            raise
        finally:
            for call in calls.values():
                call.close()
        return [received[rank] for rank in range(self.size)]

    def _call(self, calls: dict[int, socket.socket], rank: int, facts: RankFacts) -> None:
        """Connect to a rank unless its queue is full."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(f"\0{facts.address}")
            if not _is_same_user(connection):
                raise SharedMemoryCommError("A rank runs as another user.", "Start all ranks as one user.")
            connection.send(_HELLO.pack(bytes.fromhex(facts.secret), self.rank))
            calls[rank] = connection
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass
        except OSError:
            raise self._ended(rank) from None
        finally:
            if rank not in calls:
                connection.close()

    def _answer(
        self, listener: socket.socket, own: RankFacts, unanswered: Collection[int], descriptor: int
    ) -> int | None:
        """Send the descriptor to the rank that connects; returns the rank, None for a stranger."""
        connection, _ = listener.accept()
        with connection:
            rank = _caller(connection, own)
            if rank not in unanswered:
                return None
            try:
                socket.send_fds(connection, [b"."], [descriptor])
            except ConnectionError:
                raise self._ended(rank) from None
            return rank

    def _receive(self, calls: dict[int, socket.socket], rank: int, received: dict[int, int]) -> None:
        """Read the answer of a rank, if it has arrived."""
        try:
            data, descriptors, _, _ = socket.recv_fds(calls[rank], 1, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if data and descriptors:
            os.set_inheritable(descriptors[0], False)
            received[rank] = descriptors[0]
        else:  # the rank has dropped the connection, or has ended
            calls.pop(rank).close()

    def _ended(self, rank: int) -> SharedMemoryCommError:
        return SharedMemoryCommError(
            f"Rank {rank} ended while it joined group {self.key!r}.",
            "Check why it ended.",
            rank=rank,
            operation="new_group",
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


def _wait(sockets: Sequence[socket.socket], timeout_s: float) -> None:
    """Wait until one of these can be read or was closed by its peer."""
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)
    poll.poll(1000 * timeout_s)


def _is_same_user(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    _, user, _ = _PEER_CREDENTIALS.unpack(raw)
    return bool(user == os.geteuid())


def _host() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
