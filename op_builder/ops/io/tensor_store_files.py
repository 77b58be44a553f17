"""The files of a store's directory: names, and replacing one so that a reader sees the old or the new.

::

    <name>.tensor                          a tensor; never changed, only replaced by a rename
    .<host>@<process>@<random>.partial     one that is being written, locked by its writer

A reader that has opened a file keeps it as it was, whatever is renamed over it.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from op_builder.cache.staging import this_host
from op_builder.errors import OpArgumentError, StorageError, TensorNotFoundError

_SUFFIX = ".tensor"
_PARTIAL = ".partial"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
# Of another host, and where locks cannot be had, only age tells that a writer is gone.
_SURELY_OVER_S = 24 * 3600.0

_REMEDIES = {
    errno.ENOSPC: "Free space on the device",
    errno.EDQUOT: "Free space of the quota",
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f)",
    errno.EACCES: "Let this user read and write the directory",
    errno.EPERM: "Let this user read and write the directory",
    errno.EROFS: "Choose a directory on a file system that can be written",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.EIO: "Look at the system's log (dmesg): the device or its connection fails",
}


class StoreFiles:
    """The files of one directory, which is made if it is missing.

    Args:
        is_durable: whether what was published outlives a power cut.

    Raises:
        StorageError: the directory cannot be made or read.
    """

    def __init__(self, directory: Path, *, is_durable: bool) -> None:
        self.directory = directory
        self._is_durable = is_durable
        with explained(f"Opening the store {directory}", directory):
            missing = [path for path in (directory, *directory.parents) if not path.exists()]
            directory.mkdir(parents=True, exist_ok=True)
            for path in missing:
                self._settle(path.parent)
            self._sweep()

    def path(self, name: str) -> Path:
        """The file of a tensor.

        Raises:
            OpArgumentError: it is no name of a tensor.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise OpArgumentError(
                f"{name!r} is no name of a tensor.",
                "Use 1 to 200 letters, digits and the signs _ - . (not first: - .); they become the file's name.",
            )
        return self.directory / f"{name}{_SUFFIX}"

    def names(self) -> list[str]:
        """The names of all tensors, sorted."""
        with explained(f"Listing {self.directory}", self.directory):
            found = (file.removesuffix(_SUFFIX) for file in os.listdir(self.directory) if file.endswith(_SUFFIX))
            return sorted(name for name in found if _NAME.fullmatch(name))

    def has(self, name: object) -> bool:
        """Whether there is a tensor of that name."""
        return isinstance(name, str) and _NAME.fullmatch(name) is not None and self.path(name).exists()

    def open_to_read(self, name: str) -> int:
        """A descriptor of a tensor's file as it is now.

        Raises:
            TensorNotFoundError: there is none of that name.
        """
        path = self.path(name)
        with explained(f"Opening {path}", path), self._missing_explained(name):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def delete(self, name: str) -> None:
        """Remove a tensor's file.

        Raises:
            TensorNotFoundError: there is none of that name.
        """
        path = self.path(name)
        with explained(f"Deleting {path}", path):
            with self._missing_explained(name):
                path.unlink()
            self._settle(self.directory)

    @contextmanager
    def replacement(self, name: str) -> Iterator[int]:
        """A descriptor of a new, empty file, which becomes the tensor's if the block ends without an exception."""
        path = self.path(name)
        with explained(f"Saving {path}", path):
            partial, descriptor = self._new_partial()
        try:
            yield descriptor
            with explained(f"Saving {path}", path):
                if self._is_durable:
                    os.fsync(descriptor)
                os.replace(partial, path)
            with explained(f"Making sure that the new {path} outlives a power cut", path):
                self._settle(self.directory)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        finally:
            os.close(descriptor)  # and with it goes the lock

    def _new_partial(self) -> tuple[Path, int]:
        while True:
            partial = self.directory / f".{this_host()}@{os.getpid()}@{secrets.token_hex(8)}{_PARTIAL}"
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                with contextlib.suppress(OSError):  # a file system without locks: age tells
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.path.exists(partial):  # it may have been swept before it was locked
                    return partial, descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what writers that were killed have left."""
        for file in os.listdir(self.directory):
            if file.startswith(".") and file.endswith(_PARTIAL):
                with contextlib.suppress(OSError):  # another process sweeps too, or may not be let
                    _remove_if_abandoned(self.directory / file)

    def _settle(self, directory: Path) -> None:
        """Have a directory's entries outlive a power cut."""
        if not self._is_durable:
            return
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network file systems cannot, and need not
                raise
        finally:
            os.close(descriptor)

    @contextmanager
    def _missing_explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            near = difflib.get_close_matches(name, self.names(), n=3)
            raise TensorNotFoundError(
                f"{self.directory} has no tensor {name!r}.",
                f"Did you mean {' or '.join(near)}?" if near else "names() tells which there are.",
            ) from None


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Let errors of the system, and of the op below, name the file of the store."""
    try:
        yield
    except OSError as error:
        number = error.errno or errno.EIO
        what = error.message if isinstance(error, StorageError) else f"{os.strerror(number)}."
        kept = "The store keeps the value from before." if doing.startswith("Saving") else ""
        known = _REMEDIES.get(number)
        remedy = " ".join(part for part in (known and f"{known}.", kept) if part)
        raise StorageError(
            f"{doing} failed: {what}",
            remedy,
            errno=number,
            filename=str(path),
            offset=getattr(error, "offset", 0),
            bytes_done=getattr(error, "bytes_done", 0),
        ) from error


def _remove_if_abandoned(partial: Path) -> None:
    host = partial.name[1:].partition("@")[0]
    descriptor = os.open(partial, os.O_RDWR | os.O_CLOEXEC)
    try:
        is_old = time.time() - os.fstat(descriptor).st_mtime > _SURELY_OVER_S
        is_abandoned = is_old
        if host == this_host():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_abandoned = True
            except BlockingIOError:
                is_abandoned = False
            except OSError:  # no locks here
                pass
        if is_abandoned:
            partial.unlink()  # still locked, so that a writer that is about to lock it sees that it is gone
    finally:
        os.close(descriptor)
