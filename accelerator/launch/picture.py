"""A machine, drawn for the terminal, and as data: sockets, NUMA nodes, cores, caches, memory, and the ranks on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from accelerator.launch.lists import format_list
from accelerator.launch.ranks import HostPlan, describe, plural
from accelerator.launch.topology import Cache, Core, Node, Topology

_COLORS = ("cyan", "green", "yellow", "magenta", "blue", "red", "bright_cyan", "bright_green")


def as_data(topology: Topology, caches: Sequence[Cache], plan: HostPlan) -> dict[str, Any]:
    """The same for programs; sizes are bytes, CPUs rising lists."""
    return {
        "model": topology.model,
        "allowed_cpus": sorted(topology.allowed),
        "quota_cores": topology.quota_cores,
        "cores": [{"cpus": list(core.cpus), "package": core.package} for core in topology.cores],
        "numa_nodes": [
            {
                "number": node.number,
                "cpus": sorted(node.cpus),
                "memory_bytes": node.memory_bytes,
                "is_hbm": node.is_hbm,
                "distances": {str(number): distance for number, distance in node.distances.items()},
            }
            for node in topology.nodes
        ],
        "caches": [{**asdict(cache), "cpus": sorted(cache.cpus)} for cache in caches],
        "ranks": [
            {
                "cpus": list(binding.cpus),
                "numa_nodes": list(binding.nodes),
                "memory": {"mode": binding.memory.mode, "nodes": list(binding.memory.nodes)},
                "threads": binding.threads,
                "variables": variables,
            }
            for binding, variables in zip(plan.bindings, plan.rank_variables, strict=True)
        ],
    }


def draw(topology: Topology, caches: Sequence[Cache], plan: HostPlan, console: Console | None = None) -> None:
    """Print the picture: a frame for each socket, in it one for each NUMA node, in it the cores."""
    console = console or Console(highlight=False)
    rank_of = {cpu: rank for rank, binding in enumerate(plan.bindings) for cpu in binding.cpus}
    console.print(Text(_headline(topology), "bold"))
    packages = sorted({core.package for core in topology.cores})
    placed: set[int] = set()
    for package in packages:
        cores = [core for core in topology.cores if core.package == package]
        frames: list[RenderableType] = [Text(_cache_line(caches, cores))]
        homes: dict[int | None, list[Core]] = {}
        for core in cores:
            node = topology.node_of(core.cpus[0])
            homes.setdefault(None if node is None else node.number, []).append(core)
        for number, held in homes.items():
            title = "no NUMA" if number is None else _node_title(_node(topology, number))
            frames.append(Panel(_core_grid(held, topology, rank_of), title=title, title_align="left", padding=(0, 1)))
        for node in _memory_beside(topology, homes):
            if node.number not in placed:
                placed.add(node.number)
                frames.append(
                    Text(f"{_node_title(node)}: {'high-bandwidth memory' if node.is_hbm else 'memory alone'}")
                )
        console.print(Panel(Group(*frames), title=f"socket {package}", title_align="left", expand=False))
    console.print(Text(f"With --bind_cores_to_rank {plural(plan.ranks, 'rank')} would get", "bold"))
    for rank, (binding, variables) in enumerate(zip(plan.bindings, plan.rank_variables, strict=True)):
        console.print(Text(f"  r{rank}  {describe(binding, variables)}", _color(rank)))
    free = sorted(topology.allowed - set(rank_of))
    if free and plan.bindings:
        console.print(Text(f"  free: CPU {format_list(free)}", "dim"))
    forbidden = sorted({cpu for core in topology.cores for cpu in core.cpus} - topology.allowed)
    if forbidden:
        console.print(Text(f"  not allowed to this process (x): CPU {format_list(forbidden)}", "dim"))
    for note in plan.notes:
        console.print(Text(f"  {note}"))


def _headline(topology: Topology) -> str:
    cpus = sum(len(core.cpus) for core in topology.cores)
    sockets = len({core.package for core in topology.cores})
    with_cores = len({node.cpus for node in topology.nodes if node.cpus})
    parts = [
        topology.model,
        plural(sockets, "socket"),
        plural(max(1, with_cores), "NUMA node") + " with cores",
        plural(len(topology.cores), "core"),
        plural(cpus, "CPU"),
    ]
    if topology.quota_cores is not None:
        parts.append(f"time of {topology.quota_cores:g} cores granted")
    return ", ".join(filter(None, parts))


def _cache_line(caches: Sequence[Cache], cores: Sequence[Core]) -> str:
    mine = {cpu for core in cores for cpu in core.cpus}
    letters = {"Data": "d", "Instruction": "i"}
    counted = Counter(
        (cache.level, letters.get(cache.kind, ""), cache.size_bytes) for cache in caches if cache.cpus & mine
    )
    told = [f"{count} x L{level}{kind} {_size(size)}" for (level, kind, size), count in sorted(counted.items())]
    return "caches: " + (", ".join(told) or "not told")


def _core_grid(cores: Sequence[Core], topology: Topology, rank_of: dict[int, int]) -> Columns:
    cells = []
    for core in cores:
        rank = next((rank_of[cpu] for cpu in core.cpus if cpu in rank_of), None)
        cpus = "/".join(map(str, core.cpus))
        if not topology.allowed.intersection(core.cpus):
            cells.append(Text(f"{cpus} x", "dim"))
        else:
            cells.append(
                Text(f"{cpus} -" if rank is None else f"{cpus} r{rank}", "dim" if rank is None else _color(rank))
            )
    return Columns(cells, equal=True, padding=(0, 2))


def _memory_beside(topology: Topology, homes: dict[int | None, list[Core]]) -> list[Node]:
    """Nodes of memory alone whose nearest cores are in these nodes."""
    found = []
    for node in topology.nodes:
        others = [other for other in topology.nodes if other.cpus]
        if node.cpus or not others:
            continue
        nearest = min(others, key=lambda other: other.distances.get(node.number, 255))
        if nearest.number in homes:
            found.append(node)
    return found


def _node(topology: Topology, number: int) -> Node:
    return next(node for node in topology.nodes if node.number == number)


def _node_title(node: Node) -> str:
    return f"NUMA node {node.number}" + ("" if node.memory_bytes is None else f", {_size(node.memory_bytes)}")


def _size(size_bytes: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"


def _color(rank: int) -> str:
    return _COLORS[rank % len(_COLORS)]
