"""What a launch would do, in words and commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from accelerator.launch.errors import BindingError
from accelerator.launch.hosts import Host
from accelerator.launch.job import DEFAULT_PORT, Job
from accelerator.launch.plan import HostPlan, assignments, plural
from accelerator.launch.processes import small_process
from accelerator.launch.remote import commands, master_address


def describe_job(job: Job, plan_of: Callable[[Host], HostPlan], directory: Path) -> list[str]:
    """The lines that ``--dry_run`` prints.

    Args:
        plan_of: the plan of a host if it is like this one.
        directory: where the program would run.

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
        lines.append(f"started by the agent: {shlex.join(small_process('rank', job.to_json(), '--', *job.program))}")
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
    # Hosts with the same slots and the same choice of them get the same.
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
            lines.append(f"{prefix}not possible on this host: {error}")  # the hosts that run the ranks may have more
            continue
        prefix += "" if is_local else "on a host like this one, "
        lines.append(f"{prefix}environment of all ranks: {assignments({**job.variables, **plan.variables})}")
        lines += [f"{prefix}local rank {rank}: {plan.describe(rank)}" for rank in range(len(plan.bindings))]
        if not plan.bindings:
            lines.append(f"{prefix}no rank is bound to cores (--bind_cores_to_rank)")
        lines += plan.notes
    return lines
