"""The CPUs and the memory of each rank, as functions of a topology and a number of ranks.

docs/launcher.md lists the rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from accelerator.errors import BindingError
from accelerator.launch.topology import Node, Topology, format_list, parse_list

_MOST_IDLE_FOR_ONE_NODE = 1 / 8

_Home = frozenset[int]  # the CPUs of a NUMA node; nodes with the same CPUs (fake NUMA) are one home
_Unit = tuple[_Home, tuple[int, ...]]  # a core or a CPU to assign, with its home


@dataclass(frozen=True)
class MemoryPolicy:
    """The source of a rank's memory.

    Attributes:
        mode: ``bind``: from these nodes only; ``prefer``: from them first; ``any``: the kernel's default.
        nodes: ascending; empty for ``any``.
    """

    mode: Literal["any", "bind", "prefer"] = "any"
    nodes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.mode if self.mode == "any" else f"{self.mode} {format_list(self.nodes)}"


@dataclass(frozen=True)
class RankBinding:
    """A rank's CPUs, their NUMA nodes (empty without NUMA), both ascending, and its memory policy."""

    cpus: tuple[int, ...]
    numa_nodes: tuple[int, ...]
    memory: MemoryPolicy


def parse_core_list(text: str) -> frozenset[int]:
    """The CPUs that ``0-51,56-107`` names; BindingError for another format."""
    cpus = frozenset(parse_list(text))
    if not cpus:
        raise BindingError(
            f"CPU list {text!r}: expected numbers and ranges of CPUs, such as 0-51,56-107.",
            "`accel-launch --show_topology` shows the CPUs of this machine.",
        )
    return cpus


def plan_binding(topology: Topology, ranks: int, listed: frozenset[int] | None = None) -> tuple[RankBinding, ...]:
    """The bindings of ``ranks`` ranks of this host.

    Args:
        listed: use exactly these CPUs; by default, one allowed CPU of each core.

    Raises:
        BindingError: there are more ranks than CPUs, or a listed CPU is not allowed.
    """
    if listed is not None and (forbidden := listed - topology.allowed_cpus):
        raise BindingError(
            f"The CPU list names CPUs that this process may not use: {format_list(forbidden)}; it may use "
            f"{format_list(topology.allowed_cpus)}.",
            "Remove them: the affinity mask or the container's cpuset excludes them, or they are offline.",
        )
    cpus = topology.allowed_cpus if listed is None else listed
    if ranks > len(cpus):
        raise BindingError(
            f"{ranks} ranks cannot be bound to {len(cpus)} CPUs ({format_list(cpus)}) without sharing them.",
            "Start fewer ranks, or omit --bind_cores_to_rank.",
        )
    units = _units(topology, cpus, ranks, all_threads=listed is not None)
    return tuple(_binding(topology, share) for share in _shares(units, ranks))


def threads_per_rank(topology: Topology, ranks: int, bindings: tuple[RankBinding, ...] = ()) -> int:
    """The number of threads for each of ``ranks`` ranks: one per CPU, fewer under a CPU quota, at least 1.

    Without bindings, the ranks share the cores.
    """
    if bindings:
        threads: float = min(len(binding.cpus) for binding in bindings)
    else:
        threads = sum(1 for core in topology.cores if topology.allowed_cpus.intersection(core.cpus)) / ranks
    if topology.quota_cores is not None:
        threads = min(threads, topology.quota_cores / ranks)
    return max(1, math.floor(threads))


def _units(topology: Topology, cpus: frozenset[int], ranks: int, *, all_threads: bool) -> list[list[_Unit]]:
    """The cores, or the CPUs if there are fewer cores than ranks, grouped by home in the order of sockets."""
    cores = [usable for core in topology.cores if (usable := tuple(cpu for cpu in core.cpus if cpu in cpus))]
    if ranks <= len(cores):
        units = [core if all_threads else core[:1] for core in cores]
    elif len(cpus) // ranks > 1:  # several CPUs per rank: those of one core go to one rank
        units = [(cpu,) for core in cores for cpu in core]
    else:
        most = max(len(core) for core in cores)
        units = [(core[thread],) for thread in range(most) for core in cores if thread < len(core)]
    by_home: dict[_Home, list[_Unit]] = {}
    for unit in units:
        home = next((node.cpus for node in topology.numa_nodes if unit[0] in node.cpus), frozenset())
        by_home.setdefault(home, []).append((home, unit))
    return list(by_home.values())


def _shares(units: list[list[_Unit]], ranks: int) -> list[list[_Unit]]:
    """The units of each rank: from one home if few stay idle, else from all homes in order."""
    sizes = [len(home) for home in units]
    even = sum(sizes) // ranks
    within = next((count for count in range(even, 0, -1) if sum(size // count for size in sizes) >= ranks), 0)
    if within >= even * (1 - _MOST_IDLE_FOR_ONE_NODE):
        shares = [home[first : first + within] for home in units for first in range(0, len(home) - within + 1, within)]
        return shares[:ranks]
    everything = [unit for home in units for unit in home]
    return [everything[rank * even : (rank + 1) * even] for rank in range(ranks)]


def _binding(topology: Topology, share: list[_Unit]) -> RankBinding:
    cpus = tuple(sorted(cpu for _, unit in share for cpu in unit))
    homes = {home for home, _ in share}
    nodes = [node for node in topology.numa_nodes if node.cpus and node.cpus in homes]
    return RankBinding(cpus, tuple(node.number for node in nodes), _memory_policy(topology, nodes))


def _memory_policy(topology: Topology, homes: list[Node]) -> MemoryPolicy:
    usable = topology.memory_nodes
    if len(usable) < 2 or not homes:
        return MemoryPolicy()
    fast = [node for node in usable if node.is_hbm]
    own = tuple(node.number for node in homes if node in usable)
    if fast or not own:
        return MemoryPolicy("prefer", _nearest(homes, fast or list(usable)))
    if len(own) == len(usable):
        return MemoryPolicy()
    # Memory without cores (CXL) is for programs that need more than their node has: keep it reachable.
    return MemoryPolicy("prefer" if any(not node.cpus for node in usable) else "bind", own)


def _nearest(homes: list[Node], others: list[Node]) -> tuple[int, ...]:
    """The nodes of ``others`` that are nearest to any of ``homes``."""
    chosen = set()
    for home in homes:
        distances = {node.number: home.distances.get(node.number, 255) for node in others}
        chosen |= {number for number, distance in distances.items() if distance == min(distances.values())}
    return tuple(sorted(chosen))
