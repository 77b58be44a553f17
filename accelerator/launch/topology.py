"""What of this machine the ranks can be bound to: cores, hyper-threads, NUMA nodes, memory, caches.

All is read below :class:`op_builder.system.cgroups.HostFiles`, so that a test hands in a tree of its own; the
affinity mask, which is no file, is an argument. A "CPU" is what the kernel numbers (a hardware thread),
a "core" is one or more CPUs that share a core's execution units.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from op_builder.system.cgroups import HostFiles, allowed_cores, cpu_quota_cores, parse_index_list, read_text
from op_builder.system.cpu_isa import cpu_model
from op_builder.system.numa import numa_directory, numa_nodes

# Processors with high-bandwidth memory that can be nodes of its own ("flat mode"), for kernels or firmware that do
# not tell how fast a node's memory is.
_HBM_MODELS = re.compile(r"xeon\(r\) cpu max|xeon phi", re.IGNORECASE)


@dataclass(frozen=True)
class Core:
    """One physical core.

    Attributes:
        cpus: its online CPUs, ascending; more than one with hyper-threads.
        package: its socket, 0 where the kernel tells none.
    """

    cpus: tuple[int, ...]
    package: int


@dataclass(frozen=True)
class Node:
    """One online NUMA node.

    Attributes:
        cpus: its online CPUs; none where it is memory alone.
        memory_bytes: its memory, None where the kernel does not tell.
        distances: to each node, by number; 10 is local.
        is_hbm: it is memory alone, and faster than that beside the cores.
    """

    number: int
    cpus: frozenset[int]
    memory_bytes: int | None
    distances: dict[int, int]
    is_hbm: bool = False


@dataclass(frozen=True)
class Topology:
    """A machine, and what of it this process may use.

    Attributes:
        cores: all online cores, in the order of sockets, NUMA nodes and numbers.
        nodes: all online NUMA nodes by rising number; empty where the kernel knows no NUMA.
        allowed: online CPUs that affinity mask and cpuset leave to this process.
        allowed_memory: nodes whose memory the cpuset leaves to it, None where nothing is told.
        quota_cores: cores' worth of time that control groups grant it, None without a quota.
        model: the CPU's name.
    """

    cores: tuple[Core, ...]
    nodes: tuple[Node, ...]
    allowed: frozenset[int]
    allowed_memory: frozenset[int] | None
    quota_cores: float | None
    model: str

    def node_of(self, cpu: int) -> Node | None:
        """The first node with that CPU."""
        return next((node for node in self.nodes if cpu in node.cpus), None)

    @property
    def memory_nodes(self) -> tuple[Node, ...]:
        """Nodes with memory that this process may use."""
        return tuple(
            node
            for node in self.nodes
            if node.memory_bytes != 0 and (self.allowed_memory is None or node.number in self.allowed_memory)
        )


@dataclass(frozen=True)
class Cache:
    """One cache: its level, kind (``Data``, ``Instruction``, ``Unified``), size, and the CPUs that share it."""

    level: int
    kind: str
    size_bytes: int
    cpus: frozenset[int]


def own_affinity() -> set[int] | None:
    """This process's affinity mask, None where the system has none."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def read_topology(files: HostFiles, affinity: Collection[int] | None) -> Topology:
    """The machine as the kernel describes it.

    Args:
        affinity: CPUs that may be used, see :func:`own_affinity`.
    """
    nodes = _nodes(files)
    online = _online(files, nodes, affinity)
    allowed = online
    for restriction in (affinity, allowed_cores(files)):
        if restriction is not None:
            allowed &= frozenset(restriction)
    first_node = {cpu: node.number for node in reversed(nodes) for cpu in node.cpus}
    cores = sorted(
        {_core(files, cpu, online) for cpu in online},
        key=lambda core: (core.package, first_node.get(core.cpus[0], -1), core.cpus),
    )
    return Topology(
        cores=tuple(cores),
        nodes=nodes,
        allowed=allowed,
        allowed_memory=_allowed_memory(files),
        quota_cores=cpu_quota_cores(files),
        model=cpu_model(files.procfs / "cpuinfo"),
    )


def read_caches(files: HostFiles, topology: Topology) -> tuple[Cache, ...]:
    """All caches, by level and kind; one that several CPUs share is told once."""
    found = set()
    for core in topology.cores:
        for directory in (_cpu_directory(files, core.cpus[0]) / "cache").glob("index[0-9]*"):
            told = {name: read_text(directory / name) or "" for name in ("level", "type", "size", "shared_cpu_list")}
            if told["level"].isdecimal() and (size := _size_bytes(told["size"])):
                cpus = parse_index_list(told["shared_cpu_list"]) or frozenset(core.cpus)
                found.add(Cache(int(told["level"]), told["type"], size, cpus))
    return tuple(sorted(found, key=lambda cache: (cache.level, cache.kind, min(cache.cpus))))


def _cpu_directory(files: HostFiles, cpu: int) -> Path:
    return files.sysfs / "devices" / "system" / "cpu" / f"cpu{cpu}"


def _online(files: HostFiles, nodes: tuple[Node, ...], affinity: Collection[int] | None) -> frozenset[int]:
    text = read_text(files.sysfs / "devices" / "system" / "cpu" / "online")
    if text:
        return parse_index_list(text)
    in_nodes = frozenset(cpu for node in nodes for cpu in node.cpus)
    return in_nodes or frozenset(affinity or (0,))


def _core(files: HostFiles, cpu: int, online: frozenset[int]) -> Core:
    directory = _cpu_directory(files, cpu) / "topology"
    # Numbers of cores repeat from socket to socket, and on ARM from cluster to cluster: siblings are what tells.
    siblings = read_text(directory / "thread_siblings_list") or read_text(directory / "core_cpus_list") or ""
    package = read_text(directory / "physical_package_id") or "0"
    cpus = parse_index_list(siblings) & online | {cpu}
    return Core(tuple(sorted(cpus)), max(0, int(package)))  # -1 where firmware tells no sockets


def _nodes(files: HostFiles) -> tuple[Node, ...]:
    cpus = numa_nodes(files)
    described = []
    for number in cpus:
        directory = numa_directory(files) / f"node{number}"
        distances = [int(text) for text in (read_text(directory / "distance") or "").split()]
        described.append(Node(number, cpus[number], _memory_bytes(directory), dict(zip(cpus, distances, strict=False))))
    speeds = {number: _bandwidth(numa_directory(files) / f"node{number}") for number in cpus}
    of_cores = [speed for number, speed in speeds.items() if cpus[number] and speed is not None]
    by_name = _HBM_MODELS.search(cpu_model(files.procfs / "cpuinfo")) is not None

    def is_hbm(node: Node) -> bool:
        if node.cpus or node.memory_bytes == 0:
            return False
        speed = speeds[node.number]
        return speed > max(of_cores) if speed is not None and of_cores else by_name

    return tuple(Node(node.number, node.cpus, node.memory_bytes, node.distances, is_hbm(node)) for node in described)


def _memory_bytes(node: Path) -> int | None:
    found = re.search(r"MemTotal:\s*(\d+) kB", read_text(node / "meminfo") or "")
    return int(found[1]) * 1024 if found else None


def _bandwidth(node: Path) -> int | None:
    """MB/s that the node's memory gives the nearest cores, as the firmware says (ACPI's HMAT)."""
    text = read_text(node / "access0" / "initiators" / "read_bandwidth")
    return int(text) if text is not None and text.isdecimal() and text != "0" else None


def _allowed_memory(files: HostFiles) -> frozenset[int] | None:
    found = re.search(r"^Mems_allowed_list:\s*(\S+)", read_text(files.procfs / "self" / "status") or "", re.MULTILINE)
    return parse_index_list(found[1]) if found else None


def _size_bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else 0
