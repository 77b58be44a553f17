"""The description of a launch."""

from __future__ import annotations

import json
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
        num_nodes, node_rank: for ``torchrun``, the number of hosts that run this command, and this host's index.
        master_addr, master_port: of rank 0; None for the launcher's choice.
        core_list: the CPUs to use; None: all.
        variables: environment variables for all ranks, in addition to this process's.
        device_variables: names of the variables that select visible devices; each host uses its own values.
        forwarded: this process's variables that other hosts get.
        log_dir: an absolute path.
        venv_script: a script that the shell of other hosts runs first.
        has_driver: whether a driver reads failures from standard error and writes signals to standard input.
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
    bind: bool = False
    core_list: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    device_variables: Sequence[str] = ()
    forwarded: dict[str, str] = field(default_factory=dict)
    log_dir: str | None = None
    max_restarts: int = 0
    grace_s: float = 10.0
    venv_script: str | None = None
    log_level: str = "info"
    has_driver: bool = False
    launch: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def part(self) -> str:
        """Identifies this host's part of the launch; several parts may run on one machine."""
        return f"{self.launch}.{self.node_rank}" if self.num_nodes > 1 or self.has_driver else self.launch

    def to_json(self) -> str:
        """This job for a command line, without the program and the variables, which may be secret."""
        data = asdict(self)
        for name in ("program", "launcher_args", "variables", "forwarded", "venv_script"):
            del data[name]
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, program: Sequence[str]) -> Job:
        data: dict[str, Any] = json.loads(text)
        hosts = tuple(Host(host["name"], host["slots"], tuple(host["chosen"])) for host in data.pop("hosts"))
        return cls(program=tuple(program), hosts=hosts, **data)
