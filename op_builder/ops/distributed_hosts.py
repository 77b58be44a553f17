"""Which ranks of a group are on one host, and what each of them can do: told and read through the group's store."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from op_builder import env
from op_builder.errors import CommunicationError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")


class Store(Protocol):
    """What is used of a ``torch.distributed.Store``."""

    def set(self, key: str, value: str) -> None:
        """Tell the other ranks."""

    def get(self, key: str) -> bytes:
        """What a rank told; waits for it, for as long as the store's timeout."""


@dataclass(frozen=True)
class RankFacts:
    """What a rank tells the others of a group.

    Attributes:
        host: its host; ranks with the same one can share memory.
        obstacle: why it cannot use shared memory, empty when it can.
        across: what it is to use between hosts.
    """

    host: str
    obstacle: str
    across: str


@dataclass(frozen=True)
class Layout:
    """How a group's ranks lie on hosts.

    Attributes:
        rank: this process's.
        hosts: the ranks of each host, in order; the hosts in the order of their first ranks.
    """

    rank: int
    hosts: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.hosts))

    @property
    def host(self) -> int:
        """The number of this rank's host."""
        return self.host_of(self.rank)

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks of this host."""
        return self.hosts[self.host]

    @property
    def local_rank(self) -> int:
        """The place of this rank among those of its host."""
        return self.local_ranks.index(self.rank)

    @property
    def is_leader(self) -> bool:
        """Whether it speaks for its host."""
        return self.local_rank == 0

    @property
    def are_in_order(self) -> bool:
        """Whether the hosts one after another have the ranks one after another."""
        return [rank for ranks in self.hosts for rank in ranks] == list(range(self.size))

    def host_of(self, rank: int) -> int:
        """The number of a rank's host."""
        return next(number for number, ranks in enumerate(self.hosts) if rank in ranks)


def host_identity() -> str:
    """A text that processes have in common exactly when they can share memory.

    That is: one boot of one kernel, one network namespace (memory is handed over by sockets of it), one user.
    """
    named = env.ACCEL_HOST_ID.get()
    if named is not None:
        return named
    try:
        boot = _BOOT_ID.read_text().strip()
        return f"{boot} {os.stat(_NETWORK_NAMESPACE).st_ino} {os.geteuid()}"
    except OSError:
        return f"{os.uname().nodename} {os.uname().version}"


def exchange(store: Store, rank: int, size: int, mine: RankFacts) -> list[RankFacts]:
    """The facts of all ranks, in order; every rank calls it.

    Raises:
        CommunicationError: a rank told nothing within the store's timeout.
    """
    store.set(_key(rank), json.dumps(asdict(mine)))
    return [mine if other == rank else _read(store, other) for other in range(size)]


def layout(rank: int, facts: Sequence[RankFacts]) -> Layout:
    """The ranks by hosts."""
    hosts: dict[str, list[int]] = {}
    for number, fact in enumerate(facts):
        hosts.setdefault(fact.host, []).append(number)
    return Layout(rank, tuple(map(tuple, hosts.values())))


def _read(store: Store, rank: int) -> RankFacts:
    try:
        return RankFacts(**json.loads(store.get(_key(rank))))
    except RuntimeError as error:
        raise CommunicationError(
            f"Rank {rank} of the group did not come: {str(error).splitlines()[0]}.",
            "See why it ended, or give init_process_group() or new_group() a longer timeout.",
        ) from error


def _key(rank: int) -> str:
    return f"accel/{rank}"
