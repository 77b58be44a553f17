"""A file system that can lose power: a FUSE mount over a directory. Run as a program it serves one mount.

What was written to a file since its last ``fsync`` is lost when power is lost: the file is then empty. Names remain.
That is what ext4 and XFS may leave of files that were made and renamed just before.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import mfusepy

from tests.support.backed_directory import BackedDirectory


class UnsyncedDirectory(BackedDirectory):
    """Remembers which files were not synced."""

    def __init__(self, backing: str) -> None:
        super().__init__(backing)
        self._unsynced: set[int] = set()

    def lose_power(self) -> None:
        """Empty the files that were not synced."""
        for path in Path(self.backing).rglob("*"):
            if path.is_file() and not path.is_symlink() and path.stat().st_ino in self._unsynced:
                os.truncate(path, 0)
        self._unsynced.clear()

    def create(self, path: str, mode: int, flags: int) -> int:
        file = super().create(path, mode, flags)
        self._unsynced.add(os.fstat(file).st_ino)
        return file

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._unsynced.add(os.fstat(fh).st_ino)
        return super().write(path, data, offset, fh)

    def fsync(self, path: str, datasync: int, fh: int) -> int:  # noqa: ARG002
        self._unsynced.discard(os.fstat(fh).st_ino)
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
