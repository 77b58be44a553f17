"""The commands that start ranks on many hosts.

By ssh, each host runs this launcher for itself, and torch's rendezvous connects them. mpirun and srun know the hosts:
one command starts all ranks. Their own binding is switched off, so a rank plans with all CPUs of its host.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from accelerator.launch.errors import LaunchError
from accelerator.launch.job import DEFAULT_PORT, Job
from accelerator.launch.processes import small_process

# By its path: "-m" would import modules of the user's directory.
_MAIN = Path(__file__).resolve().with_name("__main__.py")

# Where several MPIs are installed, each has a name of its own; "mpirun" is any of them.
_PROGRAMS = {
    "openmpi": ("mpirun.openmpi", "mpirun"),
    "mpich": ("mpirun.mpich", "mpiexec.hydra", "mpirun"),
    "impi": ("mpirun",),
    "slurm": ("srun",),
}


@dataclass(frozen=True)
class RemoteCommand:
    """A command that starts ranks.

    Attributes:
        label: the host, or the launcher that knows the hosts.
        variables: added to this process's environment.
        sent: variables of another host, sent to standard input first; None where the command does not expect them.
    """

    label: str
    command: tuple[str, ...]
    variables: dict[str, str]
    sent: dict[str, str] | None = None


def commands(job: Job, directory: Path) -> list[RemoteCommand]:
    """The commands that start all ranks; by ssh one for each host, by node rank.

    Args:
        directory: where the program runs by ssh, on every host.

    Raises:
        LaunchError: hosts could not find rank 0, or differ in a way that MPI's launchers cannot express.
    """
    return _ssh_commands(job, directory) if job.launcher == "ssh" else [_cluster_command(job)]


def master_address(job: Job) -> str:
    """Where rank 0 listens: ``--master_addr``, by default the first host.

    Raises:
        LaunchError: that is ``localhost``, which is another host on each host.
    """
    if job.master_addr is not None:
        return job.master_addr
    first = job.hosts[0]
    if not first.is_local:
        return first.name.rpartition("@")[2]
    if all(host.is_local for host in job.hosts):
        return "127.0.0.1"
    raise LaunchError(
        f"The first host is {first.name}, a name by which the other hosts cannot find it.",
        "Write its name in the network into the hostfile, or give --master_addr.",
    )


def _ssh_commands(job: Job, directory: Path) -> list[RemoteCommand]:
    address = master_address(job)
    commands = []
    for number, host in enumerate(job.hosts):
        part = replace(
            job,
            hosts=(replace(host, name="localhost"),),
            launcher="torchrun",
            num_nodes=len(job.hosts),
            node_rank=number,
            master_addr=address,
            master_port=job.master_port or DEFAULT_PORT,
            address=address if host.is_local else host.name.rpartition("@")[2],
            has_driver=True,
        )
        options = (f"--host_job={part.to_json()}", "--no_python", "--", *job.program)
        inner = (sys.executable, str(_MAIN), *options)
        if host.is_local:
            commands.append(RemoteCommand(host.name, inner, job.variables))
            continue
        remote = f"cd {shlex.quote(str(directory))} && exec {shlex.join(small_process('receive', *inner))}"
        # The user's own arguments come first: of an option that is given twice, ssh takes the first.
        ssh = ("ssh", *job.launcher_args, "-o", "BatchMode=yes", host.name, remote)
        commands.append(RemoteCommand(host.name, ssh, {}, sent={**job.forwarded, **job.variables}))
    return commands


def _cluster_command(job: Job) -> RemoteCommand:
    first = job.hosts[0]
    if any((host.chosen, host.slots) != (first.chosen, first.slots) for host in job.hosts):
        raise LaunchError(
            f"--launcher {job.launcher} starts the same ranks on every host, and the hosts' slots differ.",
            "Choose the same slots on each (--num_accelerators, --include, --exclude), or use --launcher ssh.",
        )
    is_allocation = job.launcher == "slurm" and first.is_local  # srun knows its hosts, and the ranks find the first
    address = job.master_addr if is_allocation else master_address(job)
    rank = small_process("rank", replace(job, hosts=(first,), master_addr=address).to_json(), "--", *job.program)
    programs = _PROGRAMS[job.launcher]
    program = next(filter(shutil.which, programs), programs[-1])
    # Values are in its environment, and options have only the names to forward: everybody can read command lines.
    variables = dict(job.variables)
    if job.launcher == "impi":
        variables["I_MPI_PIN"] = "0"  # Intel's hydra has no "-bind-to none"
    options = _options(job, len(first.chosen), sorted({*job.forwarded, *variables}))
    return RemoteCommand(job.launcher, (program, *options, *job.launcher_args, *rank), variables)


def _options(job: Job, per_host: int, forwarded: list[str]) -> list[str]:
    names = [host.name for host in job.hosts]
    is_local = all(host.is_local for host in job.hosts)
    if job.launcher == "slurm":
        nodes = job.num_nodes if is_local else len(names)
        options = [f"--nodes={nodes}", f"--ntasks={nodes * per_host}", f"--ntasks-per-node={per_host}"]
        options += ["--cpu-bind=none", *([] if is_local else [f"--nodelist={','.join(names)}"])]
        # Slurm's users expect their environment on every node, and Slurm itself sets each node's own variables.
        return [*options, "--export=ALL", "--kill-on-bad-exit=1"]
    options = ["-np", str(per_host * len(names))]
    if job.launcher == "openmpi":
        options += ["--map-by", f"ppr:{per_host}:node", "--bind-to", "none"]
        options += ["--host", ",".join(f"{name}:{per_host}" for name in names)]
        return [*options, *(word for name in forwarded for word in ("-x", name))]
    options += ["-ppn", str(per_host), *(["-bind-to", "none"] if job.launcher == "mpich" else [])]
    if not is_local:
        options += ["-hosts", ",".join(names)]
    # By default all variables of this host would go to the others; two such options are an error.
    if not {"-genvall", "-genvlist", "-genvnone"} & {argument.replace("--", "-", 1) for argument in job.launcher_args}:
        options += ["-genvlist", ",".join(forwarded)] if forwarded else ["-genvnone"]
    return options
