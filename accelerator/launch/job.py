"""What is to be launched: the program, the hosts, and how."""

from __future__ import annotations

import argparse
import shlex
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from accelerator.launch.hostfile import Host
from accelerator.launch.ranks import BindingRequest

DEFAULT_PORT = 29500
LAUNCHERS = ("torchrun", "ssh", "openmpi", "mpich", "impi", "slurm")


@dataclass(frozen=True)
class Job:
    """One launch.

    Attributes:
        program: the command of each rank.
        hosts: by node rank; for ``torchrun`` this host alone.
        launcher: of :data:`LAUNCHERS`.
        launcher_args: for ssh, mpirun or srun itself.
        num_nodes, node_rank: of ``torchrun``: how many hosts run this same command, and which this one is.
        master_addr, master_port: where rank 0 listens; None where the engine chooses.
        address: what other hosts call this one, None where torch is to find out.
        variables: what all ranks get beside this process's own.
        device_variables: those by which the accelerator sees the devices of chosen slots alone; their values are
            each host's own.
        forwarded: of this process's own, those that other hosts get.
        max_restarts: how often the ranks are started again when one has failed.
        grace_s: how long ranks may take to end after they were told to.
        reports: a driver on another host is to be told of failures, and says when to end.
        launch: names this launch among all others.
    """

    program: tuple[str, ...]
    hosts: tuple[Host, ...]
    launcher: str = "torchrun"
    launcher_args: tuple[str, ...] = ()
    num_nodes: int = 1
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    address: str | None = None
    binding: BindingRequest = field(default_factory=BindingRequest)
    variables: dict[str, str] = field(default_factory=dict)
    device_variables: tuple[str, ...] = ()
    forwarded: dict[str, str] = field(default_factory=dict)
    log_dir: Path | None = None
    max_restarts: int = 0
    grace_s: float = 10.0
    reports: bool = False
    launch: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def part(self) -> str:
        """Names what this host has of the launch: another host's part, or ssh, may run on the same machine."""
        return f"{self.launch}.{self.node_rank}" if self.num_nodes > 1 or self.reports else self.launch


def program_command(script: str, arguments: list[str], *, module: bool, no_python: bool) -> tuple[str, ...]:
    """The command of a rank: a script, a module (``-m``), or any program."""
    if no_python:
        return (script, *arguments)
    return (sys.executable, "-u", *(("-m",) if module else ()), script, *arguments)


def split_arguments(text: str | None) -> tuple[str, ...]:
    """``--launcher_args``, as a shell would split it."""
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
