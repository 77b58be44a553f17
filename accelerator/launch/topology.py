"""The topology of this machine: cores, hyper-threads, NUMA nodes and memory.

All files are read below :class:`.HostFiles`, so tests can pass their own. A "CPU" is a hardware thread, as the kernel
numbers them; a "core" is one or more CPUs that share execution units.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from op_builder.system.cgroups import HostFiles, allowed_cores, cpu_quota_cores, parse_index_list, read_text
from op_builder.system.cpu_isa import cpu_model
from op_builder.system.numa import numa_directory, numa_nodes

# Processors with high-bandwidth memory that can form its own nodes ("flat mode"), for firmware that does not report
# memory bandwidth.
_HBM_MODELS = re.compile(r"xeon\(r\) cpu max|xeon phi", re.IGNORECASE)


@dataclass(frozen=True)
class Core:
    """One physical core: its online CPUs (several with hyper-threads), ascending, and its socket."""

    cpus: tuple[int, ...]
    package: int


@dataclass(frozen=True)
class Node:
    """One online NUMA node.

    Attributes:
        cpus: its online CPUs; empty if it is only memory.
        memory_bytes: its memory, None if unknown.
        distances: to each node, by number; 10 is local.
        is_hbm: whether it has no cores and faster memory than nodes with cores.
    """

    number: int
    cpus: frozenset[int]
    memory_bytes: int | None
    distances: dict[int, int]
    is_hbm: bool = False


@dataclass(frozen=True)
class Topology:
    """A machine, and the part of it that this process may use.

    Attributes:
        cores: all online cores, by socket, NUMA node and number.
        numa_nodes: all online NUMA nodes by number; empty without NUMA.
        allowed_cpus: online CPUs in the affinity mask and the cpuset.
        allowed_memory: nodes whose memory the cpuset allows, None if unknown.
        quota_cores: the CPU quota of the control groups in cores, None without a quota.
        model: the CPU's name.
    """

    cores: tuple[Core, ...]
    numa_nodes: tuple[Node, ...]
    allowed_cpus: frozenset[int]
    allowed_memory: frozenset[int] | None
    quota_cores: float | None
    model: str

    @property
    def memory_nodes(self) -> tuple[Node, ...]:
        """Nodes with memory that this process may use."""
        usable = self.allowed_memory
        return tuple(
            node for node in self.numa_nodes if node.memory_bytes != 0 and (usable is None or node.number in usable)
        )


def own_affinity() -> set[int] | None:
    """This process's affinity mask, None on systems without one."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def read_topology(files: HostFiles, affinity: Collection[int] | None) -> Topology:
    """The machine as the kernel describes it; ``affinity``: see :func:`own_affinity`."""
    nodes = _read_nodes(files)
    listed = read_text(files.sysfs / "devices" / "system" / "cpu" / "online")
    if listed:
        online = parse_index_list(listed)
    else:
        online = frozenset(cpu for node in nodes for cpu in node.cpus) or frozenset(affinity or (0,))
    allowed = online
    for restriction in (affinity, allowed_cores(files)):
        if restriction is not None:
            allowed &= frozenset(restriction)
    first_node = {cpu: node.number for node in reversed(nodes) for cpu in node.cpus}
    cores = sorted(
        {_read_core(files, cpu, online) for cpu in online},
        key=lambda core: (core.package, first_node.get(core.cpus[0], -1), core.cpus),
    )
    status = read_text(files.procfs / "self" / "status") or ""
    memory = re.search(r"^Mems_allowed_list:\s*(\S+)", status, re.MULTILINE)
    return Topology(
        cores=tuple(cores),
        numa_nodes=nodes,
        allowed_cpus=allowed,
        allowed_memory=parse_index_list(memory[1]) if memory else None,
        quota_cores=cpu_quota_cores(files),
        model=cpu_model(files.procfs / "cpuinfo"),
    )


def parse_list(text: str) -> tuple[int, ...]:
    """The numbers of a list in the kernel's format, ``0-2,8``, sorted; empty if the format is invalid."""
    is_list = re.fullmatch(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", text.strip(), re.ASCII)
    return tuple(sorted(parse_index_list(text))) if is_list else ()


def format_list(numbers: Iterable[int]) -> str:
    """The numbers as a list in that format, sorted."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _read_core(files: HostFiles, cpu: int, online: frozenset[int]) -> Core:
    directory = files.sysfs / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
    # Core numbers repeat in each socket, on ARM in each cluster: only siblings identify a core.
    siblings = read_text(directory / "thread_siblings_list") or read_text(directory / "core_cpus_list") or ""
    package = int(read_text(directory / "physical_package_id") or "0")
    # A package of -1 is unknown to the firmware.
    return Core(tuple(sorted(parse_index_list(siblings) & online | {cpu})), max(0, package))


def _read_nodes(files: HostFiles) -> tuple[Node, ...]:
    cpus_by_node = numa_nodes(files)
    nodes = []
    bandwidths = {}  # MB/s from the nearest cores (ACPI's HMAT)
    for number, cpus in cpus_by_node.items():
        directory = numa_directory(files) / f"node{number}"
        memory = re.search(r"MemTotal:\s*(\d+) kB", read_text(directory / "meminfo") or "")
        distances = map(int, (read_text(directory / "distance") or "").split())
        by_number = dict(zip(cpus_by_node, distances, strict=False))
        nodes.append(Node(number, cpus, int(memory[1]) * 1024 if memory else None, by_number))
        bandwidth = read_text(directory / "access0" / "initiators" / "read_bandwidth") or ""
        bandwidths[number] = int(bandwidth) if bandwidth.isdecimal() else 0
    fastest_with_cores = max((bandwidths[node.number] for node in nodes if node.cpus), default=0)
    by_model = _HBM_MODELS.search(cpu_model(files.procfs / "cpuinfo")) is not None

    def is_hbm(node: Node) -> bool:
        if node.cpus or node.memory_bytes == 0:
            return False
        bandwidth = bandwidths[node.number]
        return bandwidth > fastest_with_cores if bandwidth and fastest_with_cores else by_model

    return tuple(replace(node, is_hbm=is_hbm(node)) for node in nodes)
