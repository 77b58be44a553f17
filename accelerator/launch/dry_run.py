"""What a launch would do, in words and commands."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from accelerator.launch.cluster import cluster_command
from accelerator.launch.driver import RemoteCommand
from accelerator.launch.errors import BindingError
from accelerator.launch.hostfile import Host
from accelerator.launch.job import DEFAULT_PORT, Job
from accelerator.launch.ranks import HostPlan, assignments, describe, plural
from accelerator.launch.ssh import master_address, ssh_commands
from accelerator.launch.worker import worker_command

_AGENT_SETS = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT and TORCHELASTIC_*"


def describe_job(job: Job, plan_of: Callable[[Host], HostPlan], directory: Path) -> list[str]:
    """The lines that ``--dry_run`` prints.

    Args:
        plan_of: the plan of a host, were it like this one.
        directory: where the program would run.

    Raises:
        LaunchError: what torchrun would do here cannot be done.
    """
    total = sum(len(host.chosen) for host in job.hosts)
    if job.launcher == "torchrun":
        plan = plan_of(job.hosts[0])
        total = len(job.hosts[0].chosen) * job.num_nodes
        lines = [
            f"launcher: torchrun, torch's elastic agent, for {plan.ranks} of {plural(total, 'rank')} "
            f"(host {job.node_rank} of {job.num_nodes})",
            f"rendezvous: {_rendezvous(job)}",
            f"command of each rank: {shlex.join(job.program)}",
        ]
        worker = shlex.join(worker_command(sys.executable, plan.spec(), list(job.program)))
        return [*lines, *_binding(plan, ""), f"set by the agent: {_AGENT_SETS}", f"started by the agent: {worker}"]
    lines = [f"launcher: {job.launcher}, {plural(total, 'rank')} on {plural(len(job.hosts), 'host')}"]
    if job.launcher == "ssh":
        lines.append(f"rendezvous: {master_address(job)} port {job.master_port or DEFAULT_PORT}")
        commands = ssh_commands(job, directory)
        for rank, command in enumerate(commands):
            slots = ",".join(map(str, job.hosts[rank].chosen))
            lines.append(f"host {rank}, {command.label}, slots {slots}: {_shell(command)}")
        sent = next((command.sent for command in commands if command.sent), {})
        if sent:
            lines.append(f"variables, by ssh's standard input: {assignments(sent)}")
    else:
        lines.append(f"command: {_shell(cluster_command(job))}")
    # Hosts of as many slots, of which the same are used, get the same.
    alike: dict[tuple[int, tuple[int, ...]], list[Host]] = {}
    for host in job.hosts:
        alike.setdefault((host.slots, host.chosen), []).append(host)
    for hosts in alike.values():
        whose = "" if len(alike) == 1 else f"{', '.join(host.name for host in hosts)}: "
        try:
            lines += _binding(plan_of(hosts[0]), f"{whose}on a host like this one, ")
        except BindingError as error:  # where the ranks will run there may be more cores
            lines.append(f"{whose}this host could not hold it: {error}")
    return lines


def _binding(plan: HostPlan, where: str) -> list[str]:
    lines = [f"{where}environment of all ranks: {assignments(plan.variables)}"]
    lines += [
        f"{where}local rank {rank}: {describe(binding, variables)}"
        for rank, (binding, variables) in enumerate(zip(plan.bindings, plan.rank_variables, strict=True))
    ]
    if not plan.bindings:
        lines.append(f"{where}no rank is bound to cores (--bind_cores_to_rank)")
    return [*lines, *plan.notes]


def _rendezvous(job: Job) -> str:
    if job.num_nodes == 1 and job.master_port is None:
        return "any free port of this host"
    return f"{job.master_addr or '127.0.0.1'} port {job.master_port or DEFAULT_PORT}"


def _shell(command: RemoteCommand) -> str:
    return " ".join(filter(None, [assignments(command.variables), shlex.join(command.command)]))
