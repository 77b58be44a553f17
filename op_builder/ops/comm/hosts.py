"""Which ranks of a group are on one host, and what each of them can do: exchanged through the group's store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from torch._C._distributed_c10d import PrefixStore, Store

from op_builder import env
from op_builder.errors import CommunicationError
from op_builder.system.host import boot_id
from op_builder.system.records import RecordError, Schema, decode, encode, is_text

_FORMAT = 2
_SCHEMA: Schema = dict.fromkeys(("host", "reason"), is_text)
_NEW_STORE = "Start all ranks again, on a new store."


class MadeGroups:
    """Counts the groups of one name that each rank has made on a store, including the new one.

    A default group that is destroyed and made again gets the same store and name, and would read what the old one left.
    So each group has its own part of the store, ``store``, under its number, which is the same on all ranks as long as
    all make the same groups.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self.rank = rank
        self._whole = store
        self._number = store.add(f"accel/made/{rank}", 1)
        self.store = PrefixStore(f"accel/{self._number}", store)

    def difference(self, rank: int) -> str:
        """A sentence for errors if that rank has made another number of groups; empty if not, or if it made none."""
        key = f"accel/made/{rank}"
        try:
            number = int(self._whole.get(key)) if self._whole.check([key]) else 0
        except (RuntimeError, ValueError):  # the store may have ended, or contain another value
            return ""
        if number in (0, self._number):
            return ""
        return (
            f" Rank {rank} has created {number} groups of this name on this store, this rank {self._number}. A rank "
            "was probably restarted alone: restart all ranks with a new store."
        )


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


def exchange(made: MadeGroups, size: int, mine: HostFacts) -> list[HostFacts]:
    """The facts of all ranks, in order. Every rank calls this first.

    Raises:
        CommunicationError: a rank published nothing within the store's timeout, or has created another group since.
    """
    made.store.set(_key(made.rank), encode(asdict(mine), _FORMAT))
    facts = [mine if other == made.rank else _read(made, other) for other in range(size)]
    for other in range(size):
        # A rank that takes part has made as many groups; other facts are stale.
        if other != made.rank and (difference := made.difference(other)):
            raise CommunicationError(f"Rank {other} of the group has joined another group.{difference}", _NEW_STORE)
    return facts


def layout(rank: int, facts: Sequence[HostFacts]) -> Layout:
    """The ranks by hosts."""
    hosts: dict[str, list[int]] = {}
    for number, fact in enumerate(facts):
        hosts.setdefault(fact.host, []).append(number)
    return Layout(rank, tuple(map(tuple, hosts.values())))


def _read(made: MadeGroups, rank: int) -> HostFacts:
    try:
        published = made.store.get(_key(rank))
    except RuntimeError as error:
        raise CommunicationError(
            f"Rank {rank} did not join the group: {str(error).splitlines()[0]}.{made.difference(rank)}",
            "Read the end of that rank's output, or pass a longer timeout to init_process_group() or new_group().",
        ) from error
    try:
        return HostFacts(**decode(published.decode(errors="replace"), _SCHEMA, _FORMAT))
    except RecordError as error:
        raise CommunicationError(
            f"What rank {rank} published to the group cannot be read: {error}.",
            "Run the same version of accel-ops on all ranks, and let no other program write to their store.",
        ) from None


def _key(rank: int) -> str:
    return f"accel/{rank}"
