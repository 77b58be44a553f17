"""A file system that can lose power: a FUSE mount over a directory. Run as a program it serves one mount.

What was written to a file since its last ``fsync`` is lost when power is lost: the file is then empty. Names remain.
That is what ext4 and XFS may leave of files that were made and renamed just before.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import mfusepy


class UnsyncedDirectory(mfusepy.Operations):
    """Passes every operation to the backing directory, and remembers which files were not synced."""

    use_ns = True

    def __init__(self, backing: str) -> None:
        self._backing = backing
        self._unsynced: set[int] = set()

    def lose_power(self) -> None:
        """Empty the files that were not synced."""
        for path in Path(self._backing).rglob("*"):
            if path.is_file() and not path.is_symlink() and path.stat().st_ino in self._unsynced:
                os.truncate(path, 0)
        self._unsynced.clear()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.lstat(self._backing + path) if fh is None else os.fstat(fh)
        found = {
            name: getattr(status, name) for name in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_ino")
        }
        return {**found, **{f"st_{name}time": getattr(status, f"st_{name}time_ns") for name in "amc"}}

    def readdir(self, path: str, fh: int) -> list[str]:  # noqa: ARG002
        return [".", "..", *os.listdir(self._backing + path)]

    def open(self, path: str, flags: int) -> int:
        return os.open(self._backing + path, flags & ~os.O_APPEND)

    def create(self, path: str, mode: int, flags: int) -> int:
        file = os.open(self._backing + path, (flags | os.O_CREAT) & ~os.O_APPEND, mode)
        self._unsynced.add(os.fstat(file).st_ino)
        return file

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:  # noqa: ARG002
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:  # noqa: ARG002
        self._unsynced.add(os.fstat(fh).st_ino)
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._backing + path if fh is None else fh, length)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:  # noqa: ARG002
        self._unsynced.discard(os.fstat(fh).st_ino)
        return 0

    def release(self, path: str, fh: int) -> int:  # noqa: ARG002
        os.close(fh)
        return 0

    def rename(self, old: str, new: str) -> int:
        os.rename(self._backing + old, self._backing + new)
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._backing + path)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self._backing + path, mode)
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._backing + path)
        return 0

    def symlink(self, target: str, source: str) -> int:
        os.symlink(source, self._backing + target)
        return 0

    def readlink(self, path: str) -> str:
        return os.readlink(self._backing + path)

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._backing + path, mode)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self._backing + path, ns=times)
        return 0


def main(backing: str, mountpoint: str) -> None:
    """Serve ``backing`` at ``mountpoint`` until it is unmounted; SIGUSR1 means that power is lost."""
    directory = UnsyncedDirectory(backing)

    def lose_power(number: int, frame: object) -> None:  # noqa: ARG001
        directory.lose_power()
        Path(backing).with_name("power_lost").touch()

    signal.signal(signal.SIGUSR1, lose_power)
    # One thread, which Python's signal handlers need; the kernel keeps neither pages nor sizes of files.
    options = {"direct_io": False, "kernel_cache": False, "attr_timeout": 0}
    mfusepy.FUSE(directory, mountpoint, foreground=True, nothreads=True, **options)


if __name__ == "__main__":
    main(*sys.argv[1:])
