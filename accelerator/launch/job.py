"""What is launched: the program, the hosts, and how."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from accelerator.launch.hosts import Host

DEFAULT_PORT = 29500
LAUNCHERS = ("torchrun", "ssh", "openmpi", "mpich", "impi", "slurm")


@dataclass(frozen=True)
class Job:
    """One launch.

    Attributes:
        program: the command of each rank.
        hosts: by node rank; for ``torchrun`` only this host.
        launcher: of :data:`LAUNCHERS`.
        launcher_args: for ssh, mpirun or srun itself.
        num_nodes, node_rank: of ``torchrun``: how many hosts run this same command, and which this one is.
        master_addr, master_port: where rank 0 listens; None where the engine chooses.
        address: other hosts' name for this one, None where torch finds it.
        bind, core_list: whether ranks are bound to cores, and to which CPUs (None: any).
        variables: what all ranks get in addition to this process's own.
        device_variables: those that choose the accelerator's visible devices; their values are each host's own.
        forwarded: of this process's own variables, those that other hosts get.
        log_dir: an absolute path.
        max_restarts: how often the ranks are started again after a failure.
        grace_s: how long ranks may take to end after a signal.
        has_driver: a driver on another host gets failures as lines of standard error, and sends signals to standard
            input.
        launch: identifies this launch.
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
    bind: bool = False
    core_list: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    device_variables: Sequence[str] = ()
    forwarded: dict[str, str] = field(default_factory=dict)
    log_dir: str | None = None
    max_restarts: int = 0
    grace_s: float = 10.0
    has_driver: bool = False
    launch: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def part(self) -> str:
        """Identifies this host's part of the launch: another host's part may run on the same machine."""
        return f"{self.launch}.{self.node_rank}" if self.num_nodes > 1 or self.has_driver else self.launch

    def to_json(self) -> str:
        """This job for another process of the launcher, which gets program and variables in another way.

        Everybody can read command lines, and values of variables may be secret.
        """
        data = asdict(self)
        for name in ("program", "launcher_args", "variables", "forwarded"):
            del data[name]
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, program: Sequence[str]) -> Job:
        data: dict[str, Any] = json.loads(text)
        hosts = tuple(Host(host["name"], host["slots"], tuple(host["chosen"])) for host in data.pop("hosts"))
        return cls(program=tuple(program), hosts=hosts, **data)


def program_command(script: str, arguments: list[str], *, module: bool, no_python: bool) -> tuple[str, ...]:
    """The command of a rank: a script, a module (``-m``), or any program."""
    if no_python:
        return (script, *arguments)
    return (sys.executable, "-u", *(("-m",) if module else ()), script, *arguments)
