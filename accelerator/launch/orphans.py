"""Processes of a launch that outlived it: found by the variable that all of them inherit."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from op_builder import env as environment

VARIABLE = environment.ACCEL_LAUNCH_ID.name
_LOOK_EVERY_S = 0.05


def processes_of(launch: str, rank: int | None = None, procfs: Path = Path("/proc")) -> list[int]:
    """Ids of the processes of this host, but for this one, that a launch started, directly or not.

    Args:
        rank: only those of this rank.
    """
    wanted = {f"{VARIABLE}={launch}".encode()}
    if rank is not None:
        wanted.add(f"RANK={rank}".encode())
    found = []
    for entry in procfs.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            # A zombie has no environment any more: it has ended, whoever has still to ask how.
            variables = (entry / "environ").read_bytes().split(b"\0")
            if wanted.issubset(variables) and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def end_processes_of(launch: str, grace_s: float, rank: int | None = None) -> None:
    """End what is left of a launch on this host: SIGTERM, and SIGKILL for what is there ``grace_s`` seconds later."""
    _send(processes_of(launch, rank), signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (left := processes_of(launch, rank)) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    while left:
        _send(left, signal.SIGKILL)
        time.sleep(_LOOK_EVERY_S)
        left = processes_of(launch, rank) if time.monotonic() < deadline + grace_s else []


def _send(process_ids: list[int], number: signal.Signals) -> None:
    for process_id in process_ids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process_id, number)
