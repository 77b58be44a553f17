"""Kernel files of made-up machines, from a few words about each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from accelerator.launch.binding import RankBinding, parse_core_list, plan_binding, threads_per_rank
from accelerator.launch.topology import Topology, format_list, read_topology
from op_builder.system.cgroups import HostFiles

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
GIB_KB = 1 << 20


@dataclass(frozen=True)
class Made:
    """A machine.

    Attributes:
        cores: per socket.
        threads: CPUs per core; numbered as on x86, first threads first, or core by core (``adjacent``).
        snc: NUMA nodes per socket.
        memory_only: nodes without cores per socket, near its first clusters (``snc``); ``memory_gib`` of each.
        bandwidths: of nodes with cores, and of those without, in MB/s; None: firmware does not report them.
        memoryless: nodes with cores and without memory.
        offline, cpuset, mems: CPUs and nodes in the kernel's format.
        quota: ``cpu.max``.
    """

    sockets: int = 1
    cores: int = 4
    threads: int = 1
    adjacent: bool = False
    snc: int = 1
    memory_only: int = 0
    memory_gib: int = 64
    bandwidths: tuple[int, int] | None = None
    memoryless: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    cpuset: str | None = None
    mems: str | None = None
    quota: str | None = None
    numa: bool = True
    model: str = "Some CPU"

    def cpus_of(self, core: int) -> list[int]:
        total = self.sockets * self.cores
        if self.adjacent:
            return [core * self.threads + thread for thread in range(self.threads)]
        return [core + thread * total for thread in range(self.threads)]

    def files(self) -> dict[str, str]:
        """Paths and texts."""
        everything = range(self.sockets * self.cores)
        online = sorted(cpu for core in everything for cpu in self.cpus_of(core) if cpu not in self.offline)
        files = {f"{CPU}/online": format_list(online), "proc/cpuinfo": f"processor\t: 0\nmodel name\t: {self.model}\n"}
        for core in everything:
            siblings = [cpu for cpu in self.cpus_of(core) if cpu in online]
            for cpu in siblings:
                topology = f"{CPU}/cpu{cpu}/topology"
                socket = core // self.cores
                files[f"{topology}/thread_siblings_list"] = format_list(siblings)
                files[f"{topology}/physical_package_id"] = str(socket)
                files[f"{topology}/core_id"] = str(core % self.cores)
        if self.numa:
            files.update(self._node_files(online))
        if self.cpuset is not None or self.quota is not None:
            files["proc/self/cgroup"] = "0::/job\n"
        if self.cpuset is not None:
            files["sys/fs/cgroup/job/cpuset.cpus.effective"] = self.cpuset
        if self.quota is not None:
            files["sys/fs/cgroup/job/cpu.max"] = self.quota
        if self.mems is not None:
            files["proc/self/status"] = f"Name:\tpython\nMems_allowed_list:\t{self.mems}\n"
        return files

    def _node_files(self, online: list[int]) -> dict[str, str]:
        places = []  # socket, place in it, cores, memory in GiB
        share = self.cores // self.snc
        for socket in range(self.sockets):
            for part in range(self.snc):
                first = socket * self.cores + part * share
                cpus = sorted(c for core in range(first, first + share) for c in self.cpus_of(core) if c in online)
                places.append((socket, part, cpus, 64))
        places += [(s, n % self.snc, [], self.memory_gib) for s in range(self.sockets) for n in range(self.memory_only)]
        files = {f"{NODE}/online": format_list(range(len(places)))}
        for number, (socket, part, cpus, gib) in enumerate(places):
            directory = f"{NODE}/node{number}"
            size_kb = 0 if number in self.memoryless else gib * GIB_KB
            files[f"{directory}/cpulist"] = format_list(cpus) + "\n"
            files[f"{directory}/meminfo"] = f"Node {number} MemTotal:       {size_kb} kB\n"
            distances = [
                10 if number == n else (12 if part == p else 13) + (0 if s == socket else 10)
                for n, (s, p, _, _) in enumerate(places)
            ]
            files[f"{directory}/distance"] = " ".join(map(str, distances)) + "\n"
            if self.bandwidths is not None:
                files[f"{directory}/access0/initiators/read_bandwidth"] = str(self.bandwidths[0 if cpus else 1])
        return files


def write_files(directory: Path, files: dict[str, str]) -> HostFiles:
    """Write them below the directory, which is then read instead of ``/``."""
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return HostFiles(directory / "sys", directory / "proc")


def read_made(directory: Path, made: Made, affinity: Collection[int] | None = None) -> Topology:
    return read_topology(write_files(directory, made.files()), affinity)


def checked_bindings(topology: Topology, ranks: int, listed: str | None = None) -> tuple[RankBinding, ...]:
    """The bindings of the ranks, which share no CPU and get only CPUs and memory that are allowed."""
    bindings = plan_binding(topology, ranks, None if listed is None else parse_core_list(listed))
    used = [cpu for binding in bindings for cpu in binding.cpus]
    assert len(used) == len(set(used))
    assert set(used) <= topology.allowed_cpus
    assert len({len(binding.cpus) for binding in bindings}) == 1
    memory = {node.number for node in topology.memory_nodes}
    assert all(set(binding.memory.nodes) <= memory for binding in bindings)
    return bindings


def deal(topology: Topology, ranks: int, listed: str | None = None) -> str:
    """The binding of each rank as ``CPUs @nodes memory``, and the threads of each."""
    bindings = checked_bindings(topology, ranks, listed)
    described = [f"{format_list(b.cpus)} @{format_list(b.numa_nodes)} {b.memory}" for b in bindings]
    return f"{'; '.join(described)} x{threads_per_rank(topology, ranks, bindings)}"
