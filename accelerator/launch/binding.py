"""Which CPUs and which memory each rank gets: functions of a topology and a number of ranks.

The rules, in this order:

1. No rank gets a CPU that the process may not use, and no two ranks share one.
2. All ranks get the same number of CPUs. What does not divide evenly stays free.
3. Whole cores are dealt out, of each its first CPU; hyper-threads only when there are more ranks than
   cores, or when a list names them.
4. A rank stays within one NUMA node, as long as that leaves at most an eighth of the cores idle.
5. Memory comes from where the rank's cores are; high-bandwidth memory beside them is preferred.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from accelerator.launch.errors import BindingError
from accelerator.launch.lists import format_list, parse_list
from accelerator.launch.topology import Node, Topology

_MOST_IDLE_FOR_ONE_NODE = 1 / 8


@dataclass(frozen=True)
class MemoryPolicy:
    """Where a rank's memory comes from.

    Attributes:
        mode: ``bind``: from these nodes only; ``prefer``: from them first; ``any``: as the kernel likes.
        nodes: by rising number; empty for ``any``.
    """

    mode: Literal["any", "bind", "prefer"] = "any"
    nodes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.mode if self.mode == "any" else f"{self.mode} {format_list(self.nodes)}"


@dataclass(frozen=True)
class RankBinding:
    """What one rank of this host gets.

    Attributes:
        cpus: by rising number.
        nodes: NUMA nodes of these, by rising number; empty where the kernel knows no NUMA.
        threads: how many threads should compute: a thread for each core, fewer where a quota is tighter.
    """

    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    memory: MemoryPolicy
    threads: int


@dataclass(frozen=True)
class _Group:
    """NUMA nodes with one set of CPUs (several where the kernel fakes nodes), and what is dealt out of them."""

    nodes: tuple[Node, ...]
    units: tuple[tuple[int, ...], ...]


def parse_core_list(text: str) -> frozenset[int]:
    """The CPUs that ``0-51,56-107`` names.

    Raises:
        BindingError: it is something else.
    """
    cpus = frozenset(parse_list(text))
    if not cpus:
        raise BindingError(
            f"--bind_core_list {text!r}: expected numbers and ranges of CPUs, such as 0-51,56-107.",
            "'accel-launch --show_topology' shows the CPUs of this machine.",
        )
    return cpus


def plan_binding(topology: Topology, ranks: int, listed: frozenset[int] | None = None) -> tuple[RankBinding, ...]:
    """What each of ``ranks`` ranks of this host gets.

    Args:
        listed: deal out these CPUs, all of them; by default one CPU of each core that may be used.

    Raises:
        BindingError: there are more ranks than CPUs, or a listed CPU may not be used.
    """
    if listed is not None and (forbidden := sorted(listed - topology.allowed)):
        raise BindingError(
            f"--bind_core_list names CPUs that this process may not use: {format_list(forbidden)}; it may use "
            f"{format_list(sorted(topology.allowed))}.",
            "Leave them out; the affinity mask, the cpuset of the container or an offline CPU decides.",
        )
    cpus = topology.allowed if listed is None else listed
    if ranks > len(cpus):
        raise BindingError(
            f"{ranks} ranks cannot be bound to {len(cpus)} CPUs ({format_list(sorted(cpus))}) without sharing them.",
            "Start fewer ranks, or do not bind them.",
        )
    groups = _groups(topology, cpus, ranks, all_threads=listed is not None)
    return tuple(_binding(topology, groups, share, ranks) for share in _shares([len(g.units) for g in groups], ranks))


def threads_without_binding(topology: Topology, ranks: int) -> int:
    """Computing threads for each of ``ranks`` ranks that share the cores unbound, at least 1."""
    cores = sum(1 for core in topology.cores if topology.allowed.intersection(core.cpus))
    return max(1, math.floor(min(cores, topology.quota_cores or cores) / ranks))


def _groups(topology: Topology, cpus: frozenset[int], ranks: int, *, all_threads: bool) -> list[_Group]:
    """Nodes with usable cores, in the order of sockets; what is dealt out of each is whole cores, else CPUs."""
    cores = [usable for core in topology.cores if (usable := tuple(cpu for cpu in core.cpus if cpu in cpus))]
    if ranks <= len(cores):
        units = [core if all_threads else core[:1] for core in cores]
    elif len(cpus) // ranks > 1:  # many threads to a core: those of one core go to one rank
        units = [(cpu,) for core in cores for cpu in core]
    else:
        most = max(len(core) for core in cores)
        units = [(core[thread],) for thread in range(most) for core in cores if thread < len(core)]
    by_cpus: dict[frozenset[int], list[Node]] = {}
    for node in topology.nodes:
        if node.cpus:
            by_cpus.setdefault(node.cpus, []).append(node)
    groups: dict[frozenset[int], list[tuple[int, ...]]] = {}
    for unit in units:  # in the order of the cores, which is that of the sockets
        home = next((key for key in by_cpus if unit[0] in key), frozenset())
        groups.setdefault(home, []).append(unit)
    return [_Group(tuple(by_cpus.get(key, ())), tuple(held)) for key, held in groups.items()]


def _shares(sizes: list[int], ranks: int) -> list[list[tuple[int, int, int]]]:
    """For each rank its pieces: group, first unit, one past the last unit."""
    even = sum(sizes) // ranks
    within = next((count for count in range(even, 0, -1) if sum(size // count for size in sizes) >= ranks), 0)
    if within >= even * (1 - _MOST_IDLE_FOR_ONE_NODE):
        places = [
            [(group, start * within, (start + 1) * within)]
            for group, size in enumerate(sizes)
            for start in range(size // within)
        ]
        return places[:ranks]
    shares: list[list[tuple[int, int, int]]] = []
    for rank in range(ranks):
        first, last, begin, pieces = rank * even, (rank + 1) * even, 0, []
        for group, size in enumerate(sizes):
            low, high = max(first, begin), min(last, begin + size)
            if low < high:
                pieces.append((group, low - begin, high - begin))
            begin += size
        shares.append(pieces)
    return shares


def _binding(topology: Topology, groups: list[_Group], share: list[tuple[int, int, int]], ranks: int) -> RankBinding:
    cpus = sorted(cpu for group, first, last in share for unit in groups[group].units[first:last] for cpu in unit)
    homes = [node for group, _, _ in share for node in groups[group].nodes]
    threads = len(cpus)
    if topology.quota_cores is not None:
        threads = max(1, min(threads, math.floor(topology.quota_cores / ranks)))
    nodes = tuple(sorted(node.number for node in homes))
    return RankBinding(tuple(cpus), nodes, _memory_policy(topology, homes), threads)


def _memory_policy(topology: Topology, homes: list[Node]) -> MemoryPolicy:
    usable = topology.memory_nodes
    if len(usable) < 2 or not homes:
        return MemoryPolicy()
    fast = [node for node in usable if node.is_hbm]
    if fast:
        return MemoryPolicy("prefer", _nearest(homes, fast))
    own = tuple(sorted(node.number for node in homes if node in usable))
    if not own:  # cores without memory of their own
        return MemoryPolicy("prefer", _nearest(homes, list(usable)))
    if len(own) == len(usable):
        return MemoryPolicy()
    # Memory without cores (CXL) was added for those who need more than their node has: leave the way to it open.
    return MemoryPolicy("prefer" if any(not node.cpus for node in usable) else "bind", own)


def _nearest(homes: list[Node], others: list[Node]) -> tuple[int, ...]:
    """Of ``others`` the nearest to each of ``homes``, all that are equally near."""
    chosen = set()
    for home in homes:
        distances = {node.number: home.distances.get(node.number, 255) for node in others}
        chosen |= {number for number, distance in distances.items() if distance == min(distances.values())}
    return tuple(sorted(chosen))
