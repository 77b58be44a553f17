"""Advisory locks on open files, which end with the process that holds them."""

from __future__ import annotations

import time
from typing import IO, Any

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


def lock_within(file: int | IO[Any], longest_s: float) -> bool:
    """:func:`try_lock`, again and again for ``longest_s``."""
    deadline = time.monotonic() + longest_s
    while not (is_locked := try_lock(file)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return is_locked
