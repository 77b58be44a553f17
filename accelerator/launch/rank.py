"""A rank: it binds itself, runs the program as its child, and reports a failure.

The launcher, mpirun or srun starts it. All ranks of a host compute the same plan.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from types import FrameType

from accelerator.errors import LaunchError
from accelerator.launch.binding import RankBinding
from accelerator.launch.job import DEFAULT_PORT, Job
from accelerator.launch.output import Failure, Relay, exit_status, make_log_directory
from accelerator.launch.plan import plan_host
from accelerator.launch.processes import (
    VARIABLE,
    cannot_start,
    end_processes_of,
    handled_signals,
    log,
    log_plan,
    set_log_level,
)
from accelerator.launch.topology import own_affinity, read_topology
from op_builder import env
from op_builder.errors import AccelError
from op_builder.system.cgroups import HostFiles

# include/uapi/linux/mempolicy.h and prctl.h
_MODES = {"any": 0, "prefer": 1, "bind": 2}
_PREFER_MANY = 5  # since Linux 5.15; "prefer" takes only one node
_PR_SET_PDEATHSIG = 1

# set_mempolicy(2) has no function in the C library; asm/unistd.h of each architecture, "generic" for newer ones.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "loongarch64": 237, "ppc64le": 261, "s390x": 270}

# Each launcher's variables for rank, number of ranks, local rank, and number of ranks on this host.
_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_NAMES = {
    "torchrun": _TORCH,
    "openmpi": tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    "mpich": _HYDRA,
    "impi": _HYDRA,
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
}


def read_place(launcher: str, variables: Mapping[str, str]) -> dict[str, int]:
    """The rank of this process, under torch's names, from the launcher's variables."""
    names = _NAMES[launcher]
    missing = [name for name in names if not variables.get(name, "").isdecimal()]
    if missing:
        raise LaunchError(
            f"--launcher {launcher} should set {', '.join(missing)}, but they are not set in this process.",
            "Run `mpirun --version` to see which MPI starts the ranks, and pass that --launcher.",
        )
    return {name: int(variables[own]) for name, own in zip(_TORCH, names, strict=True)}


def first_of_nodelist(text: str) -> str:
    """The first host of Slurm's compressed list: ``node[07-09,12],gpu1`` begins with ``node07``."""
    name = re.match(r"(\[[^\]]*\]|[^\[,])*", text)
    return re.sub(r"\[(\d*)[^\]]*\]", r"\1", name[0] if name else "")


def run(job_json: str, reports: int, program: Sequence[str]) -> int:
    """Run the program; returns its exit status, or 128 plus the signal number if a signal ended it.

    Args:
        reports: the descriptor to which a failure is written.
    """
    end_with_parent(os.getppid())
    os.set_inheritable(reports, reports == 2)
    job = Job.from_json(job_json, program)
    set_log_level(job.log_level)
    host, given = job.hosts[0], env.child_environment()
    try:
        place = read_place(job.launcher, given)
        if place["LOCAL_WORLD_SIZE"] != len(host.chosen):
            raise LaunchError(
                f"{socket.gethostname()} runs {place['LOCAL_WORLD_SIZE']} ranks, expected {len(host.chosen)}.",
                "Check the placement of ranks in --launcher_args.",
            )
        plan = plan_host(job, host, read_topology(HostFiles(), own_affinity()), given)
        log_dir = None if job.log_dir is None else f"{job.log_dir}/rank{place['RANK']}"
        if log_dir is not None:
            make_log_directory(log_dir)
    except AccelError as error:
        log(str(error))
        return 2
    size = place["LOCAL_WORLD_SIZE"]
    variables = {**given, **plan.variables}
    if job.launcher != "torchrun":  # which has set them
        # DeepSpeed's names for the index and the number of hosts, which have equally many ranks.
        variables.update(CROSS_RANK=str(place["RANK"] // size), CROSS_SIZE=str(place["WORLD_SIZE"] // size))
        variables.update({name: str(number) for name, number in place.items()})
        variables["MASTER_ADDR"] = job.master_addr or first_of_nodelist(given.get("SLURM_STEP_NODELIST", ""))
        variables["MASTER_PORT"] = str(job.master_port or DEFAULT_PORT)
        variables[VARIABLE] = job.launch
        if place["LOCAL_RANK"] == 0:
            log_plan(plan, f"{socket.gethostname()}: ")
    if plan.bindings:
        bind(plan.bindings[place["LOCAL_RANK"]], place["LOCAL_RANK"])
    return _run_program(job, place, variables, log_dir, reports)


def bind(binding: RankBinding, local_rank: int) -> None:
    """Bind this process; log what the kernel refuses and continue."""
    reasons = [bind_to_cpus(binding.cpus)]
    if binding.memory.mode != "any":
        reasons.append(set_memory_policy(binding.memory.mode, binding.memory.nodes))
    for reason in filter(None, reasons):
        log(f"local rank {local_rank} runs unbound: {reason}. A container may forbid that system call (seccomp).")


def _run_program(job: Job, place: dict[str, int], variables: dict[str, str], log_dir: str | None, reports: int) -> int:
    own_id = os.getpid()
    try:
        process = subprocess.Popen(
            job.program,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=False,  # MPI launchers pass descriptors to the program
            start_new_session=True,  # signals come only through this process
            # Only between fork and exec can the program be tied to this process. Any code is safe there: this process
            # has no other threads yet, and has called the same function before.
            preexec_fn=lambda: end_with_parent(own_id),
        )
    except OSError as error:
        return cannot_start(job.program[0], error)
    signals: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if not signals:
            kill = threading.Timer(job.grace_s, process.kill)
            kill.daemon = True
            kill.start()
        signals.append(number)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    for number in set(handled_signals()) - {signal.SIGQUIT}:
        signal.signal(number, forward)
    relays = [
        Relay(stream.fileno(), target, None if log_dir is None else f"{log_dir}/{name}.log")
        for stream, target, name in ((process.stdout, 1, "stdout"), (process.stderr, 2, "stderr"))
        if stream is not None
    ]
    exit_code = process.wait()
    ended_s, was_ended = time.time(), bool(signals)
    for relay in relays:
        relay.finish()
    if exit_code != 0 and not was_ended:
        failure = Failure(
            rank=place["RANK"],
            local_rank=place["LOCAL_RANK"],
            host=socket.gethostname(),
            pid=process.pid,
            exit_code=exit_code,
            time_s=ended_s,
            tail=relays[-1].tail,
        )
        with contextlib.suppress(OSError):  # full, or its reader has ended
            os.write(reports, failure.to_line().encode())
    if job.launcher != "torchrun" and (exit_code != 0 or was_ended):
        # These launchers wait for every process with the streams open, also for children of the program.
        end_processes_of(job.launch, job.grace_s, place["RANK"])
    return exit_status(exit_code)


# System calls, whose effects the program inherits. Containers may forbid them, and an unbound rank is better than none:
# these functions return the reason, or None.


def bind_to_cpus(cpus: Collection[int]) -> str | None:
    """Restrict this process and its children to these CPUs."""
    if not hasattr(os, "sched_setaffinity"):
        return "this system has no affinity masks"
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        return f"sched_setaffinity: {error.strerror}"
    return None


def set_memory_policy(mode: str, nodes: Collection[int]) -> str | None:
    """Set the memory policy of this process and its children; see ``binding.MemoryPolicy``."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return f"memory policies are not supported on {platform.system()} {platform.machine()}"
    word_bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = (ctypes.c_ulong * (max(nodes, default=0) // word_bits + 1))()
    for node in nodes:
        words[node // word_bits] |= 1 << node % word_bits
    code = _PREFER_MANY if mode == "prefer" and len(nodes) > 1 else _MODES[mode]
    libc = ctypes.CDLL(None, use_errno=True)
    # One more bit than the words have: the kernel subtracts one.
    if libc.syscall(number, code, words if nodes else None, len(words) * word_bits + 1) >= 0:
        return None
    refused = ctypes.get_errno()
    if refused == errno.EINVAL and code == _PREFER_MANY:
        return set_memory_policy(mode, [min(nodes)])
    return f"set_mempolicy: {os.strerror(refused)}"


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, with this process id, ends."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has already ended
        os.kill(os.getpid(), signal.SIGKILL)
