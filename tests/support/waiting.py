"""Waiting for what another process or thread does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_LIMIT_S = 300  # only a guard against hangs


def wait_until(is_so: Callable[[], object], message: Callable[[], str] = str) -> None:
    """Return when it is so; the message explains why it is not in time."""
    deadline = time.monotonic() + _LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, message()
        time.sleep(0.002)


def wait_until_asleep(process: int, thread: int | None = None) -> None:
    """Return when a thread of a process, by default its main one, has slept for a while, as in a wait for a rank."""
    status = Path(f"/proc/{process}/task/{thread or process}/stat")
    looks = 0

    def sleeps() -> bool:
        nonlocal looks
        assert not has_ended(process), f"process {process} has ended"
        looks = looks + 1 if status.read_text().rpartition(")")[2].split()[0] == "S" else 0
        time.sleep(0.005)
        return looks >= 20

    wait_until(sleeps, lambda: f"{status} does not sleep")


def has_ended(process: int) -> bool:
    """Whether a process has ended, even if its parent has not waited for it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between the opening and the reading
        return True


def open_files(process: int) -> list[str]:
    """The paths of the files that a process has open; it may open and close others meanwhile."""
    found = []
    for name in os.listdir(f"/proc/{process}/fd"):
        with suppress(FileNotFoundError):  # closed since the listing
            found.append(os.readlink(f"/proc/{process}/fd/{name}"))
    return found


def write_pid(directory: str | Path, rank: int) -> None:
    """Let the other ranks know this rank's process."""
    Path(directory, f"pid-{rank}").write_text(str(os.getpid()))


def pid_of(directory: str | Path, rank: int) -> int:
    """What :func:`write_pid` wrote, when it has."""
    file = Path(directory, f"pid-{rank}")
    wait_until(lambda: file.exists() and file.read_text())
    return int(file.read_text())
