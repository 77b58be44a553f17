"""``accel-launch``: from options to a job, and to who runs it."""

from __future__ import annotations

import argparse
import json
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from accelerator.launch import environment as worker_environment
from accelerator.launch.binding import parse_core_list
from accelerator.launch.errors import LaunchError
from accelerator.launch.guard import guarded
from accelerator.launch.hostfile import Host, choose_hosts, limit, read_hostfile
from accelerator.launch.job import Job, program_command
from accelerator.launch.observer import make_log_directory
from accelerator.launch.options import parse
from accelerator.launch.ranks import BindingRequest, HostPlan, plan_host
from accelerator.launch.topology import Topology, own_affinity, read_caches, read_topology
from accelerator.launch.worker import tell
from op_builder import env as environment
from op_builder.errors import AccelError
from op_builder.system.cgroups import HostFiles

if TYPE_CHECKING:
    from accelerator.abstract_accelerator import DeepSpeedAccelerator


def run() -> NoReturn:
    """The console script."""
    from op_builder.command_line import run_main

    run_main(main)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        return _launch(options)
    except AccelError as error:
        print(f"accel-launch: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before anything was started
        return 130


def _launch(options: argparse.Namespace) -> int:
    if options.show_topology:
        return _show_topology(options)
    job = make_job(options)
    if options.dry_run:
        from accelerator.launch.dry_run import describe_job

        print("\n".join(describe_job(job, partial(_plan_here, job), Path.cwd())))
        return 0
    _check_script(job, options)
    if job.launcher == "torchrun":
        plan = _plan_here(job, job.hosts[0])
        for line in plan.lines():
            tell(line if job.num_nodes == 1 else f"{socket.gethostname()}: {line}")
        if job.log_dir is not None:
            make_log_directory(job.log_dir)
        with guarded(job.part, job.grace_s):  # it is there by the time that torch is
            from accelerator.launch import torchrun

            return torchrun.run(job, plan)
    from accelerator.launch import driver
    from accelerator.launch.cluster import cluster_command
    from accelerator.launch.ssh import ssh_commands

    commands = ssh_commands(job, Path.cwd()) if job.launcher == "ssh" else [cluster_command(job)]
    return driver.run(job, commands)


def _check_script(job: Job, options: argparse.Namespace) -> None:
    """Have ranks not be started for nothing, where that is known already.

    Raises:
        LaunchError: the script is missing on this host, which is to run it.
    """
    script = options.program[0]
    runs_here = job.launcher != "slurm" and any(host.is_local for host in job.hosts)
    is_script = not (options.module or options.no_python or script == "-")
    if runs_here and is_script and not Path(script).exists():
        raise LaunchError(
            f"There is no script {script}.",
            "Correct its path. For a module give --module, for what is no Python script --no_python.",
        )


def make_job(options: argparse.Namespace) -> Job:
    """What the options, the hostfile, the accelerator and the ``.accel_env`` files say is to be launched.

    Raises:
        AccelError: they cannot be followed, and why.
    """
    script, *arguments = options.program
    job = Job(
        program=program_command(script, arguments, module=options.module, no_python=options.no_python),
        hosts=(),
        launcher=options.launcher or "torchrun",
        launcher_args=options.launcher_args,
        num_nodes=options.num_nodes or 1,
        node_rank=options.node_rank,
        master_addr=options.master_addr,
        master_port=options.master_port,
        binding=BindingRequest(options.bind_cores_to_rank, options.bind_core_list),
        log_dir=options.log_dir.absolute() if options.log_dir is not None else None,
        max_restarts=options.max_restarts,
        grace_s=options.grace_period,
    )
    if options.host_launch is not None:  # a driver has seen to all the rest
        host = Host("localhost", options.host_slots, options.host_chosen)
        told = replace(job, launch=options.host_launch, address=options.host_address)
        names = tuple(options.host_devices.split(",")) if options.host_devices else ()
        return replace(told, hosts=(host,), device_variables=names, reports=True)
    accelerator = find_accelerator()
    hosts = _hosts(options, accelerator)
    launcher = options.launcher or ("torchrun" if len(hosts) == 1 and hosts[0].is_local else "ssh")
    if launcher == "torchrun":
        if options.hostfile is not None and (len(hosts) > 1 or not hosts[0].is_local):
            raise LaunchError(
                "--launcher torchrun starts ranks on this host alone, and the hostfile names others.",
                "Use --launcher ssh, or run accel-launch on each host with --num_nodes and --node_rank.",
            )
        if job.num_nodes > 1 and job.master_addr is None:
            raise LaunchError(
                f"--num_nodes {job.num_nodes} without a hostfile: each host must know where rank 0 runs.",
                "Give --master_addr, the same on all hosts, or --hostfile.",
            )
    _refuse_what_would_be_ignored(options, launcher)
    variables = worker_environment.read_environment_files((Path.home(), Path.cwd()))
    names = tuple(accelerator.visible_devices_envs())
    forwarded = worker_environment.forwarded(
        environment.child_environment(), accelerator.export_envs(), names, launcher
    )
    told = replace(job, hosts=hosts, launcher=launcher, variables=variables)
    return replace(told, device_variables=names, forwarded=forwarded)


def _refuse_what_would_be_ignored(options: argparse.Namespace, launcher: str) -> None:
    if (options.num_nodes or 1) > 1 and options.hostfile is None and launcher not in ("torchrun", "slurm"):
        raise LaunchError(
            f"--num_nodes {options.num_nodes} --launcher {launcher}: which hosts?",
            "Give --hostfile.",
        )
    if options.max_restarts and launcher not in ("torchrun", "ssh"):
        raise LaunchError(
            f"--max_restarts {options.max_restarts} --launcher {launcher}: only torch's agent starts ranks again.",
            "Leave --max_restarts out, or use --launcher ssh.",
        )
    if options.node_rank and (options.hostfile is not None or launcher != "torchrun"):
        raise LaunchError(
            f"--node_rank {options.node_rank} is for the same command on each host, without a hostfile and by "
            f"--launcher torchrun; here --launcher {launcher} numbers the hosts.",
            "Leave --node_rank out.",
        )
    if options.bind_core_list is not None:
        parse_core_list(options.bind_core_list)


def find_accelerator() -> DeepSpeedAccelerator:
    """The accelerator of this host; that it is only a CPU is the ranks' to say.

    Raises:
        AcceleratorSelectionError: the environment names one that cannot be had.
    """
    from accelerator.detection import Refused
    from accelerator.selection import choose
    from accelerator.vendors import standard_output_kept

    with standard_output_kept():
        selection = choose()
    if isinstance(selection, Refused):
        raise selection.error
    return selection.accelerator


def _hosts(options: argparse.Namespace, accelerator: DeepSpeedAccelerator) -> tuple[Host, ...]:
    if options.hostfile is not None:
        hosts = choose_hosts(read_hostfile(options.hostfile), options.include, options.exclude)
        hosts = limit(hosts, options.num_nodes, options.num_accelerators)
    else:
        count = _default_count(accelerator)
        wanted = options.num_accelerators or count
        is_cpu = accelerator.device_name() == "cpu"
        if wanted > count and not is_cpu:
            raise LaunchError(
                f"--num_accelerators {wanted}: this host has {count} ({accelerator.device_name()}).",
                "Ask for fewer; ACCEL_ACCELERATOR=cpu runs on the CPU.",
            )
        slots = max(wanted, count) if options.include or options.exclude else wanted
        hosts = choose_hosts((Host("localhost", slots, tuple(range(slots))),), options.include, options.exclude)
        hosts = limit(hosts, None, options.num_accelerators)
    if options.include is None and options.exclude is None:
        # Ranks that were asked for by number alone share all cores of their host.
        return tuple(replace(host, slots=len(host.chosen)) for host in hosts)
    return hosts


def _default_count(accelerator: DeepSpeedAccelerator) -> int:
    """Ranks where nobody says how many: a host's devices; on the CPU NUMA nodes with cores that may be used."""
    if accelerator.device_name() != "cpu":
        return max(1, accelerator.device_count())
    topology = _topology()  # the accelerator does not ask the affinity mask: a rank has siblings beyond its own
    return max(1, len({node.cpus for node in topology.nodes if node.cpus & topology.allowed}))


def _plan_here(job: Job, host: Host) -> HostPlan:
    """The plan for a host, were it like this one."""
    given = {**environment.child_environment(), **job.variables}
    plan = plan_host(host, job.binding, _topology(), given)
    devices = worker_environment.visible_devices(job.device_variables, given, host.chosen)
    return replace(plan, variables={**job.variables, **devices, **plan.variables})


def _topology() -> Topology:
    return read_topology(HostFiles(), own_affinity())


def _show_topology(options: argparse.Namespace) -> int:
    from accelerator.launch import picture

    topology = _topology()
    caches = read_caches(HostFiles(), topology)
    count = options.num_accelerators or _default_count(find_accelerator())
    host = Host("localhost", count, tuple(range(count)))
    request = BindingRequest(True, options.bind_core_list)
    refusal = None
    try:
        plan = plan_host(host, request, topology, environment.child_environment())
    except LaunchError as error:
        plan, refusal = HostPlan(count), error
    if options.json:
        print(json.dumps(picture.as_data(topology, caches, plan), indent=2))
    else:
        picture.draw(topology, caches, plan)
    if refusal is not None:
        raise refusal
    return 0
