"""Advisory locks on open files, which end with the process that holds them."""

from __future__ import annotations

from typing import IO, Any


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
