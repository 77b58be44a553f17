"""A file system that fails as a file's name says: a FUSE mount over a directory. Run as a program it serves one mount.

Names begin with what happens: ``short`` (each request does a part), ``busy`` (EBUSY until there is a file ``released``
in the backing directory), ``lies`` (each read gives another last byte), ``EIO-4096`` and so on (that error for every
request that contains that byte), ``cut-4096`` (the first read truncates the file there). All others are sound.
"""

from __future__ import annotations

import errno
import os
import sys

import mfusepy

from tests.support.backed_directory import BackedDirectory


class FaultyDirectory(BackedDirectory):
    """Passes every operation to the backing directory, or fails it."""

    def __init__(self, backing: str) -> None:
        super().__init__(backing)
        self._reads: dict[str, int] = {}

    def _fault(self, path: str) -> tuple[str, int]:
        name, _, at = path.lstrip("/").partition("-")
        return name, int(at or 0)

    def _fail(self, path: str, size: int, offset: int) -> None:
        fault, at = self._fault(path)
        if fault in errno.errorcode.values() and offset <= at < offset + size:
            raise OSError(getattr(errno, fault), fault)
        if fault == "busy" and not os.path.exists(f"{self.backing}/released"):
            raise OSError(errno.EBUSY, fault)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        fault, at = self._fault(path)
        self._fail(path, size, offset)
        if fault == "cut":
            os.truncate(self.path(path), at)
        if fault == "short":
            size = max(1, size * 2 // 3)
        data = super().read(path, size, offset, fh)
        if fault == "lies":
            self._reads[path] = self._reads.get(path, 0) + 1
            data = data[:-1] + bytes([data[-1] ^ self._reads[path] % 256])
        return data

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._fail(path, len(data), offset)
        if self._fault(path)[0] == "short":
            data = data[: max(1, len(data) * 2 // 3)]
        return super().write(path, data, offset, fh)


def main(backing: str, mountpoint: str) -> None:
    """Serve ``backing`` at ``mountpoint`` until it is unmounted."""
    # No page cache in between.
    mfusepy.FUSE(FaultyDirectory(backing), mountpoint, foreground=True, direct_io=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
