"""A rank below an MPI's launcher or Slurm's: find out which one it is, bind, run the program, tell how it ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from accelerator.launch.environment import visible_devices
from accelerator.launch.errors import LaunchError
from accelerator.launch.failures import Failure
from accelerator.launch.hostfile import Host
from accelerator.launch.kernel import end_with_parent
from accelerator.launch.observer import Observer, make_log_directory
from accelerator.launch.orphans import VARIABLE, end_processes_of
from accelerator.launch.ranks import BindingRequest, plan_host
from accelerator.launch.signals import heeded
from accelerator.launch.topology import own_affinity, read_topology
from accelerator.launch.worker import bind, tell
from op_builder import env as environment
from op_builder.errors import AccelError
from op_builder.system.cgroups import HostFiles

# What each family of launchers calls rank, number of ranks, local rank, and number of ranks on this host.
_NAMES = {
    "openmpi": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "hydra": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
}
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Place:
    """Which rank a process is."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    def variables(self) -> dict[str, str]:
        """What torch and the programs of its users read."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
        }


def read_place(family: str, variables: Mapping[str, str]) -> Place:
    """Which rank this process is, by the variables of the launcher that started it.

    Raises:
        LaunchError: they are not there.
    """
    names = _NAMES[family]
    missing = [name for name in names if not variables.get(name, "").isdecimal()]
    if missing:
        raise LaunchError(
            f"This process was to be a rank below a launcher of the {family} family, which sets {', '.join(missing)}; "
            "they are not there.",
            "Name the launcher that really runs in --launcher; 'mpirun --version' tells.",
        )
    return Place(*(int(variables[name]) for name in names))


def first_of_nodelist(text: str) -> str:
    """The first host of Slurm's compressed list: ``node[07-09,12],gpu1`` begins with ``node07``."""
    name = re.match(r"(\[[^\]]*\]|[^\[,])*", text)
    return re.sub(r"\[(\d*)[^\]]*\]", r"\1", name[0] if name else "")


def supervise(spec: dict[str, Any], program: list[str]) -> int:
    """Run the program to its end; the exit status is its own, 128 and the signal's number if one killed it.

    Args:
        spec: ``variables`` for all ranks (without ``MASTER_ADDR`` it is the first host of Slurm's list), and
            ``supervised``: ``family``, ``slots``, ``chosen``, ``wanted`` and ``core_list`` of the binding,
            ``devices`` (names of the variables that choose devices), ``grace_s``, ``log_dir``.
    """
    settings = spec["supervised"]
    given = {**environment.child_environment(), **spec["variables"]}
    try:
        place = read_place(settings["family"], given)
        chosen = tuple(settings["chosen"])
        if place.local_size != len(chosen):
            raise LaunchError(
                f"The launcher placed {place.local_size} ranks on {socket.gethostname()}, not {len(chosen)}.",
                "Look at what --launcher_args says of placing ranks.",
            )
        request = BindingRequest(settings["wanted"], settings["core_list"])
        host = Host(socket.gethostname(), settings["slots"], chosen)
        plan = plan_host(host, request, read_topology(HostFiles(), own_affinity()), given)
        log_dir = None if settings["log_dir"] is None else Path(settings["log_dir"]) / f"rank{place.rank}"
        if log_dir is not None:
            make_log_directory(log_dir)
    except AccelError as error:
        tell(str(error))
        return 2
    if place.local_rank == 0:
        for line in plan.lines():
            tell(f"{socket.gethostname()}: {line}")
    variables = {
        **spec["variables"],
        **visible_devices(settings["devices"], given, chosen),
        **plan.variables_of(place.local_rank),
        **place.variables(),
        VARIABLE: spec["launch"],
    }
    variables.setdefault("MASTER_ADDR", first_of_nodelist(given.get("SLURM_STEP_NODELIST", "")))
    if plan.bindings:
        bind(plan.spec()["ranks"][place.local_rank], place.local_rank)
    program_process = _Program(program, environment.child_environment(**variables), place, log_dir)
    return program_process.run(spec["launch"], settings["grace_s"])


class _Program:
    """The program of a rank, and its parent's part in its end."""

    def __init__(self, command: list[str], variables: dict[str, str], place: Place, log_dir: Path | None) -> None:
        self._command = command
        self._variables = variables
        self._place = place
        self._logs: dict[int, str | None] = {1: None, 2: None}
        if log_dir is not None:
            self._logs = {1: str(log_dir / "stdout.log"), 2: str(log_dir / "stderr.log")}
        self._asked: list[int] = []

    def run(self, launch: str, grace_s: float) -> int:
        """The exit status, as shells have it."""
        observer = Observer()
        try:
            process = self._start(observer)
        except OSError as error:
            tell(f"{self._command[0]}: {error.strerror}")
            return 127 if isinstance(error, FileNotFoundError) else 126
        observer.watch({0: process.pid})
        for number in set(heeded()) - {signal.SIGQUIT}:
            signal.signal(number, lambda number, _frame: self._forward(process, number))
        exit_code = self._wait(process, grace_s)
        observer.stop()
        failure = Failure(
            rank=self._place.rank,
            local_rank=self._place.local_rank,
            host=socket.gethostname(),
            pid=process.pid,
            exit_code=exit_code,
            time_s=observer.ended_s.get(0, time.time()),
            tail=observer.tail(0),
        )
        if exit_code != 0 and not self._asked:
            os.write(2, failure.to_line().encode())
        if exit_code != 0 or self._asked:
            # Launchers wait for all who hold the streams, also for what the program has left behind.
            end_processes_of(launch, grace_s, self._place.rank)
        return failure.exit_status

    def _start(self, observer: Observer) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        streams: list[BinaryIO | None] = [None, None]
        if self._logs[1] is not None:
            streams[0] = open(observer.new_stream(0, 1, self._logs[1]), "wb")  # noqa: SIM115 - the program's
        streams[1] = open(observer.new_stream(0, 2, self._logs[2]), "wb")  # noqa: SIM115
        return subprocess.Popen(
            self._command,
            env=self._variables,
            stdout=streams[0],
            stderr=streams[1],
            close_fds=False,  # launchers hand descriptors down to MPI's own start
            preexec_fn=lambda: end_with_parent(signal.SIGKILL, parent),
        )

    def _forward(self, process: subprocess.Popen[bytes], number: int) -> None:
        self._asked.append(number)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def _wait(self, process: subprocess.Popen[bytes], grace_s: float) -> int:
        deadline = None
        while True:
            try:
                return process.wait(timeout=_LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                if self._asked and deadline is None:
                    deadline = time.monotonic() + grace_s
                if deadline is not None and time.monotonic() > deadline:
                    process.kill()
