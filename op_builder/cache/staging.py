"""Staging directories: private to one build, and removed after it, however it ended.

A directory's name contains host and process, and the process has a lock on a file in it. Both end together, so the
next build on the host recognises the directory of a killed one. For another host, and where the file system has no
locks, only the age decides.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from op_builder.cache.layout import STAGING
from op_builder.cache.removal import Folder, folder
from op_builder.system.file_contents import file_system_now
from op_builder.system.file_lock import try_lock
from op_builder.system.host import this_host

ALIVE = "alive"
# A new directory may lack its lock for so long.
_YOUNG_S = 10.0
# Where the lock or the process cannot be checked, age decides.
SURELY_OVER_S = 24 * 3600.0


def make_directory(parent: Path, op: str) -> Path:
    """A new staging directory below ``parent``."""
    directory = parent / new_name(op)
    directory.mkdir(mode=0o700)
    return directory


def new_name(op: str) -> str:
    """A name for a new staging directory."""
    return f"{op}@{this_host()}@{os.getpid()}@{os.urandom(4).hex()}"


@contextmanager
def process_lock(directory: Path) -> Iterator[None]:
    """Hold a lock in a staging directory, which ends with this process however it ends."""
    fresh = directory / f"{ALIVE}.new"
    with fresh.open("w") as file:
        with contextlib.suppress(OSError):
            try_lock(file)
        fresh.replace(directory / ALIVE)  # locked before it can be seen
        yield


def sweep(root: Path) -> int:
    """Remove what killed builds have left in the cache at ``root``; returns how many directories."""
    with folder(root, STAGING) as staging:
        if staging is None or not (names := staging.names()):
            return 0
        now = file_system_now(staging.path)
        abandoned = [name for name in names if _is_abandoned(staging, name, now)]
        for name in abandoned:
            staging.remove_tree(name)
        return len(abandoned)


def _is_abandoned(staging: Folder, name: str, now: float) -> bool:
    try:
        age_s = now - staging.status(name).st_mtime
    except OSError:
        return False
    _, _, rest = name.partition("@")
    host, _, rest = rest.partition("@")
    if host != this_host():
        return age_s > SURELY_OVER_S
    try:
        locked = _is_locked(staging, name)
    except FileNotFoundError:
        if age_s < _YOUNG_S:
            return False
        locked = False
    except OSError:  # the file system does not support locks
        return age_s > SURELY_OVER_S
    # Either is enough: a lock may be lost, and a process of another container is not seen.
    return not locked and not _process_lives(rest.partition("@")[0])


def _process_lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def _is_locked(staging: Folder, name: str) -> bool:
    options = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(f"{name}/{ALIVE}", options, dir_fd=staging.descriptor)
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)
