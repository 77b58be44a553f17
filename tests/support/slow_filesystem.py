"""A directory seen as a host sees it on a slow network file system: a FUSE mount of our own.

Several mounts of one backing directory are as many hosts. Each has its own kernel caches, so it sees
what another has changed only much later, as under NFS. Run as a program it serves one mount.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Callable
from typing import Any

import mfusepy

from tests.support.backed_directory import BackedDirectory

# How long a host trusts what it knows of names and attributes, and of a directory's list of names.
# Under NFS that is up to a minute; here it outlasts each test.
STALE_S = 60.0
STALE_LIST_S = 20.0
# What one request to the server takes.
READ_S = 0.002
OPEN_S = 0.004
CHANGE_S = 0.015


def changing(function: Callable[..., object]) -> Callable[..., int]:
    """An operation that changes names: a host knows what it has done itself."""

    def operation(self: SlowDirectory, *paths: Any) -> int:
        time.sleep(CHANGE_S)
        texts = [path for path in paths if isinstance(path, str)]
        for path in texts:
            self.lists.pop(os.path.dirname(path), None)
        function(*map(self.path, texts), *paths[len(texts) :])
        return 0

    return operation


class SlowDirectory(BackedDirectory):
    """Passes every operation on to the backing directory, late."""

    def __init__(self, backing: str) -> None:
        super().__init__(backing)
        self.lists: dict[str, tuple[float, list[tuple[str, dict[str, int], int]]]] = {}

    def path(self, path: str) -> str:
        # libfuse gives a removed file that is open a name from a counter; two hosts would give two files one name.
        return super().path(path.replace("/.fuse_hidden", f"/.fuse_hidden-{os.getpid()}-"))

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        time.sleep(READ_S)
        found = super().getattr(path, fh)
        self._require_not_removed(found["st_nlink"])
        return found

    def readdir(self, path: str, fh: int) -> list[Any]:  # noqa: ARG002
        time.sleep(READ_S)
        read_at, found = self.lists.get(path, (0.0, []))
        if time.monotonic() - read_at > STALE_LIST_S:
            with os.scandir(self.path(path)) as items:
                # Only the kind of the file is reported; the number 0 would hide the name.
                kinds = [(item.name, stat.S_IFDIR if item.is_dir() else stat.S_IFREG, item.inode()) for item in items]
            found = [(name, {"st_mode": kind, "st_ino": number}, 0) for name, kind, number in kinds]
            self.lists[path] = (time.monotonic(), found)
        own = {"st_mode": stat.S_IFDIR, "st_ino": os.lstat(self.path(path)).st_ino}
        return [(".", own, 0), ("..", own, 0), *found]

    def open(self, path: str, flags: int) -> int:
        time.sleep(OPEN_S)
        try:
            return super().open(path, flags)
        except FileNotFoundError:
            # The caller has looked it up, so it was there: the kernel then looks again.
            raise OSError(errno.ESTALE, "stale file handle") from None

    def create(self, path: str, mode: int, flags: int) -> int:
        time.sleep(CHANGE_S)
        self.lists.pop(os.path.dirname(path), None)
        return super().create(path, mode, flags)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        time.sleep(READ_S)
        self._require_not_removed(os.fstat(fh).st_nlink)
        return super().read(path, size, offset, fh)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        time.sleep(READ_S)
        self._require_not_removed(os.fstat(fh).st_nlink)
        return super().write(path, data, offset, fh)

    def fsync(self, path: str, datasync: int, fh: int) -> int:  # noqa: ARG002
        time.sleep(CHANGE_S)
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        time.sleep(READ_S)
        return super().truncate(path, length, fh)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        time.sleep(READ_S)
        return super().utimens(path, times)

    mkdir, rmdir, unlink, rename, chmod = map(changing, (os.mkdir, os.rmdir, os.unlink, os.rename, os.chmod))

    def _require_not_removed(self, links: int) -> None:
        # A network server has no memory of who has a removed file open.
        if links == 0:
            raise OSError(errno.ESTALE, "stale file handle")


class LockingDirectory(SlowDirectory):
    """One whose server keeps the locks of all hosts."""

    def flock(self, path: str, fh: int, op: int) -> int:  # noqa: ARG002
        time.sleep(READ_S)
        fcntl.flock(fh, op)
        return 0


class LocklessDirectory(SlowDirectory):
    """One whose server answers no question for a lock."""

    def flock(self, path: str, fh: int, op: int) -> int:  # noqa: ARG002
        raise OSError(errno.ENOLCK, "no locks available")


# Locks that hold for all hosts, for the processes of one host each, and none.
LOCKS = {"shared": LockingDirectory, "local": SlowDirectory, "ENOLCK": LocklessDirectory}


def main(backing: str, mountpoint: str, locks: str) -> None:
    """Serve ``backing`` at ``mountpoint`` until it is unmounted."""
    mfusepy.FUSE(
        LOCKS[locks](backing),
        mountpoint,
        foreground=True,
        direct_io=True,  # NFS asks the server at each open: what is read ends where the file ends now
        attr_timeout=STALE_S,
        entry_timeout=STALE_S,
        negative_timeout=STALE_S,
        use_ino=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
