"""Helper processes of the launcher, finding and ending the processes of a launch, and signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from op_builder import env
from op_builder.system.interpreter import bare_file_command

if TYPE_CHECKING:
    from accelerator.launch.plan import HostPlan

VARIABLE = env.ACCEL_LAUNCH_ID.name  # inherited by all processes of a launch
END_SIGNALS: tuple[signal.Signals, ...] = tuple(
    number for number in signal.Signals if number.name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
)
_CHILD = Path(__file__).resolve().with_name("child.py")
LEVELS = ("debug", "info", "warning", "error", "critical")
_POLL_S = 0.05

_log_level = "info"


def helper_process(part: str, *arguments: str) -> list[str]:
    """The command of a helper process, see :mod:`accelerator.launch.child`.

    It is isolated from the current directory and from installed packages, and starts fast.
    """
    return bare_file_command(str(_CHILD), part, *arguments)


def log(text: str, level: str = "error") -> None:
    """Write a message to standard error in one call, if its level is printed."""
    if LEVELS.index(level) >= LEVELS.index(_log_level):
        with contextlib.suppress(OSError):  # standard error is closed, or a file on a full disk
            os.write(2, f"accel-launch: {text}\n".encode(errors="backslashreplace"))


def set_log_level(level: str) -> None:
    """Set the least level that this process prints."""
    global _log_level
    _log_level = level


def log_plan(plan: HostPlan, host: str = "") -> None:
    """Log the bindings and the warnings of a plan; ``host`` begins each line."""
    for level, lines in (("info", plan.lines()), ("warning", plan.notes)):
        for line in lines:
            log(f"{host}{line}", level)


def cannot_start(program: str, error: OSError) -> int:
    """Log that a program cannot start; returns the exit status that shells use."""
    log(f"{program}: {error.strerror}")
    return 127 if isinstance(error, FileNotFoundError) else 126


@contextlib.contextmanager
def guarded(launch: str, grace_s: float) -> Iterator[None]:
    """End the launch's other processes on this host if this process ends in the block, even by SIGKILL.

    A helper process waits for that. Otherwise, mpirun and processes in sessions of their own would continue.
    """
    command = helper_process("guard", launch, str(grace_s))
    variables = env.child_environment(**{VARIABLE: None})  # the guard must not end itself
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=variables, bufsize=0, start_new_session=True) as guard:
        assert guard.stdin is not None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # it was killed
                guard.stdin.write(b".")


def handled_signals() -> tuple[signal.Signals, ...]:
    """The signals that end a launch, except those that are ignored, for example by ``nohup``."""
    return tuple(number for number in END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN)


def processes_of(launch: str, rank: int | None = None) -> list[int]:
    """Ids of the other processes on this host that a launch, or one rank of it, started."""
    wanted = {f"{VARIABLE}={launch}".encode()}
    if rank is not None:
        wanted.add(f"RANK={rank}".encode())
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            # A zombie has no environment.
            if wanted.issubset((entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return [process_id for process_id in found if process_id != os.getpid()]


def end_processes_of(launch: str, grace_s: float, rank: int | None = None) -> None:
    """End the remaining processes of a launch on this host: SIGTERM, and SIGKILL ``grace_s`` seconds later."""
    began = time.monotonic()
    left = processes_of(launch, rank)
    _send(left, signal.SIGTERM)
    while left and time.monotonic() < began + 2 * grace_s:
        time.sleep(_POLL_S)
        left = processes_of(launch, rank)
        if time.monotonic() > began + grace_s:
            _send(left, signal.SIGKILL)


def _send(process_ids: list[int], number: signal.Signals) -> None:
    for process_id in process_ids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process_id, number)
