"""Running the commands that start ranks elsewhere: passing on signals and output, and learning what failed first."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from accelerator.launch.errors import LaunchError
from accelerator.launch.failures import Failure, exit_status, first_failure
from accelerator.launch.guard import guarded
from accelerator.launch.job import Job
from accelerator.launch.orphans import VARIABLE, end_processes_of
from accelerator.launch.received import sent_line
from accelerator.launch.signals import heeded
from accelerator.launch.worker import tell
from op_builder import env as environment
from op_builder.system.cgroups import read_text

_LOOK_EVERY_S = 0.05
_LAST_WORDS_S = 1.0
# A host gives its ranks the grace period, and then what they have left behind another; and it takes its own time.
_ON_TOP_S = 5.0


@dataclass(frozen=True)
class RemoteCommand:
    """A command that starts ranks.

    Attributes:
        label: the host, or the launcher that knows the hosts.
        takes_orders: it reads the names of signals from standard input; others are sent the signals themselves.
        variables: added to this process's environment.
        sent: variables of another host, which are sent by standard input before all orders; None where it reads none.
    """

    label: str
    command: tuple[str, ...]
    takes_orders: bool
    variables: dict[str, str]
    sent: dict[str, str] | None = None


def run(job: Job, commands: Sequence[RemoteCommand]) -> int:
    """Run all commands to their end; when one fails, the others are ended.

    Returns:
        The exit status: the first failing rank's; else the first failing command's; 128 and a signal's number
        when that ended this process's work.
    """
    driver = _Driver(job)
    with ExitStack() as stack:
        stack.enter_context(_signals_to(driver.order))
        if not all(command.takes_orders for command in commands):
            stack.enter_context(guarded(job.launch, job.grace_s))
        try:
            status = driver.run(commands)
        finally:
            driver.kill()
        if status != 0:
            end_processes_of(job.launch, job.grace_s)
    return status


class _Driver:
    """The state of one :func:`run`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._running: dict[subprocess.Popen[bytes], RemoteCommand] = {}
        self._pumps: dict[subprocess.Popen[bytes], threading.Thread] = {}
        self._failures: list[Failure] = []
        self._ordered: signal.Signals | None = None

    def order(self, number: int) -> None:
        """A signal came, the first one counts; what is to be done is done in the main loop."""
        self._ordered = self._ordered or signal.Signals(number)

    def run(self, commands: Sequence[RemoteCommand]) -> int:
        for command in commands:
            if self._ordered is None:
                self._start(command)
        first_status, told, deadline = 0, False, 0.0
        while self._running:
            for process in [process for process in self._running if process.poll() is not None]:
                command = self._running.pop(process)
                if process.returncode != 0 and first_status == 0 and not told:
                    first_status = exit_status(process.returncode)
                    self._explain(process, command)
            # A rank's failure is enough: not every MPI ends the others when one of them has an exit status.
            if not told and (self._ordered is not None or first_status != 0 or self._failures):
                told, deadline = True, time.monotonic() + 2 * self._job.grace_s + _ON_TOP_S
                self._tell_all(self._ordered or signal.SIGTERM)
            if told and time.monotonic() > deadline:
                self.kill()
            time.sleep(_LOOK_EVERY_S)
        for pump in self._pumps.values():
            pump.join(timeout=_ON_TOP_S)  # what a rank's children still write is not waited for
        failure = first_failure(self._failures)
        if self._ordered is not None:
            tell(f"{self._ordered.name}: all ranks were told to end, and have ended")
            return 128 + self._ordered
        if failure is not None:
            tell(str(failure))
            return failure.exit_status
        return first_status

    def kill(self) -> None:
        """End the commands at once; a host whose driver is gone ends its ranks itself."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def _start(self, command: RemoteCommand) -> None:
        try:
            process = subprocess.Popen(
                command.command,
                executable=shutil.which(command.command[0]),  # by our own PATH; the command may be given another
                env=environment.child_environment(**{**command.variables, VARIABLE: self._job.launch}),
                stdin=subprocess.PIPE if command.takes_orders else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C comes through here alone
            )
        except OSError as error:
            raise LaunchError(
                f"{command.command[0]} cannot be started: {error.strerror}.",
                f"Install it, or choose another --launcher than {self._job.launcher}.",
            ) from None
        self._running[process] = command
        if command.sent is not None and process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended already; why, is told where its end is seen
                process.stdin.write(sent_line(command.sent))
                process.stdin.flush()
        pump = threading.Thread(target=self._pump, args=(process.stderr,), daemon=True)
        pump.start()
        self._pumps[process] = pump

    def _pump(self, stream: BinaryIO) -> None:
        """Pass on standard error, but for what is meant for this process."""
        pending = b""
        while piece := stream.read1(1 << 16):  # type: ignore[attr-defined]
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                failure = Failure.from_line(line.decode(errors="replace"))
                if failure is None:
                    _write(line + b"\n")
                else:
                    self._failures.append(failure)
                    _write(line.partition(b"\x1e")[0])
            if pending and b"\x1e" not in pending:  # a prompt, or a progress bar
                _write(pending)
                pending = b""
        _write(pending)

    def _tell_all(self, order: signal.Signals) -> None:
        for process, command in self._running.items():
            with contextlib.suppress(OSError):
                if command.takes_orders and process.stdin is not None:
                    name = order.name if order in (signal.SIGINT, signal.SIGTERM) else "SIGTERM"
                    process.stdin.write(f"{name}\n".encode())
                    process.stdin.flush()
                else:
                    for receiver in _receivers(process.pid, command.command[0]):
                        os.kill(receiver, signal.SIGTERM)

    def _explain(self, process: subprocess.Popen[bytes], command: RemoteCommand) -> None:
        status = process.returncode
        by_ssh = command.sent is not None
        if by_ssh and status == 255:
            self._pumps[process].join(timeout=_LAST_WORDS_S)
        if by_ssh and status == 255 and not self._failures:  # a rank's own status may be 255, too
            attempt = shlex.join([*command.command[:-1], "true"])
            tell(f"{command.label}: ssh failed; see above. Remedy: Have '{attempt}' work without questions.")
        elif self._ordered is None and self._running:
            tell(f"{command.label} ended with status {status}; ending the others")


@contextmanager
def _signals_to(order: Any) -> Iterator[None]:
    def handle(number: int, _frame: FrameType | None) -> None:
        order(number)

    before = {number: signal.signal(number, handle) for number in heeded()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _receivers(process_id: int, program: str) -> list[int]:
    """Who is to be sent a signal: the program itself, or what runs below it if it is a script (Intel MPI's mpirun)."""
    path = shutil.which(program)
    if path is not None and Path(path).read_bytes()[:2] == b"#!":
        children = read_text(Path(f"/proc/{process_id}/task/{process_id}/children")) or ""
        return [int(child) for child in children.split()] or [process_id]
    return [process_id]


def _write(data: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
        while data:
            data = data[os.write(2, data) :]
