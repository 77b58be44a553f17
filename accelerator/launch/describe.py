"""``--dry_run`` and ``--show_topology``: a launch, and a machine with its ranks, as text and as data."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from accelerator.errors import BindingError
from accelerator.launch.hosts import Host
from accelerator.launch.job import DEFAULT_PORT, Job
from accelerator.launch.plan import HostPlan, assignments
from accelerator.launch.processes import helper_process
from accelerator.launch.remote import commands, master_address
from accelerator.launch.topology import Core, Node, Topology, format_list
from op_builder.messages import counted, size_text


def describe_job(job: Job, plan_of: Callable[[Host], HostPlan], directory: Path) -> list[str]:
    """The lines that ``--dry_run`` prints; ``plan_of`` gives the plan for a host with the topology of this one."""
    total = sum(len(host.chosen) for host in job.hosts)
    is_local = job.launcher == "torchrun"
    where = f"{master_address(job)} port {job.master_port or DEFAULT_PORT}"
    if is_local and job.num_nodes == 1 and job.master_port is None:
        where = "any free port of this host"
    lines = [f"launcher: {job.launcher}, {counted(total, 'rank')} on {counted(len(job.hosts), 'host')}"]
    if is_local:
        of_all = f"{total} of {counted(total * job.num_nodes, 'rank')} (host {job.node_rank} of {job.num_nodes})"
        lines = [f"launcher: torchrun, for {of_all}"]
    lines += [f"rendezvous: {where}", f"command of each rank: {shlex.join(job.program)}"]
    if is_local:
        lines.append(f"started as: {shlex.join(helper_process('rank', job.to_json(), '2', *job.program))}")
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
        unbound = [] if plan.bindings else ["no rank is bound to cores (--bind_cores_to_rank)"]
        lines += [f"{prefix}{line}" for line in (*unbound, *plan.lines(), *plan.notes)]
    return lines


def as_data(topology: Topology, plan: HostPlan) -> dict[str, Any]:
    """The topology and the ranks as data; sizes are bytes."""
    threads = {"threads": plan.threads, "variables": plan.thread_variables}
    return {**asdict(topology), "ranks": [{**asdict(binding), **threads} for binding in plan.bindings]}


def draw(topology: Topology, plan: HostPlan) -> list[str]:
    """The machine, a line for each NUMA node of a socket, and its ranks."""
    lines = [_headline(topology)]
    groups: dict[str, list[Core]] = {}
    for core in topology.cores:
        home = [_title(node) for node in topology.numa_nodes if core.cpus[0] in node.cpus][:1]
        groups.setdefault(", ".join([f"socket {core.package}", *home]), []).append(core)
    for place, cores in groups.items():
        cpus = format_list(cpu for core in cores for cpu in core.cpus)
        lines.append(f"  {place}: {counted(len(cores), 'core')}, CPU {cpus}")
    for node in topology.numa_nodes:
        if not node.cpus:
            lines.append(f"  {_title(node)}: {'high-bandwidth memory' if node.is_hbm else 'memory without cores'}")
    lines.append(f"With --bind_cores_to_rank, {counted(plan.ranks, 'rank')} would get:")
    lines += [f"  r{rank}  {plan.describe(rank)}" for rank in range(len(plan.bindings))]
    bound = {cpu for binding in plan.bindings for cpu in binding.cpus}
    if plan.bindings and (free := topology.allowed_cpus - bound):
        lines.append(f"  free: CPU {format_list(free)}")
    if forbidden := {cpu for core in topology.cores for cpu in core.cpus} - topology.allowed_cpus:
        lines.append(f"  not allowed to this process: CPU {format_list(forbidden)}")
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
        counted(len({core.package for core in topology.cores}), "socket"),
        counted(max(1, len({node.cpus for node in topology.numa_nodes if node.cpus})), "NUMA node") + " with cores",
        counted(len(topology.cores), "core"),
        counted(sum(len(core.cpus) for core in topology.cores), "CPU"),
        f"CPU quota of {topology.quota_cores:g} cores" if topology.quota_cores is not None else "",
    ]
    return ", ".join(filter(None, parts))


def _title(node: Node) -> str:
    return f"NUMA node {node.number}" + ("" if node.memory_bytes is None else f", {size_text(node.memory_bytes)}")
