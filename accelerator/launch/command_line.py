"""The command line ``accel-launch``."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from accelerator.errors import LaunchError
from accelerator.launch import describe, remote
from accelerator.launch.binding import parse_core_list
from accelerator.launch.hosts import Host, choose_hosts, host_of, is_host_name, limit, read_hostfile
from accelerator.launch.job import Job
from accelerator.launch.options import parse
from accelerator.launch.output import make_log_directory
from accelerator.launch.plan import HostPlan, forwarded, plan_host, read_environment_files
from accelerator.launch.processes import guarded, log, log_plan, set_log_level
from accelerator.launch.topology import Topology, format_list, own_affinity, read_topology
from accelerator.selection import choose
from accelerator.vendors import redirect_output_to_stderr
from op_builder import env
from op_builder.command_line import run_main
from op_builder.errors import AccelError
from op_builder.messages import counted
from op_builder.system.cgroups import HostFiles
from op_builder.system.target import require_supported

if TYPE_CHECKING:
    from accelerator.abstract_accelerator import DeepSpeedAccelerator


def run() -> NoReturn:
    """The console script."""
    run_main(main)


def main(arguments: Sequence[str] | None = None, prog: str = "accel-launch") -> int:
    """The command line; returns the exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments, prog)
    set_log_level(options.log_level)
    try:
        require_supported(sys.platform)
        return _show_topology(options) if options.show_topology else _launch(options)
    except AccelError as error:
        print(f"accel-launch: {error}", file=sys.stderr)
        return 2


def _launch(options: argparse.Namespace) -> int:
    job = make_job(options)
    set_log_level(job.log_level)  # a driver's job has its own
    if options.dry_run:
        text = "\n".join(describe.describe_job(job, partial(_plan_here, job), Path.cwd()))
        print(text.encode(errors="backslashreplace").decode())  # variables may have any bytes
        return 0
    _check_script(job, options)
    if job.launcher == "torchrun":
        log_plan(_plan_here(job, job.hosts[0]), "" if job.num_nodes == 1 else f"{socket.gethostname()}: ")
        if job.log_dir is not None:
            make_log_directory(job.log_dir)
        with guarded(job.part, job.grace_s):  # before torch, whose import takes seconds
            from accelerator.launch import torchrun

            return torchrun.run(job)
    return remote.run(job, remote.commands(job, Path.cwd()))


def _check_script(job: Job, options: argparse.Namespace) -> None:
    """Raise LaunchError if this host would run a script that does not exist."""
    script = options.program[0]
    runs_here = job.launcher != "slurm" and any(host.is_local for host in job.hosts)
    is_script = not (options.module or options.no_python or script == "-")
    if runs_here and is_script and not os.path.exists(script):
        raise LaunchError(
            f"Script {script} does not exist.",
            "Correct its path, or add --module for a module and --no_python for another program.",
        )


def make_job(options: argparse.Namespace) -> Job:
    """The job that the options, the hostfile, the accelerator and the ``.accel_env`` files describe."""
    if options.host_job is not None:
        return Job.from_json(options.host_job, options.program)
    accelerator = find_accelerator()
    hosts = _hosts(options, accelerator)
    if options.no_ssh and options.hostfile is not None:
        hosts = _only_this_host(options, hosts)
    is_here = len(hosts) == 1 and hosts[0].is_local and not options.force_multi
    launcher = options.launcher or ("torchrun" if is_here else "ssh")
    _check(options, launcher, hosts)
    python = () if options.no_python else (sys.executable, "-u", *(("-m",) if options.module else ()))
    names = accelerator.visible_devices_envs()
    variables, notes = read_environment_files(_directories_of_variables())
    for level, note in notes:
        log(note, level)
    port = () if options.ssh_port is None or launcher != "ssh" else ("-p", str(options.ssh_port))
    return Job(
        program=(*python, *options.program),
        hosts=hosts,
        launcher=launcher,
        launcher_args=(*options.launcher_args, *port),
        num_nodes=options.num_nodes or 1,
        node_rank=options.node_rank,
        master_addr=options.master_addr,
        master_port=options.master_port,
        bind=options.bind_cores_to_rank,
        core_list=options.bind_core_list,
        variables=variables,
        device_variables=names,
        forwarded=forwarded(env.child_environment(), accelerator.export_envs(), names, launcher),
        log_dir=str(options.log_dir.absolute()) if options.log_dir is not None else None,
        max_restarts=options.max_restarts,
        grace_s=options.grace_period,
        venv_script=None if options.venv_script is None else str(options.venv_script.absolute()),
        log_level=options.log_level,
    )


def _only_this_host(options: argparse.Namespace, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """This host's part of a launch without ssh; sets the options of the others' meeting."""
    if options.node_rank >= len(hosts):
        found = f"--node_rank {options.node_rank}: the hostfile has {counted(len(hosts), 'host')}."
        raise LaunchError(found, f"Use 0 to {len(hosts) - 1}, the position of this host in the hostfile.")
    options.num_nodes = len(hosts)
    options.master_addr = options.master_addr or remote.master_address(Job((), hosts))
    return (replace(hosts[options.node_rank], name="localhost"),)


def _directories_of_variables() -> list[Path]:
    """Those that may hold a file of variables."""
    try:
        return [Path.home(), Path.cwd()]
    except RuntimeError:  # a container may run as a user without a home directory
        return [Path.cwd()]


def _check(options: argparse.Namespace, launcher: str, hosts: tuple[Host, ...]) -> None:
    """Raise LaunchError if the launcher does not support an option."""
    nodes, is_torchrun, has_file = options.num_nodes or 1, launcher == "torchrun", options.hostfile is not None
    message = remedy = ""
    if is_torchrun and has_file and (len(hosts) > 1 or not hosts[0].is_local):
        message = "--launcher torchrun starts ranks only on this host, but the hostfile names others."
        remedy = "Use --launcher ssh, or run accel-launch on each host with --num_nodes and --node_rank."
    elif is_torchrun and nodes > 1 and options.master_addr is None:
        message = f"--num_nodes {nodes} without a hostfile requires the address of rank 0."
        remedy = "Add --master_addr, the same on all hosts, or --hostfile."
    elif nodes > 1 and not has_file and launcher not in ("torchrun", "slurm"):
        message, remedy = f"--num_nodes {nodes} --launcher {launcher} requires a hostfile.", "Add --hostfile."
    elif options.max_restarts and launcher not in ("torchrun", "ssh"):
        message = f"--launcher {launcher} does not support --max_restarts; only torchrun and ssh do."
        remedy = "Remove --max_restarts, or use --launcher ssh."
    elif options.node_rank and not options.no_ssh and (has_file or not is_torchrun):
        message = f"--node_rank requires torchrun without a hostfile; --launcher {launcher} numbers the hosts itself."
        remedy = "Remove --node_rank."
    elif launcher not in ("torchrun", "ssh") and (options.ssh_port or options.venv_script):
        message = f"--launcher {launcher} supports neither --ssh_port nor --venv_script."
        remedy = "Set the port in ~/.ssh/config, and activate the environment before you start accel-launch."
    elif options.master_addr is not None and not is_host_name(options.master_addr):
        message, remedy = f"--master_addr {options.master_addr!r} is not a host.", "Use a host's name or address."
    if message:
        raise LaunchError(message, remedy)
    if options.bind_core_list is not None:
        parse_core_list(options.bind_core_list)


def find_accelerator() -> DeepSpeedAccelerator:
    """The accelerator of this host, without a warning if it is the CPU."""
    import torch  # noqa: F401 - required; if it is missing, the command line reports the remedy

    with redirect_output_to_stderr():
        return choose().require()


def _hosts(options: argparse.Namespace, accelerator: DeepSpeedAccelerator) -> tuple[Host, ...]:
    has_choice = options.include is not None or options.exclude is not None
    if options.hostfile is not None:
        hosts, nodes = read_hostfile(options.hostfile), options.num_nodes
    else:
        count = _default_count(accelerator)
        wanted = options.num_accelerators or count
        if wanted > count and accelerator.device_name() != "cpu":
            raise LaunchError(
                f"--num_accelerators {wanted}: this host has {count} ({accelerator.device_name()}).",
                f"Pass at most --num_accelerators {count}, or set ACCEL_ACCELERATOR=cpu to run on the CPU.",
            )
        hosts, nodes = (host_of("localhost", max(wanted, count) if has_choice else wanted),), None
    hosts = limit(choose_hosts(hosts, options.include, options.exclude), nodes, options.num_accelerators)
    # Without --include and --exclude, the ranks share all cores of their host.
    return hosts if has_choice else tuple(host_of(host.name, len(host.chosen)) for host in hosts)


def _default_count(accelerator: DeepSpeedAccelerator) -> int:
    """The default number of ranks: the host's devices; on the CPU, the NUMA nodes with allowed cores."""
    if accelerator.device_name() != "cpu":
        return max(1, accelerator.device_count())
    topology = _topology()  # respects the affinity mask, unlike device_count()
    return max(1, len({node.cpus for node in topology.numa_nodes if node.cpus & topology.allowed_cpus}))


def _plan_here(job: Job, host: Host) -> HostPlan:
    """The plan for a host with the topology of this one."""
    return plan_host(job, host, _topology(), {**env.child_environment(), **job.variables})


def _topology() -> Topology:
    return read_topology(HostFiles(), own_affinity())


def _show_topology(options: argparse.Namespace) -> int:
    topology = _topology()
    host = host_of("localhost", options.num_accelerators or _default_count(find_accelerator()))
    job = Job((), (host,), bind=True, core_list=options.bind_core_list)
    rejection = None
    try:
        plan = plan_host(job, host, topology, env.child_environment())
    except LaunchError as error:
        plan, rejection = HostPlan(host.slots), error
    if options.format in describe.LAUNCHER_FORMATS:
        for line in describe.LAUNCHER_FORMATS[options.format]([format_list(each.cpus) for each in plan.bindings]):
            print(line)
    elif options.format == "json":
        print(json.dumps(describe.as_data(topology, plan), indent=2, default=sorted))
    else:
        print("\n".join(describe.draw(topology, plan)))
    if rejection is not None:
        raise rejection
    return 0
