"""Starting ranks on several hosts, forwarding signals and output, and reporting the first failure.

With ssh, each host runs this launcher, and a store of torch connects them. With mpirun and srun, one command starts
all ranks; their own binding is disabled, so ranks plan with all CPUs of the host.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from accelerator.errors import LaunchError
from accelerator.launch.job import DEFAULT_PORT, Job
from accelerator.launch.output import Failure, Relay, exit_status
from accelerator.launch.processes import VARIABLE, end_processes_of, guarded, handled_signals, helper_process, log
from op_builder import env
from op_builder.system.cgroups import read_text
from op_builder.system.interpreter import python

_POLL_S = 0.05

# By path: "-m" would import modules from the current directory.
_MAIN = Path(__file__).resolve().with_name("__main__.py")

# If several MPIs are installed, each has its own name, and "mpirun" is one of them.
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
        label: the host or the launcher.
        variables: added to this process's environment.
        sent: variables for another host, sent to standard input; None if the command does not read them.
    """

    label: str
    command: tuple[str, ...]
    variables: dict[str, str]
    sent: dict[str, str] | None = None


def commands(job: Job, directory: Path) -> list[RemoteCommand]:
    """The commands that start all ranks; with ssh, one for each host in order, which runs in ``directory``."""
    return _ssh_commands(job, directory) if job.launcher == "ssh" else [_cluster_command(job)]


def master_address(job: Job) -> str:
    """The address of rank 0: ``--master_addr``, by default the first host.

    Raises:
        LaunchError: the first host is ``localhost``, which the others cannot find.
    """
    if job.master_addr is not None:
        return job.master_addr
    first = job.hosts[0]
    if not first.is_local:
        return first.name.rpartition("@")[2]
    if all(host.is_local for host in job.hosts):
        return "127.0.0.1"
    raise LaunchError(
        f"The other hosts cannot find the first host by the name {first.name}.",
        "Use its network name in the hostfile, or add --master_addr.",
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
            has_driver=True,
        )
        options = (f"--host_job={part.to_json()}", "--no_python", "--", *job.program)
        inner = (python(), str(_MAIN), *options)
        if host.is_local:
            commands.append(RemoteCommand(host.name, inner, job.variables))
            continue
        activate = "" if job.venv_script is None else f". {shlex.quote(job.venv_script)} && "
        remote = f"cd {shlex.quote(str(directory))} && {activate}exec {shlex.join(helper_process('receive', *inner))}"
        # The user's options come first: ssh uses the first of two equal options.
        ssh = ("ssh", *job.launcher_args, "-o", "BatchMode=yes", "--", host.name, remote)
        commands.append(RemoteCommand(host.name, ssh, {}, sent={**job.forwarded, **job.variables}))
    return commands


def _cluster_command(job: Job) -> RemoteCommand:
    first, names, launcher = job.hosts[0], [host.name for host in job.hosts], job.launcher
    if any((host.chosen, host.slots) != (first.chosen, first.slots) for host in job.hosts):
        raise LaunchError(
            f"--launcher {launcher} requires the same slots on every host, but the hosts' slots differ.",
            "Select the same slots on each host (--num_accelerators, --include, --exclude), or use --launcher ssh.",
        )
    is_local, per_host = all(host.is_local for host in job.hosts), len(first.chosen)
    # Within an allocation, srun knows the hosts, and ranks find the first.
    address = job.master_addr if launcher == "slurm" and is_local else master_address(job)
    rank = helper_process("rank", replace(job, hosts=(first,), master_addr=address).to_json(), "2", *job.program)
    program = next(filter(shutil.which, _PROGRAMS[launcher]), _PROGRAMS[launcher][-1])
    # All users can read command lines: options have only names, the values are in the environment.
    variables = dict(job.variables)
    if launcher == "impi":
        variables["I_MPI_PIN"] = "0"  # Intel's hydra has no "-bind-to none"
    forwarded = sorted({*job.forwarded, *variables})
    options = ["-np", str(per_host * len(names))]
    if launcher == "slurm":
        nodes = job.num_nodes if is_local else len(names)
        options = [f"--nodes={nodes}", f"--ntasks={nodes * per_host}", f"--ntasks-per-node={per_host}"]
        options += ["--cpu-bind=none", *([] if is_local else [f"--nodelist={','.join(names)}"])]
        # Slurm's users expect their environment on every node.
        options += ["--export=ALL", "--kill-on-bad-exit=1"]
    elif launcher == "openmpi":
        options += ["--map-by", f"ppr:{per_host}:node", "--bind-to", "none"]
        options += ["--host", ",".join(f"{name}:{per_host}" for name in names)]
        options += [word for name in forwarded for word in ("-x", name)]
    else:
        options += ["-ppn", str(per_host), *(["-bind-to", "none"] if launcher == "mpich" else [])]
        options += [] if is_local else ["-hosts", ",".join(names)]
        # By default, all variables would be forwarded; two such options are an error.
        given = {argument.replace("--", "-", 1) for argument in job.launcher_args}
        if not {"-genvall", "-genvlist", "-genvnone"} & given:
            options += ["-genvlist", ",".join(forwarded)] if forwarded else ["-genvnone"]
    return RemoteCommand(launcher, (program, *options, *job.launcher_args, *rank), variables)


def run(job: Job, commands: Sequence[RemoteCommand], margin_s: float = 5.0) -> int:
    """Run all commands; if one fails, end the others.

    Args:
        margin_s: time for a host to end, in addition to twice the grace period: for its programs, and for processes
            that they leave behind.

    Returns:
        The exit status: the first failing rank's, else the first failing command's, or 128 plus the signal number if a
        signal ended the launch.
    """
    driver = _Driver(job)
    before = {number: signal.signal(number, driver.on_signal) for number in handled_signals()}
    try:
        # With ssh, each host's launcher guards its ranks.
        with contextlib.nullcontext() if job.launcher == "ssh" else guarded(job.launch, job.grace_s):
            try:
                status = driver.run(commands, 2 * job.grace_s + margin_s)
            finally:
                driver.kill()
            if status != 0:
                end_processes_of(job.launch, job.grace_s)
            return status
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Driver:
    """The state of one :func:`run`."""

    def __init__(self, job: Job) -> None:
        self._job, self._is_ssh = job, job.launcher == "ssh"
        self._running: dict[subprocess.Popen[bytes], RemoteCommand] = {}
        self._relays: list[Relay] = []
        self._failures: list[Failure] = []
        self._signal: signal.Signals | None = None

    def on_signal(self, number: int, _frame: object) -> None:
        """Record the first signal for the main loop."""
        self._signal = self._signal or signal.Signals(number)

    def run(self, commands: Sequence[RemoteCommand], time_to_end_s: float) -> int:
        for command in commands:
            if self._signal is None:
                self._start(command)
        status, deadline = 0, math.inf
        while self._running:
            for process in [process for process in self._running if process.poll() is not None]:
                command = self._running.pop(process)
                if process.returncode != 0 and status == 0 and deadline == math.inf:
                    status = exit_status(process.returncode)
                    self._explain(command, status)
            # A rank's failure suffices: some MPIs do not end the others if a rank exits with a status.
            if deadline == math.inf and (self._signal is not None or status != 0 or self._failures):
                deadline = time.monotonic() + time_to_end_s
                self._end_all()
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(_POLL_S)
        self._finish_relays()
        if self._signal is not None:
            log(f"{self._signal.name}: all ranks have ended")
            return 128 + self._signal
        if self._failures:
            failure = min(self._failures, key=attrgetter("time_s"))  # it usually caused the others
            log(str(failure))
            return exit_status(failure.exit_code)
        return status

    def kill(self) -> None:
        """Kill the commands; hosts end their ranks themselves when the driver ends."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def _start(self, command: RemoteCommand) -> None:
        try:
            process = subprocess.Popen(
                command.command,
                executable=shutil.which(command.command[0]),  # by our PATH; the command's may differ
                env=env.child_environment(**{**command.variables, VARIABLE: self._job.launch}),
                stdin=subprocess.PIPE if self._is_ssh else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # only this process forwards Ctrl-C
            )
        except OSError as error:
            raise LaunchError(
                f"{command.command[0]} cannot be started: {error.strerror}.",
                f"Install it, or use another --launcher than {self._job.launcher}.",
            ) from None
        self._running[process] = command
        assert process.stderr is not None
        self._relays.append(Relay(process.stderr.fileno(), 2, failures=self._failures))
        if command.sent is not None:
            _send(process, json.dumps(command.sent))

    def _end_all(self) -> None:
        for process, command in self._running.items():
            if self._is_ssh:
                _send(process, "SIGINT" if self._signal == signal.SIGINT else "SIGTERM")
                continue
            for receiver in _receivers(process.pid, command.command[0]):
                with contextlib.suppress(OSError):
                    os.kill(receiver, signal.SIGTERM)

    def _explain(self, command: RemoteCommand, status: int) -> None:
        self._finish_relays()
        if command.sent is not None and status == 255 and not self._failures:  # a rank's status may also be 255
            attempt = shlex.join([*command.command[:-1], "true"])
            log(f"{command.label}: ssh failed; see above. Remedy: Make '{attempt}' work without a prompt.")
        elif self._signal is None and self._running:
            log(f"{command.label} ended with status {status}; ending the others")

    def _finish_relays(self) -> None:
        for relay in self._relays:
            relay.finish()


def _send(process: subprocess.Popen[bytes], line: str) -> None:
    with contextlib.suppress(OSError):  # it has ended; the main loop reports why
        if process.stdin is not None:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()


def _receivers(process_id: int, program: str) -> list[int]:
    """The processes to signal: the program, or its children if it is a script (Intel MPI's mpirun)."""
    path = shutil.which(program)
    if path is not None and Path(path).read_bytes()[:2] == b"#!":
        children = read_text(Path(f"/proc/{process_id}/task/{process_id}/children")) or ""
        return [int(child) for child in children.split()] or [process_id]
    return [process_id]
