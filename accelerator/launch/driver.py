"""Running the commands that start ranks elsewhere: passing on signals and output, and finding what failed first."""

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
from pathlib import Path

from accelerator.launch.errors import LaunchError
from accelerator.launch.job import Job
from accelerator.launch.output import Failure, Relay, exit_status
from accelerator.launch.processes import VARIABLE, end_processes_of, guarded, heeded_signals, log
from accelerator.launch.remote import RemoteCommand
from op_builder import env
from op_builder.system.cgroups import read_text

_POLL_S = 0.05
# A host gives its ranks the grace period, then what they left behind another; and it takes time of its own.
_MARGIN_S = 5.0


def run(job: Job, commands: Sequence[RemoteCommand]) -> int:
    """Run all commands to their end; when one fails, the others are ended.

    Returns:
        The exit status: the first failing rank's; else the first failing command's; 128 and a signal's number
        when that ended the launch.
    """
    driver = _Driver(job)
    before = {number: signal.signal(number, lambda number, _: driver.signal(number)) for number in heeded_signals()}
    try:
        # The launcher of a host guards its own ranks.
        with contextlib.nullcontext() if job.launcher == "ssh" else guarded(job.launch, job.grace_s):
            try:
                status = driver.run(commands)
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
        self._job = job
        self._running: dict[subprocess.Popen[bytes], RemoteCommand] = {}
        self._relays: list[Relay] = []
        self._failures: list[Failure] = []
        self._signal: signal.Signals | None = None

    def signal(self, number: int) -> None:
        """The first signal counts; the main loop handles it."""
        self._signal = self._signal or signal.Signals(number)

    def run(self, commands: Sequence[RemoteCommand]) -> int:
        for command in commands:
            if self._signal is None:
                self._start(command)
        status, deadline = 0, math.inf
        while self._running:
            for process in [process for process in self._running if process.poll() is not None]:
                command = self._running.pop(process)
                if process.returncode != 0 and status == 0 and deadline == math.inf:
                    status = exit_status(process.returncode)
                    self._explain(command, process.returncode)
            # A rank's failure is enough: not every MPI ends the others when one of them has an exit status.
            if deadline == math.inf and (self._signal is not None or status != 0 or self._failures):
                deadline = time.monotonic() + 2 * self._job.grace_s + _MARGIN_S
                self._end_all()
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(_POLL_S)
        self._finish_relays()
        failure = min(self._failures, key=Failure.when, default=None)
        if self._signal is not None:
            log(f"{self._signal.name}: all ranks have ended")
            return 128 + self._signal
        if failure is not None:
            log(str(failure))
            return exit_status(failure.exit_code)
        return status

    def kill(self) -> None:
        """Kill the commands; a host whose driver is gone ends its ranks itself."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def _start(self, command: RemoteCommand) -> None:
        try:
            process = subprocess.Popen(
                command.command,
                executable=shutil.which(command.command[0]),  # by our own PATH; the command may get another
                env=env.child_environment(**{**command.variables, VARIABLE: self._job.launch}),
                stdin=subprocess.PIPE if self._job.launcher == "ssh" else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C comes only through this process
            )
        except OSError as error:
            raise LaunchError(
                f"{command.command[0]} cannot be started: {error.strerror}.",
                f"Install it, or choose another --launcher than {self._job.launcher}.",
            ) from None
        self._running[process] = command
        assert process.stderr is not None
        self._relays.append(Relay(process.stderr.fileno(), 2, failures=self._failures))
        if command.sent is not None:
            _send(process, json.dumps(command.sent))

    def _end_all(self) -> None:
        for process, command in self._running.items():
            if self._job.launcher == "ssh":
                _send(process, "SIGINT" if self._signal == signal.SIGINT else "SIGTERM")
                continue
            for receiver in _receivers(process.pid, command.command[0]):
                with contextlib.suppress(OSError):
                    os.kill(receiver, signal.SIGTERM)

    def _explain(self, command: RemoteCommand, status: int) -> None:
        self._finish_relays()
        if command.sent is not None and status == 255 and not self._failures:  # a rank's own status may be 255
            attempt = shlex.join([*command.command[:-1], "true"])
            log(f"{command.label}: ssh failed; see above. Remedy: Have '{attempt}' work without questions.")
        elif self._signal is None and self._running:
            log(f"{command.label} ended with status {status}; ending the others")

    def _finish_relays(self) -> None:
        for relay in self._relays:
            relay.finish()


def _send(process: subprocess.Popen[bytes], line: str) -> None:
    with contextlib.suppress(OSError):  # it has ended; the main loop finds out why
        if process.stdin is not None:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()


def _receivers(process_id: int, program: str) -> list[int]:
    """The processes that get a signal: the program, or its children if it is a script (Intel MPI's mpirun)."""
    path = shutil.which(program)
    if path is not None and Path(path).read_bytes()[:2] == b"#!":
        children = read_text(Path(f"/proc/{process_id}/task/{process_id}/children")) or ""
        return [int(child) for child in children.split()] or [process_id]
    return [process_id]
