"""The files of a store's directory: names, and replacing one so that a reader sees the old or the new.

::

    <name>.safetensors                     a tensor; never changed, only replaced by a rename
    .<host>@<process>@<random>.partial     one that is being written, locked by its writer

A reader that has opened a file keeps its content, whatever is renamed over it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from op_builder.errors import OpArgumentError, StorageError, TensorNotFoundError
from op_builder.messages import did_you_mean
from op_builder.ops.io.aio_operation import REMEDIES, opened
from op_builder.system.file_contents import file_system_now
from op_builder.system.file_lock import try_lock
from op_builder.system.host import this_host

_SUFFIX = ".safetensors"
_PARTIAL = ".partial"
_NAME = re.compile(r"(?!__metadata__$)[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
# On another host, or without locks, a writer counts as dead when its file is this old.
_ABANDONED_S = 24 * 3600.0
# Only files with such names, from :meth:`StoreFiles.new_partial`, are removed.
_GENERATED = re.compile(rf"\.[^@]+@\d+@[0-9a-f]{{16}}{re.escape(_PARTIAL)}")


class StoreFiles:
    """The files of one directory, which is created if it is missing.

    With ``is_durable`` published files outlive a power cut.
    """

    def __init__(self, directory: Path, *, is_durable: bool) -> None:
        self.directory = directory
        self._is_durable = is_durable
        with explained(f"Opening the directory {directory}", directory):
            missing = [path for path in (directory, *directory.parents) if not path.exists()]
            directory.mkdir(parents=True, exist_ok=True)
            for path in missing:
                self.sync_entries(path.parent)
            self._sweep()

    def path(self, name: str) -> Path:
        """The file of a tensor; raises an OpArgumentError for an invalid name."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise OpArgumentError(
                f"A tensor cannot be stored under the name {name!r}, which becomes the name of a file.",
                "Use 1 to 200 letters, digits, '_', '-' and '.', begin with a letter, a digit or '_', and do not use "
                "'__metadata__'.",
            )
        return self.directory / f"{name}{_SUFFIX}"

    def names(self) -> list[str]:
        """The names of all tensors, sorted."""
        with explained(f"Listing {self.directory}", self.directory):
            found = (file.removesuffix(_SUFFIX) for file in os.listdir(self.directory) if file.endswith(_SUFFIX))
            return sorted(name for name in found if _NAME.fullmatch(name))

    def has(self, name: object) -> bool:
        """Whether there is a tensor of that name."""
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            return False
        with explained(f"Looking for {name} in {self.directory}", self.directory):
            return self.path(name).exists()

    def open_to_read(self, name: str) -> int:
        """A descriptor of a tensor's current file, or a TensorNotFoundError."""
        path = self.path(name)
        with explained(f"Opening {path}", path), self._missing_explained(name):
            return opened(path)

    def delete(self, name: str) -> None:
        """Remove a tensor's file, or raise a TensorNotFoundError."""
        path = self.path(name)
        with explained(f"Deleting {path}", path):
            with self._missing_explained(name):
                path.unlink()
            self.sync_entries()

    @contextmanager
    def replacement(self, name: str) -> Iterator[int]:
        """A descriptor of a new, empty file, which becomes the tensor's if the block ends without an exception."""
        path = self.path(name)
        with explained(f"Saving {path}", path):
            partial, descriptor = self.new_partial()
        try:
            yield descriptor
            with explained(f"Saving {path}", path):
                if self._is_durable:
                    os.fsync(descriptor)
                os.replace(partial, path)
            with explained(f"Making sure that the new {path} outlives a power cut", path):
                self.sync_entries()
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        finally:
            os.close(descriptor)  # and release the lock

    def partials(self) -> list[Path]:
        """The files that are being written, as far as is known."""
        return [self.directory / file for file in os.listdir(self.directory) if _GENERATED.fullmatch(file)]

    def new_partial(self) -> tuple[Path, int]:
        """A new, empty file that is locked while its descriptor is open."""
        while True:
            partial = self.directory / f".{this_host()}@{os.getpid()}@{secrets.token_hex(8)}{_PARTIAL}"
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                is_ours = True
                with contextlib.suppress(OSError):  # a file system without locks
                    is_ours = try_lock(descriptor)
                if is_ours and os.path.exists(partial):  # else another process took its writer for dead
                    return partial, descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove the files of writers that were killed."""
        partials = self.partials()
        now = file_system_now(self.directory) if partials else 0.0
        for partial in partials:
            with contextlib.suppress(OSError):  # another process removed it, or the user may not; or it is a link
                _remove_if_abandoned(partial, now)

    def sync_entries(self, directory: Path | None = None) -> None:
        """Make the entries of a directory, by default the store's, outlive a power cut."""
        if not self._is_durable:
            return
        descriptor = os.open(directory or self.directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network file systems do not support it, and do not need it
                raise
        finally:
            os.close(descriptor)

    @contextmanager
    def _missing_explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise TensorNotFoundError(
                f"The store in {self.directory} has no tensor {name!r}.",
                did_you_mean(name, self.names()) or "names() lists its tensors.",
            ) from None


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn errors of the system and of ``async_io`` into StorageErrors that name the file."""
    try:
        yield
    except OSError as error:
        number = error.errno or errno.EIO
        what = error.message if isinstance(error, StorageError) else f"{os.strerror(number)}."
        kept = "The earlier file is unchanged." if doing.startswith("Saving") else ""
        remedy = " ".join(part for part in (REMEDIES.get(number), kept) if part)
        raise StorageError(
            f"{doing} failed: {what}",
            remedy,
            errno=number,
            filename=str(path),
            offset=getattr(error, "offset", 0),
            bytes_done=getattr(error, "bytes_done", 0),
        ) from error


def _remove_if_abandoned(partial: Path, now: float) -> None:
    host = partial.name[1:].partition("@")[0]
    descriptor = os.open(partial, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        is_abandoned = now - os.fstat(descriptor).st_mtime > _ABANDONED_S
        if host == this_host():
            with contextlib.suppress(OSError):  # a file system without locks
                is_abandoned = try_lock(descriptor)
        if is_abandoned:
            partial.unlink()  # still locked: a writer that is about to lock it then sees that it is removed
    finally:
        os.close(descriptor)
