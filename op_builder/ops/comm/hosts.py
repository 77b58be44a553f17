"""Which ranks of a group are on one host, and what each of them can do: exchanged through the group's store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from torch._C._distributed_c10d import PrefixStore, Store

from op_builder import env
from op_builder.errors import CommunicationError
from op_builder.ops.comm.shared_memory_meeting import FACTS_FORMAT, read_facts
from op_builder.system.host import boot_id
from op_builder.system.records import Schema, encode, is_text

_SCHEMA: Schema = dict.fromkeys(("host", "reason"), is_text)


def own_part(store: Store, rank: int) -> tuple[int, PrefixStore]:
    """The number of the group that is being made, and the part of ``store`` that belongs to it.

    A default group that is destroyed and made again gets the same store and name, and would read what the old one left.
    So groups are numbered: the number is the same on all ranks as long as all make the same groups.
    """
    number = store.add(_made_key(rank), 1)
    return number, PrefixStore(f"accel/{number}", store)


def require_same_number(store: Store, number: int, rank: int, size: int) -> None:
    """Raise a CommunicationError if another rank has made another group since: what it published here is stale.

    No rank gets further before all have called this.
    """
    for other in range(size):
        made = number if other == rank else int(store.get(_made_key(other)))
        if made != number:
            raise CommunicationError(
                f"Rank {other} has created {made} groups of this name on this store, this rank {number}. A rank was "
                "probably restarted alone.",
                "Start all ranks again, on a new store.",
            )


def _made_key(rank: int) -> str:
    return f"accel/made/{rank}"


@dataclass(frozen=True)
class HostFacts:
    """What a rank publishes to the others of a group.

    Attributes:
        host: its host; ranks with the same one can share memory.
        reason: why it cannot use shared memory; empty if it can.
    """

    host: str
    reason: str


@dataclass(frozen=True)
class Layout:
    """Which ranks of a group are on which host, in the order of the hosts' first ranks; ``rank`` is this process."""

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
        """The index of this rank on its host."""
        return self.local_ranks.index(self.rank)

    @property
    def is_leader(self) -> bool:
        """Whether this rank is the first of its host."""
        return self.local_rank == 0

    @property
    def are_in_order(self) -> bool:
        """Whether the hosts, one after another, have consecutive ranks."""
        return [rank for ranks in self.hosts for rank in ranks] == list(range(self.size))

    def host_of(self, rank: int) -> int:
        """The number of a rank's host."""
        return next(number for number, ranks in enumerate(self.hosts) if rank in ranks)


def host_identity() -> str:
    """A text that is the same for processes that can share memory.

    They have the same boot of the kernel, the same PID and network namespaces, and the same user.
    """
    named = env.ACCEL_HOST_ID.get()
    if named is not None:
        return named
    with contextlib.suppress(OSError):
        if boot := boot_id():
            namespaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("pid", "net")]
            return f"{boot} {namespaces} {os.geteuid()}"
    return f"{os.uname().nodename} {os.uname().version}"


def exchange(store: Store, rank: int, size: int, mine: HostFacts) -> list[HostFacts]:
    """The facts of all ranks, in order. Every rank calls this first.

    Raises:
        CommunicationError: a rank published nothing within the store's timeout, or something that cannot be read.
    """
    store.set(_key(rank), encode(asdict(mine), FACTS_FORMAT))
    return [mine if other == rank else _read(store, other) for other in range(size)]


def layout(rank: int, facts: Sequence[HostFacts]) -> Layout:
    """The ranks by hosts."""
    hosts: dict[str, list[int]] = {}
    for number, fact in enumerate(facts):
        hosts.setdefault(fact.host, []).append(number)
    return Layout(rank, tuple(map(tuple, hosts.values())))


def _read(store: Store, rank: int) -> HostFacts:
    try:
        return HostFacts(**read_facts(store, _key(rank), rank, _SCHEMA))
    except CommunicationError:
        raise
    except RuntimeError as error:
        raise CommunicationError(
            f"Rank {rank} did not join the group: {str(error).splitlines()[0]}.",
            "Read the end of that rank's output, or pass a longer timeout to init_process_group() or new_group(). "
            "If a rank was restarted, restart all of them on a new store.",
        ) from error


def _key(rank: int) -> str:
    return f"accel/{rank}"
