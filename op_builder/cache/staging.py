"""Staging directories: private to one build, and removed after it, however it ended.

A directory's name holds host and process; while the process lives it holds a lock on a file in it. Both end with the
process, so the next build on the host recognises what a killed one has left. For another host, and where the file
system has no locks, only the age decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from op_builder.system.file_contents import subdirectories

_ALIVE = "alive"
# A new directory may be without its lock for so long.
_YOUNG_S = 10.0
# Where lock and process cannot both be checked, age decides.
SURELY_OVER_S = 24 * 3600.0


def make_directory(parent: Path, op: str) -> Path:
    """A new staging directory below ``parent``."""
    return Path(tempfile.mkdtemp(prefix=f"{op}@{this_host()}@{os.getpid()}@", dir=parent))


def this_host() -> str:
    """A name for this host that no other running one has, even if both are called ``localhost``."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        boot = ""
    return f"{socket.gethostname()}-{boot}"


@contextmanager
def sign_of_life(directory: Path) -> Iterator[None]:
    """Hold a lock in a staging directory, which ends with this process however it ends."""
    fresh = directory / f"{_ALIVE}.new"
    with fresh.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fresh.replace(directory / _ALIVE)  # locked before it can be seen
        yield


def sweep(parent: Path) -> int:
    """Remove what killed builds have left below ``parent``; returns how many directories."""
    abandoned = [directory for directory in subdirectories(parent) if _is_abandoned(directory)]
    for directory in abandoned:
        shutil.rmtree(directory, ignore_errors=True)
    return len(abandoned)


def _is_abandoned(directory: Path) -> bool:
    try:
        age_s = time.time() - directory.stat().st_mtime
    except OSError:
        return False
    _, _, rest = directory.name.partition("@")
    host, _, rest = rest.partition("@")
    if host != this_host():
        return age_s > SURELY_OVER_S
    try:
        locked = _is_locked(directory)
    except FileNotFoundError:
        if age_s < _YOUNG_S:
            return False
        locked = False
    except OSError:  # the file system does not support locks
        return age_s > SURELY_OVER_S
    # Either sign of life is enough: a lock may be lost, and a process of another container is not seen.
    return not locked and not _process_lives(rest.partition("@")[0])


def _process_lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def _is_locked(directory: Path) -> bool:
    with (directory / _ALIVE).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
