"""How the ranks of a group find each other and open each other's shared memory.

Each rank publishes the descriptor of its memory in a ``torch.distributed`` store. The memory itself has no name: a rank
opens another rank's descriptor through ``/proc`` (proc(5)), which the system permits only to processes of the same
user. So a killed process leaves no file, and no other user can open the memory.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from op_builder import env
from op_builder.errors import CommunicationError, OpArgumentError, SharedMemoryCommError, SharedMemorySpaceError
from op_builder.system.cgroups import HostFiles, available_memory_bytes, cpu_quota_cores
from op_builder.system.host import boot_id
from op_builder.system.listener import listen
from op_builder.system.records import (
    RecordError,
    Schema,
    decode,
    encode,
    is_count,
    is_int32,
    is_number,
    is_text,
    list_of,
)

_LONGEST_PAUSE_S = 0.02
_CHECKED_BYTES = 16 << 20  # from this size on, free memory is checked first
FACTS_FORMAT = 2  # of what ranks publish
_SCHEMA: Schema = {
    "process": is_count,
    "descriptor": is_int32,
    "inode": is_count,
    "host": is_text,
    "cpus": list_of(is_count),
    "quota_cores": lambda value: value is None or is_number(value),
    "error": is_text,
}


class MemoryFacts(NamedTuple):
    """What a rank publishes to the others.

    Attributes:
        process: the number of its process in ``/proc``.
        descriptor: of its memory, in that process; ``inode`` identifies the memory.
        host: the running kernel and its PID namespace.
        cpus: the cores that it may run on.
        quota_cores: its CPU quota, in cores; None without one.
        error: why it cannot take part; empty if it can.
    """

    process: int
    descriptor: int
    inode: int
    host: str
    cpus: list[int]
    quota_cores: float | None = None
    error: str = ""


class GroupPlace(NamedTuple):
    """The place of this process in a group, and how the ranks find each other: under ``key`` in a store."""

    size: int
    rank: int
    name: str
    store: Any
    key: str
    timeout_s: float

    def exchange(self, what: str, descriptor: int, error: str = "") -> tuple[list[MemoryFacts], list[int]]:
        """Publish a descriptor of shared memory, and open those of the other ranks.

        Args:
            what: the memory's name, the same on all ranks, and used once.
            descriptor: -1 if creating the memory failed, with ``error``: then all ranks raise. Otherwise keep it open
                until all ranks have opened it.

        Returns:
            the facts of the ranks, and their descriptors, both by rank. The caller closes the descriptors of the other
            ranks; its own is ``descriptor``.
        """
        cpus = sorted(os.sched_getaffinity(0))
        inode = os.fstat(descriptor).st_ino if descriptor >= 0 else 0
        process = int(os.readlink("/proc/self"))  # /proc may be mounted for another PID namespace
        own = MemoryFacts(process, descriptor, inode, _host(), cpus, cpu_quota_cores(HostFiles()), error)
        try:
            facts = [own] if self.size == 1 else self._exchange_facts(what, own)
        except CommunicationError:
            raise
        except RuntimeError as error:  # as torch's stores fail
            raise store_error(f"group {self.key!r} was made", error, self.timeout_s) from error
        self._require_fit(facts)
        opened: dict[int, int] = {}
        try:
            for rank in range(self.size):
                if rank != self.rank:
                    opened[rank] = self._open(rank, facts[rank])
        except BaseException:
            for other in opened.values():
                os.close(other)
            raise
        return facts, [opened.get(rank, descriptor) for rank in range(self.size)]

    def forget(self, what: str) -> None:
        """Remove this rank's facts from the store, after all ranks have read them."""
        if self.size == 1:
            return
        try:
            self.store.delete_key(self._key_of(what, self.rank))
        except (RuntimeError, NotImplementedError):
            return  # the server of the store may have ended, or the store cannot delete

    def _key_of(self, what: str, rank: int) -> str:
        return f"{self.key}/{what}/{rank}"

    def _exchange_facts(self, what: str, own: MemoryFacts) -> list[MemoryFacts]:
        deadline = time.monotonic() + self.timeout_s
        text = encode(own._asdict(), FACTS_FORMAT)
        # If the key exists, two groups have one name, and would get each other's memory.
        if self.store.compare_set(self._key_of(what, self.rank), "", text) != text.encode():
            raise SharedMemoryCommError(
                f"The store already has a rank {self.rank} of group {self.key!r}.",
                "Give groups of different ranks different names: new_group(..., name=...).",
            )
        facts: dict[int, MemoryFacts] = {self.rank: own}
        pause_s = 0.0005
        while missing := [rank for rank in range(self.size) if rank not in facts]:
            ready = [rank for rank in missing if self.store.check([self._key_of(what, rank)])]
            facts |= {
                rank: MemoryFacts(**read_facts(self.store, self._key_of(what, rank), rank, _SCHEMA)) for rank in ready
            }
            if len(ready) < len(missing):
                if time.monotonic() > deadline:
                    raise self._late([rank for rank in missing if rank not in ready])
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return [facts[rank] for rank in range(self.size)]

    def _late(self, missing: Sequence[int]) -> SharedMemoryCommError:
        who = ", ".join(map(str, missing))
        return SharedMemoryCommError(
            f"Rank {self.rank} of {self.size} waited {self.timeout_s:g} s for rank {who} to join group {self.key!r}.",
            "Read that rank's output or log, or raise timeout_s or ACCEL_COMM_TIMEOUT_S.",
            rank=missing[0],
            operation="new_group",
            waited_s=self.timeout_s,
        )

    def _require_fit(self, facts: Sequence[MemoryFacts]) -> None:
        for rank, other in enumerate(facts):
            if other.error:
                raise SharedMemoryCommError(f"Rank {rank} cannot take part: {other.error}", rank=rank)
            if other.host != facts[self.rank].host:
                raise SharedMemoryCommError(
                    f"Ranks {self.rank} and {rank} cannot share memory: they run on different hosts or in different "
                    "PID namespaces.",
                    "Make groups of ranks on one host and in one PID namespace.",
                    rank=rank,
                )

    def _open(self, rank: int, facts: MemoryFacts) -> int:
        """A descriptor of another rank's memory."""
        path = f"/proc/{facts.process}/fd/{facts.descriptor}"
        try:
            # The numbers of the process and the descriptor may have been reused meanwhile.
            if not os.readlink(path).startswith("/memfd:accel_shm_comm") or os.stat(path).st_ino != facts.inode:
                raise FileNotFoundError(path)
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except PermissionError:
            raise SharedMemoryCommError(
                f"The memory of rank {rank} cannot be opened through {path}: permission denied.",
                "Start all ranks as one user and with equal capabilities; programs with file capabilities (setcap) are "
                "closed to others.",
                rank=rank,
            ) from None
        except OSError:
            raise SharedMemoryCommError(
                f"Rank {rank} ended while it joined group {self.key!r}.",
                "Read the end of that rank's output or log.",
                rank=rank,
                operation="new_group",
            ) from None


def read_facts(store: Store, key: str, rank: int, schema: Schema) -> dict[str, Any]:
    """What rank ``rank`` published under ``key``, which exists or for which the store waits."""
    published = store.get(key)
    try:
        return decode(published.decode(errors="replace"), schema, FACTS_FORMAT)
    except RecordError as error:
        raise SharedMemoryCommError(
            f"What rank {rank} published to the group cannot be read: {error}.",
            "Run the same version of accel-ops on all ranks, and let no other program write to their store.",
            rank=rank,
            operation="new_group",
        ) from None


def shared_segments(
    ops: Any, place: GroupPlace, what: str, size_bytes: int, *, is_locked: bool = False
) -> tuple[list[MemoryFacts], list[int]]:
    """Create a segment and exchange it; returns the facts of all ranks, and their descriptors, which the caller closes.

    If the memory of one rank does not suffice all raise.
    """
    descriptor, failure = -1, None
    try:
        descriptor = _segment(ops, size_bytes, place.size)
        if is_locked:  # until this process ends: the others check it
            import fcntl

            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except SharedMemorySpaceError as error:
        failure = error
    try:
        return place.exchange(what, descriptor, failure.message if failure else "")
    except BaseException as error:
        if descriptor >= 0:
            os.close(descriptor)
        if failure is not None and isinstance(error, SharedMemoryCommError):
            raise failure from None
        raise


def _segment(ops: Any, size_bytes: int, ranks: int) -> int:
    """The descriptor of new shared memory; a SharedMemorySpaceError if memory does not suffice for all ranks."""
    if size_bytes >= _CHECKED_BYTES:
        # Using more than is free would make the kernel kill a process, perhaps another one.
        available = available_memory_bytes(HostFiles())
        if size_bytes * ranks > available:
            raise SharedMemorySpaceError(
                f"{ranks} ranks need {size_bytes * ranks} bytes of shared memory ({size_bytes} each), but only "
                f"{available} are available.",
                "Request less, end other programs, or start fewer ranks.",
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


def _host() -> str:
    return f"{boot_id() or os.uname().nodename} {os.stat('/proc/self/ns/pid').st_ino}"


def default_store(rank: int, timeout_s: float) -> Any:
    """The store of ``torch.distributed``'s default process group, else one at MASTER_ADDR:MASTER_PORT.

    Rank 0 serves the store. ``rank`` is used if RANK is unset.
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
        own = listen(host, port) if is_server else None
        descriptor = None if own is None else own.detach()  # torch closes it
        store = TCPStore(
            host,
            port,
            None,
            is_server,
            patience,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=descriptor,
        )
    except RuntimeError as error:
        raise store_error(f"a rank {'served' if is_server else 'called'} {host}:{port}", error, timeout_s) from error
    # An agent's store outlives restarted ranks.
    return PrefixStore(f"attempt_{env.TORCHELASTIC_RESTART_COUNT.get()}", store)


def store_error(when: str, error: RuntimeError, timeout_s: float) -> SharedMemoryCommError:
    return SharedMemoryCommError(
        f"The ranks' store failed when {when}, within {timeout_s:g} s: {str(error).splitlines()[0]}",
        "Check that rank 0, which serves the store, runs at MASTER_ADDR, and that MASTER_PORT is free "
        "there; or raise timeout_s or ACCEL_COMM_TIMEOUT_S.",
        operation="new_group",
    )
