"""Many hosts by ssh: each runs this launcher for itself, and torch's rendezvous brings them together."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from accelerator.launch.driver import RemoteCommand
from accelerator.launch.errors import LaunchError
from accelerator.launch.hostfile import Host
from accelerator.launch.job import DEFAULT_PORT, Job
from accelerator.launch.received import receiving_command

# By its path: "-m" would have modules in the user's directory stand for those that the launcher imports.
_MAIN = Path(__file__).resolve().parent / "__main__.py"


def ssh_commands(job: Job, directory: Path) -> list[RemoteCommand]:
    """The command for each host, by node rank.

    ``localhost`` alone needs no ssh.

    Args:
        directory: where the program runs on every host.

    Raises:
        LaunchError: hosts could not find rank 0.
    """
    address = master_address(job)
    commands = []
    for rank, host in enumerate(job.hosts):
        inner = _launcher_command(job, host, rank, address)
        if host.is_local:
            commands.append(RemoteCommand(host.name, tuple(inner), True, job.variables))
            continue
        remote = f"cd {shlex.quote(str(directory))} && exec {shlex.join(receiving_command(sys.executable, inner))}"
        # The user's own arguments come first: of an option that is given twice, ssh takes the first.
        ssh = ("ssh", *job.launcher_args, "-o", "BatchMode=yes", host.name, remote)
        commands.append(RemoteCommand(host.name, ssh, True, {}, sent={**job.forwarded, **job.variables}))
    return commands


def master_address(job: Job) -> str:
    """Where rank 0 listens: as told, else the first host.

    Raises:
        LaunchError: that is ``localhost``, which other hosts would take for themselves.
    """
    if job.master_addr is not None:
        return job.master_addr
    first = job.hosts[0]
    if not first.is_local:
        return first.name.rpartition("@")[2]
    if all(host.is_local for host in job.hosts):
        return "127.0.0.1"
    raise LaunchError(
        f"The first host is {first.name}, by which the other hosts would not find it.",
        "Write its name in the network into the hostfile, or give --master_addr.",
    )


def _launcher_command(job: Job, host: Host, rank: int, address: str) -> list[str]:
    """The same launch on one host; options that are not the user's own to give begin with ``--host_``."""
    options = [
        f"--num_nodes={len(job.hosts)}",
        f"--node_rank={rank}",
        f"--master_addr={address}",
        f"--master_port={job.master_port or DEFAULT_PORT}",
        f"--host_slots={host.slots}",
        f"--host_chosen={','.join(map(str, host.chosen))}",
        f"--host_launch={job.launch}",
        f"--host_address={address if host.is_local else host.name.rpartition('@')[2]}",
        f"--max_restarts={job.max_restarts}",
        f"--grace_period={job.grace_s:g}",
    ]
    if job.device_variables:
        options.append(f"--host_devices={','.join(job.device_variables)}")
    if job.binding.wanted:
        options.append("--bind_cores_to_rank")
    if job.binding.core_list is not None:
        options.append(f"--bind_core_list={job.binding.core_list}")
    if job.log_dir is not None:
        options.append(f"--log_dir={job.log_dir}")
    return [sys.executable, str(_MAIN), *options, "--no_python", "--", *job.program]
