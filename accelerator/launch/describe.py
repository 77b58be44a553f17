"""``--dry_run`` and ``--show_topology``: a launch, and a machine with its ranks, as text and as data."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from accelerator.errors import BindingError
from accelerator.launch.hosts import Host
from accelerator.launch.job import DEFAULT_PORT, Job
from accelerator.launch.plan import HostPlan, assignments, plural
from accelerator.launch.processes import helper_process
from accelerator.launch.remote import commands, master_address
from accelerator.launch.topology import Cache, Core, Node, Topology, format_list
from op_builder.messages import size_text


def describe_job(job: Job, plan_of: Callable[[Host], HostPlan], directory: Path) -> list[str]:
    """The lines that ``--dry_run`` prints.

    Args:
        plan_of: the plan for a host with the topology of this one.

    Raises:
        LaunchError: this host cannot run its ranks as requested.
    """
    total = sum(len(host.chosen) for host in job.hosts)
    is_local = job.launcher == "torchrun"
    where = f"{master_address(job)} port {job.master_port or DEFAULT_PORT}"
    if is_local and job.num_nodes == 1 and job.master_port is None:
        where = "any free port of this host"
    lines = [f"launcher: {job.launcher}, {plural(total, 'rank')} on {plural(len(job.hosts), 'host')}"]
    if is_local:
        lines = [f"launcher: torchrun, torch's elastic agent, for {total} of {plural(total * job.num_nodes, 'rank')} "
                 f"(host {job.node_rank} of {job.num_nodes})"]  # fmt: skip
    lines += [f"rendezvous: {where}", f"command of each rank: {shlex.join(job.program)}"]
    if is_local:
        lines.append(f"started by the agent: {shlex.join(helper_process('rank', job.to_json(), '--', *job.program))}")
    else:
        sent = None
        for number, command in enumerate(commands(job, directory)):
            slots = ",".join(map(str, job.hosts[number].chosen))
            label = f"host {number}, {command.label}, slots {slots}" if job.launcher == "ssh" else "command"
            words = filter(None, [assignments(command.variables), shlex.join(command.command)])
            lines.append(f"{label}: {' '.join(words)}")
            sent = sent or command.sent
        if sent:
            lines.append(f"variables, by ssh's standard input: {assignments(sent)}")
    # Hosts with the same slots and the same selection get the same plan.
    alike: dict[Host, list[str]] = {}
    for host in job.hosts:
        alike.setdefault(replace(host, name=""), []).append(host.name)
    for host, names in alike.items():
        prefix = "" if len(alike) == 1 else f"{', '.join(names)}: "
        try:
            plan = plan_of(host)
        except BindingError as error:
            if is_local:
                raise
            lines.append(f"{prefix}not possible on this host: {error}")  # the other hosts may have more CPUs
            continue
        prefix += "" if is_local else "on a host like this one, "
        lines.append(f"{prefix}environment of all ranks: {assignments({**job.variables, **plan.variables})}")
        lines += [f"{prefix}local rank {rank}: {plan.describe(rank)}" for rank in range(len(plan.bindings))]
        if not plan.bindings:
            lines.append(f"{prefix}no rank is bound to cores (--bind_cores_to_rank)")
        lines += plan.notes
    return lines


def as_data(topology: Topology, caches: Sequence[Cache], plan: HostPlan) -> dict[str, Any]:
    """The topology, the caches and the ranks as data; sizes are bytes."""
    threads = {"threads": plan.threads, "variables": plan.thread_variables}
    ranks = [{**asdict(binding), **threads} for binding in plan.bindings]
    return {**asdict(topology), "caches": list(map(asdict, caches)), "ranks": ranks}


def draw(topology: Topology, caches: Sequence[Cache], plan: HostPlan, columns: int) -> list[str]:
    """The lines of the drawing: the cores of each socket and NUMA node, with their CPUs and ranks."""
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
        for home, cores_of_home in homes.items():
            cells = [_cell(core, topology, rank_of) for core in cores_of_home]
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


LAUNCHER_FORMATS: dict[str, Callable[[list[str]], list[str]]] = {
    "taskset": lambda lists: [f"taskset --cpu-list {cpus}" for cpus in lists],
    # vLLM's CPU backend takes each rank's memory from the NUMA node of its cores.
    "vllm": lambda lists: [f"VLLM_CPU_OMP_THREADS_BIND={'|'.join(lists)}"] if lists else [],
}
"""By name of a format, the lines for another launcher with each rank's list of CPUs."""


def _headline(topology: Topology) -> str:
    parts = [
        topology.model,
        plural(len({core.package for core in topology.cores}), "socket"),
        plural(max(1, len({node.cpus for node in topology.numa_nodes if node.cpus})), "NUMA node") + " with cores",
        plural(len(topology.cores), "core"),
        plural(sum(len(core.cpus) for core in topology.cores), "CPU"),
        f"CPU quota of {topology.quota_cores:g} cores" if topology.quota_cores is not None else "",
    ]
    return ", ".join(filter(None, parts))


def _cache_line(caches: Sequence[Cache], cores: Sequence[Core]) -> str:
    own = {cpu for core in cores for cpu in core.cpus}
    letters = {"Data": "d", "Instruction": "i"}
    kinds = [(cache.level, letters.get(cache.kind, ""), cache.size_bytes) for cache in caches if cache.cpus & own]
    counted = sorted(Counter(kinds).items())
    return ", ".join(f"{n} x L{level}{kind} {size_text(size)}" for (level, kind, size), n in counted) or "unknown"


def _cell(core: Core, topology: Topology, rank_of: dict[int, int]) -> str:
    ranks = [f"r{rank_of[cpu]}" for cpu in core.cpus if cpu in rank_of]
    mark = (ranks or ["-"])[0] if topology.allowed_cpus.intersection(core.cpus) else "x"
    return f"{'/'.join(map(str, core.cpus))} {mark}"


def _nearest_with_cores(topology: Topology, memory: Node) -> str | None:
    with_cores = [node for node in topology.numa_nodes if node.cpus]
    nearest = min(with_cores, key=lambda node: node.distances.get(memory.number, 255), default=None)
    return None if nearest is None else _title(nearest)


def _title(node: Node) -> str:
    return f"NUMA node {node.number}" + ("" if node.memory_bytes is None else f", {size_text(node.memory_bytes)}")
