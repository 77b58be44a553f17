"""Advisory locks on open files, which end with the process that holds them."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

logger = logging.getLogger(__name__)

# When waiting is first reported, and the longest time until the next report.
SILENT_S = 2.0
ANNOUNCE_EVERY_S = 10.0
_POLL_S = 0.05


def try_lock(file: int | IO[Any]) -> bool:
    """Take the exclusive lock of an open file or descriptor; False if another open file has it.

    Raises:
        OSError: the file system has no locks.
    """
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_within(file: IO[str], longest_s: float, activity: str, check: Callable[[], object] = bool) -> bool:
    """Take the lock of ``file``, logging now and then which process has it; False if that took too long.

    Args:
        activity: what that process does: "builds op 'x'".
        check: called again and again; stops the waiting by an exception.

    Raises:
        OSError: the file system has no locks.
    """
    started, next_s = time.monotonic(), SILENT_S
    while not try_lock(file):
        check()
        waited_s = time.monotonic() - started
        if waited_s >= longest_s:
            logger.warning(
                "Gave up waiting for %s, which %s (%.0f s); doing the same here.", _owner(file), activity, waited_s
            )
            return False
        if waited_s >= next_s:
            next_s = min(3 * next_s, next_s + ANNOUNCE_EVERY_S)
            logger.warning("Still waiting for %s, which %s (%.0f s).", _owner(file), activity, waited_s)
        time.sleep(_POLL_S)
    return True


@contextlib.contextmanager
def owner_written(file: IO[str]) -> Iterator[None]:
    """Write this process into a file that it has locked, for those who wait."""
    _write(file, f"process {os.getpid()} on {os.uname().nodename}")
    try:
        yield
    finally:
        _write(file, "")


def _owner(file: IO[str]) -> str:
    """The process that has the lock, as it has written into the file."""
    with contextlib.suppress(OSError, ValueError):
        file.seek(0)
        return ascii(file.read(200))[1:-1] or "another process"
    return "another process"


def _write(file: IO[str], text: str) -> None:
    with contextlib.suppress(OSError):
        file.truncate(0)
        file.write(text)
        file.flush()
