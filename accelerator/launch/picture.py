"""A machine, drawn for the terminal, and as data: sockets, NUMA nodes, cores, caches, memory, and the ranks on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from accelerator.launch.plan import HostPlan, plural
from accelerator.launch.topology import Cache, Core, Node, Topology, format_list


def as_data(topology: Topology, caches: Sequence[Cache], plan: HostPlan) -> dict[str, Any]:
    """The same for programs; sizes are bytes, CPUs tuples or sets."""
    threads = {"threads": plan.threads, "variables": plan.thread_variables}
    ranks = [{**asdict(binding), **threads} for binding in plan.bindings]
    return {**asdict(topology), "caches": list(map(asdict, caches)), "ranks": ranks}


def draw(topology: Topology, caches: Sequence[Cache], plan: HostPlan, columns: int) -> list[str]:
    """Lines: a paragraph for each socket, in it one for each NUMA node, in it the cores with CPUs and ranks."""
    rank_of = {cpu: rank for rank, binding in enumerate(plan.bindings) for cpu in binding.cpus}
    lines = [_headline(topology)]
    memory = [node for node in topology.numa_nodes if not node.cpus]
    for package in sorted({core.package for core in topology.cores}):
        cores = [core for core in topology.cores if core.package == package]
        lines.append(f"socket {package}, caches: {_cache_line(caches, cores)}")
        homes: dict[str, list[Core]] = {}
        for core in cores:
            home = next((_title(node) for node in topology.numa_nodes if core.cpus[0] in node.cpus), "no NUMA")
            homes.setdefault(home, []).append(core)
        for home, held in homes.items():
            cells = [_cell(core, topology, rank_of) for core in held]
            size = max(map(len, cells)) + 2
            per_line = max(1, (columns - 4) // size)
            lines.append(f"  {home}")
            for start in range(0, len(cells), per_line):
                lines.append("    " + "".join(cell.ljust(size) for cell in cells[start : start + per_line]).rstrip())
        for node in [node for node in memory if _nearest_with_cores(topology, node) in homes]:
            memory.remove(node)
            lines.append(f"  {_title(node)}: {'high-bandwidth memory' if node.is_hbm else 'memory without cores'}")
    lines.append(f"With --bind_cores_to_rank {plural(plan.ranks, 'rank')} would get")
    lines += [f"  r{rank}  {plan.describe(rank)}" for rank in range(len(plan.bindings))]
    if plan.bindings and (free := topology.allowed_cpus - set(rank_of)):
        lines.append(f"  free: CPU {format_list(free)}")
    if forbidden := {cpu for core in topology.cores for cpu in core.cpus} - topology.allowed_cpus:
        lines.append(f"  not allowed to this process (x): CPU {format_list(forbidden)}")
    return [*lines, *(f"  {note}" for note in plan.notes)]


def _headline(topology: Topology) -> str:
    parts = [
        topology.model,
        plural(len({core.package for core in topology.cores}), "socket"),
        plural(max(1, len({node.cpus for node in topology.numa_nodes if node.cpus})), "NUMA node") + " with cores",
        plural(len(topology.cores), "core"),
        plural(sum(len(core.cpus) for core in topology.cores), "CPU"),
        f"time of {topology.quota_cores:g} cores granted" if topology.quota_cores is not None else "",
    ]
    return ", ".join(filter(None, parts))


def _cache_line(caches: Sequence[Cache], cores: Sequence[Core]) -> str:
    own = {cpu for core in cores for cpu in core.cpus}
    letters = {"Data": "d", "Instruction": "i"}
    kinds = [(cache.level, letters.get(cache.kind, ""), cache.size_bytes) for cache in caches if cache.cpus & own]
    counted = sorted(Counter(kinds).items())
    return ", ".join(f"{n} x L{level}{kind} {_size(size)}" for (level, kind, size), n in counted) or "unknown"


def _cell(core: Core, topology: Topology, rank_of: dict[int, int]) -> str:
    ranks = [f"r{rank_of[cpu]}" for cpu in core.cpus if cpu in rank_of]
    mark = (ranks or ["-"])[0] if topology.allowed_cpus.intersection(core.cpus) else "x"
    return f"{'/'.join(map(str, core.cpus))} {mark}"


def _nearest_with_cores(topology: Topology, memory: Node) -> str | None:
    with_cores = [node for node in topology.numa_nodes if node.cpus]
    nearest = min(with_cores, key=lambda node: node.distances.get(memory.number, 255), default=None)
    return None if nearest is None else _title(nearest)


def _title(node: Node) -> str:
    return f"NUMA node {node.number}" + ("" if node.memory_bytes is None else f", {_size(node.memory_bytes)}")


def _size(size_bytes: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"
