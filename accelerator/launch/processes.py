"""Processes of a launch: commands of the launcher's own small ones, those that outlive it, the signals that end it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from op_builder import env

VARIABLE = env.ACCEL_LAUNCH_ID.name  # all processes of a launch inherit it
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_CHILD = Path(__file__).resolve().with_name("child.py")
_POLL_S = 0.05


def small_process(part: str, *arguments: str) -> list[str]:
    """The command of one, see :mod:`accelerator.launch.child`.

    Isolated, so that neither the user's directory nor installed packages change it, and it starts fast.
    """
    return [sys.executable, "-I", "-S", str(_CHILD), part, *arguments]


def log(text: str) -> None:
    """A message of the launcher to standard error, in one piece."""
    os.write(2, f"accel-launch: {text}\n".encode(errors="backslashreplace"))


def cannot_start(program: str, error: OSError) -> int:
    """The exit status, as shells report it."""
    log(f"{program}: {error.strerror}")
    return 127 if isinstance(error, FileNotFoundError) else 126


@contextlib.contextmanager
def guarded(launch: str, grace_s: float) -> Iterator[None]:
    """While this lasts, the launch's other processes on this host end with this process, even after SIGKILL.

    A small process waits for that. Otherwise mpirun, and what ranks started in sessions of their own, would continue.
    """
    command = small_process("guard", launch, str(grace_s))
    variables = env.child_environment(**{VARIABLE: None})  # it must not end itself
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=variables, bufsize=0, start_new_session=True) as guard:
        assert guard.stdin is not None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # it was killed
                guard.stdin.write(b".")


def heeded_signals() -> tuple[signal.Signals, ...]:
    """The signals that end a launch, without those that this process ignored from the start, as below ``nohup``."""
    return tuple(number for number in END_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN)


def processes_of(launch: str, rank: int | None = None) -> list[int]:
    """Ids of this host's processes, except this one, that a launch (or only one rank of it) started."""
    wanted = {f"{VARIABLE}={launch}".encode()}
    if rank is not None:
        wanted.add(f"RANK={rank}".encode())
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            # A zombie has no environment: it has ended.
            if wanted.issubset((entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return [process_id for process_id in found if process_id != os.getpid()]


def end_processes_of(launch: str, grace_s: float, rank: int | None = None) -> None:
    """End what is left of a launch on this host: SIGTERM, and ``grace_s`` seconds later SIGKILL."""
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
