"""Contents and statuses of files, their digests, and the names in a directory."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

_CLOCK_TICK_NS = 50_000_000
_PIECE_BYTES = 1 << 16  # for larger buffers, the allocator calls the kernel each time


def file_status(path: str, *, of_link: bool = False) -> tuple[int, ...] | None:
    """(size, mtime_ns, ctime_ns, inode), or None if the file does not exist.

    Args:
        of_link: if ``path`` is a link, return the status of the link, not of its target.
    """
    try:
        status = os.lstat(path) if of_link else os.stat(path)
    except (OSError, ValueError):  # no file has a name that this locale cannot encode
        return None
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def last_touched_ns(status: tuple[int, ...] | None) -> int:
    """When a file was last written, moved or replaced, in nanoseconds; for a missing file, the largest number.

    The modification time is not enough: a file that is moved or copied may keep an old one.
    """
    return max(status[1], status[2]) if status is not None else sys.maxsize


def settled_status(path: str) -> tuple[int, ...]:
    """The status that identifies a file's content; empty, which identifies none, if it just changed.

    Two writes within one tick of the file system's clock leave the same times.
    """
    status = file_status(path)
    if status is None or time.time_ns() - last_touched_ns(status) < _CLOCK_TICK_NS:
        return ()
    return status


def mapping_error(descriptor: int) -> str:
    """Why the system maps no page of an open file as executable; empty if it does."""
    try:
        mmap.mmap(descriptor, 1, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    except OSError as error:
        return f"the system does not map its files as executable (mounted noexec?): {error.strerror}"
    return ""


def file_sha256(path: str) -> str:
    """SHA-256 of a file's content; read again only when its status has changed."""
    status = settled_status(path)
    return _settled_sha256(path, status) if status else content_sha256(path)


@lru_cache(maxsize=8192)
def _settled_sha256(path: str, _status: tuple[int, ...]) -> str:
    return content_sha256(path)


def content_sha256(path: str, *, through_links: bool = True, most_bytes: int = sys.maxsize) -> str:
    """SHA-256 of a file's content, read now regardless of its status.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than ``most_bytes``.
    """
    # Opening a named pipe would wait.
    options = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if through_links else os.O_NOFOLLOW)
    return opened_sha256(os.open(path, options), path, most_bytes)


def opened_sha256(descriptor: int, path: str, most_bytes: int) -> str:
    """:func:`content_sha256` of an open file, which it closes; ``path`` is for messages."""
    digest = hashlib.sha256()
    with open(descriptor, "rb", buffering=0) as file:
        # Reading a device may not end.
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "It is not a regular file", path)
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            most_bytes -= len(piece)
            if most_bytes < 0:  # a file without blocks may have terabytes
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return digest.hexdigest()


def file_system_now(directory: Path) -> float:
    """The current time of the file system of ``directory``, which may differ from this host's clock.

    Files that other hosts have written have the file system's times.
    """
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=directory) as file:
        return os.fstat(file.fileno()).st_mtime
    return time.time()


def replace_text(path: Path, text: str, *, prefix: str, is_durable: bool = False) -> None:
    """Replace a file atomically by one that all users may read.

    Args:
        prefix: of the temporary file's name, which a killed process leaves behind.
        is_durable: whether the text outlives a power cut (``fsync``). Without it, a power cut may leave an empty file.
    """
    handle, staged = tempfile.mkstemp(dir=path.parent, prefix=prefix)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            os.fchmod(handle, 0o644)
            file.write(text)
            if is_durable:
                file.flush()
                os.fsync(handle)
        os.replace(staged, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(staged)
        raise


def text_sha256(text: str) -> str:
    """SHA-256 of a source given as text."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def contents_digest(paths: Iterable[str]) -> str:
    """One digest of the contents of files, in their order."""
    return hashlib.sha256("\n".join(file_sha256(path) for path in paths).encode()).hexdigest()


def statuses_digest(paths: Iterable[str]) -> str:
    """One digest of the statuses of files, in their order."""
    return hashlib.sha256(repr([file_status(path) for path in paths]).encode()).hexdigest()


def subdirectories(directory: Path) -> list[Path]:
    """The directories in ``directory``, by name; none where it cannot be read."""
    try:
        with os.scandir(directory) as found:
            return sorted(Path(item.path) for item in found if item.is_dir())
    except OSError:
        return []
