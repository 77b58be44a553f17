"""Many hosts by a launcher that knows them: mpirun of Open MPI, MPICH or Intel MPI, or Slurm's srun.

Their own binding is switched off, so that a rank plans with all CPUs of its host and binds itself.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable

from accelerator.launch.driver import RemoteCommand
from accelerator.launch.errors import LaunchError
from accelerator.launch.job import DEFAULT_PORT, Job
from accelerator.launch.ssh import master_address
from accelerator.launch.worker import worker_command

Find = Callable[[str], str | None]

_FAMILIES = {"openmpi": "openmpi", "mpich": "hydra", "impi": "hydra", "slurm": "slurm"}
# Where several MPIs are installed, each has a name of its own; "mpirun" is any of them.
_PROGRAMS = {
    "openmpi": ("mpirun.openmpi", "mpirun"),
    "mpich": ("mpirun.mpich", "mpiexec.hydra", "mpirun"),
    "impi": ("mpirun",),
    "slurm": ("srun",),
}


def cluster_command(job: Job, find: Find = shutil.which) -> RemoteCommand:
    """The one command that starts all ranks.

    Args:
        find: where a program is, None where it is not.

    Raises:
        LaunchError: hosts differ in a way that these launchers cannot express.
    """
    chosen = job.hosts[0].chosen
    if any((host.chosen, host.slots) != (chosen, job.hosts[0].slots) for host in job.hosts):
        raise LaunchError(
            f"--launcher {job.launcher} starts the same ranks on every host, and the hosts' slots differ.",
            "Choose the same slots on each (--num_accelerators, --include, --exclude), or use --launcher ssh.",
        )
    address = job.master_addr
    if address is None and not (job.launcher == "slurm" and job.hosts[0].is_local):
        address = master_address(job)
    spec = {
        "launch": job.launch,
        "variables": {
            **({"MASTER_ADDR": address} if address is not None else {}),
            "MASTER_PORT": str(job.master_port or DEFAULT_PORT),
        },
        "supervised": {
            "family": _FAMILIES[job.launcher],
            "slots": job.hosts[0].slots,
            "chosen": list(chosen),
            "devices": list(job.device_variables),
            "wanted": job.binding.wanted,
            "grace_s": job.grace_s,
            "core_list": job.binding.core_list,
            "log_dir": str(job.log_dir) if job.log_dir is not None else None,
        },
    }
    programs = _PROGRAMS[job.launcher]
    program = next(filter(find, programs), programs[-1])
    worker = worker_command(sys.executable, spec, list(job.program))
    # It has the values in its environment, and is told by name which to forward: everybody can read command lines.
    variables = dict(job.variables)
    if job.launcher == "impi":
        variables["I_MPI_PIN"] = "0"  # Intel's hydra has another way to say "-bind-to none"
    build = {"openmpi": _openmpi, "mpich": _hydra, "impi": _hydra, "slurm": _slurm}[job.launcher]
    options = build(job, sorted({*job.forwarded, *variables}))
    return RemoteCommand(job.launcher, (program, *options, *job.launcher_args, *worker), False, variables)


def _openmpi(job: Job, forwarded: list[str]) -> list[str]:
    per_host = len(job.hosts[0].chosen)
    options = ["-np", str(per_host * len(job.hosts)), "--map-by", f"ppr:{per_host}:node", "--bind-to", "none"]
    options += ["--host", ",".join(f"{host.name}:{per_host}" for host in job.hosts)]
    for name in forwarded:
        options += ["-x", name]
    return options


def _hydra(job: Job, forwarded: list[str]) -> list[str]:
    per_host = len(job.hosts[0].chosen)
    options = ["-np", str(per_host * len(job.hosts)), "-ppn", str(per_host)]
    if job.launcher == "mpich":
        options += ["-bind-to", "none"]
    if not all(host.is_local for host in job.hosts):
        options += ["-hosts", ",".join(host.name for host in job.hosts)]
    # Without a word of it all variables of this host would go to the others; two words of it are an error.
    if not {"-genvall", "-genvlist", "-genvnone"} & {argument.replace("--", "-", 1) for argument in job.launcher_args}:
        options += ["-genvlist", ",".join(forwarded)] if forwarded else ["-genvnone"]
    return options


def _slurm(job: Job, _forwarded: list[str]) -> list[str]:
    per_host = len(job.hosts[0].chosen)
    nodes = job.num_nodes if job.hosts[0].is_local else len(job.hosts)
    options = [f"--nodes={nodes}", f"--ntasks={nodes * per_host}", f"--ntasks-per-node={per_host}", "--cpu-bind=none"]
    if not job.hosts[0].is_local:
        options.append(f"--nodelist={','.join(host.name for host in job.hosts)}")
    # Slurm's users expect their environment on every node, and Slurm itself sets what is a node's own.
    return [*options, "--export=ALL", "--kill-on-bad-exit=1"]
