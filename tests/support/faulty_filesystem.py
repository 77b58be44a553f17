"""A file system that fails as a file's name says: a FUSE mount over a directory. Run as a program it serves one mount.

Names begin with what happens: ``short`` (each request does a part), ``busy`` (EBUSY until there is a file ``released``
in the backing directory), ``lies`` (each read gives another last byte), ``EIO-4096`` and so on (that error for every
request that contains that byte), ``cut-4096`` (the first read truncates the file there). All others are sound.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import mfusepy


class FaultyDirectory(mfusepy.Operations):
    """Passes every operation to the backing directory, or fails it."""

    use_ns = True

    def __init__(self, backing: str) -> None:
        self._backing = backing
        self._reads: dict[str, int] = {}

    def _fault(self, path: str) -> tuple[str, int]:
        name, _, at = path.lstrip("/").partition("-")
        return name, int(at or 0)

    def _fail(self, path: str, size: int, offset: int) -> None:
        fault, at = self._fault(path)
        if fault in errno.errorcode.values() and offset <= at < offset + size:
            raise OSError(getattr(errno, fault), fault)
        if fault == "busy" and not os.path.exists(f"{self._backing}/released"):
            raise OSError(errno.EBUSY, fault)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.lstat(self._backing + path) if fh is None else os.fstat(fh)
        return {name: getattr(status, name) for name in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size")}

    def open(self, path: str, flags: int) -> int:
        return os.open(self._backing + path, flags & ~(os.O_APPEND | os.O_DIRECT))

    def create(self, path: str, mode: int, flags: int) -> int:
        return os.open(self._backing + path, (flags | os.O_CREAT) & ~(os.O_APPEND | os.O_DIRECT), mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        fault, at = self._fault(path)
        self._fail(path, size, offset)
        if fault == "cut":
            os.truncate(self._backing + path, at)
        if fault == "short":
            size = max(1, size * 2 // 3)
        data = os.pread(fh, size, offset)
        if fault == "lies":
            self._reads[path] = self._reads.get(path, 0) + 1
            data = data[:-1] + bytes([data[-1] ^ self._reads[path] % 256])
        return data

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._fail(path, len(data), offset)
        if self._fault(path)[0] == "short":
            data = data[: max(1, len(data) * 2 // 3)]
        return os.pwrite(fh, data, offset)

    def release(self, path: str, fh: int) -> int:  # noqa: ARG002
        os.close(fh)
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._backing + path if fh is None else fh, length)
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._backing + path)
        return 0


def main(backing: str, mountpoint: str) -> None:
    """Serve ``backing`` at ``mountpoint`` until it is unmounted."""
    # No page cache in between.
    mfusepy.FUSE(FaultyDirectory(backing), mountpoint, foreground=True, direct_io=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
