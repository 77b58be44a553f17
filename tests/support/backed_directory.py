"""A FUSE file system over a directory, for those of tests and benchmarks that differ from it."""

from __future__ import annotations

import os
from typing import Any

import mfusepy

_DROPPED = os.O_APPEND | os.O_DIRECT  # the kernel has worked out where to write; our buffers are not aligned
_FACTS = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_ino", "st_blocks")


class BackedDirectory(mfusepy.Operations):
    """Passes every operation to the backing directory."""

    use_ns = True

    def __init__(self, backing: str) -> None:
        self.backing = backing

    def path(self, path: str) -> str:
        """Where a file of the mount is."""
        return self.backing + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.lstat(self.path(path)) if fh is None else os.fstat(fh)
        times = {f"st_{name}time": getattr(status, f"st_{name}time_ns") for name in "amc"}
        return {**{name: getattr(status, name) for name in _FACTS}, **times}

    def readdir(self, path: str, fh: int) -> list[Any]:  # noqa: ARG002
        return [".", "..", *os.listdir(self.path(path))]

    def open(self, path: str, flags: int) -> int:
        return os.open(self.path(path), flags & ~_DROPPED)

    def create(self, path: str, mode: int, flags: int) -> int:
        return os.open(self.path(path), (flags | os.O_CREAT) & ~_DROPPED, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:  # noqa: ARG002
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:  # noqa: ARG002
        return os.pwrite(fh, data, offset)

    def release(self, path: str, fh: int) -> int:  # noqa: ARG002
        os.close(fh)
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self.path(path) if fh is None else fh, length)
        return 0

    def rename(self, old: str, new: str) -> int:
        os.rename(self.path(old), self.path(new))
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self.path(path))
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self.path(path), mode)
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self.path(path))
        return 0

    def symlink(self, target: str, source: str) -> int:
        os.symlink(source, self.path(target))
        return 0

    def readlink(self, path: str) -> str:
        return os.readlink(self.path(path))

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self.path(path), mode)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self.path(path), ns=times)
        return 0
