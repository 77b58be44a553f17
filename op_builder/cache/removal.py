"""Remove what accel-ops has created in a cache, and nothing else.

Folders are opened level by level without following links, and worked on by descriptor. A name is removed only if
accel-ops generates such names in that folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from op_builder.cache.layout import GENERATED, HOME
from op_builder.cache.ownership import ownership_rejection, signature
from op_builder.messages import warn_once
from op_builder.system.outcomes import Rejection


class Folder:
    """An open folder of a cache.

    Attributes:
        path: where it is, for messages.
        descriptor: of the directory.
    """

    def __init__(self, path: Path, descriptor: int, pattern: str) -> None:
        self.path = path
        self.descriptor = descriptor
        self._pattern = pattern

    def names(self) -> list[str]:
        """The names in it that accel-ops generates, sorted, without links."""
        with contextlib.suppress(OSError):
            return sorted(name for name in os.listdir(self.descriptor) if self.has(name))
        return []

    def has(self, name: str) -> bool:
        """Whether ``name`` is one that accel-ops generates here, and not a link."""
        if not re.fullmatch(self._pattern, name):
            return False
        try:
            return not stat.S_ISLNK(self.status(name).st_mode)
        except OSError:
            return False

    def status(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)

    def modified_at(self, name: str) -> float:
        """In seconds since the epoch; 0 if it does not exist."""
        try:
            return self.status(name).st_mtime
        except OSError:
            return 0.0

    def unlink(self, name: str) -> None:
        """Remove a file, if it is still there and may be removed."""
        if self.has(name):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self.descriptor)

    def remove_tree(self, name: str) -> None:
        """Remove a directory, as far as that is permitted."""
        if self.has(name):
            _remove_tree(name, self.descriptor)


def _remove_tree(name: str, directory: int) -> None:
    # Not by rmtree(), which has no dir_fd in Python 3.10. What cannot be removed stays.
    with contextlib.suppress(OSError):
        for _, names, files, descriptor in os.fwalk(name, topdown=False, dir_fd=directory):
            for entry in (*files, *names):
                for remove in (os.unlink, os.rmdir):  # unlink() also removes links to directories
                    with contextlib.suppress(OSError):
                        remove(entry, dir_fd=descriptor)
        os.rmdir(name, dir_fd=directory)


@contextmanager
def folder(root: Path, *names: str) -> Iterator[Folder | None]:
    """The folder ``names`` of the cache at ``root``, open; None if it is missing or must not be changed."""
    descriptor = _opened(root, names)
    if descriptor is None:
        yield None
        return
    try:
        yield Folder(Path(root, HOME, *names), descriptor, GENERATED[names[0]][len(names) - 1])
    finally:
        os.close(descriptor)


def _opened(root: Path, names: tuple[str, ...]) -> int | None:
    if signature(str(root)) is None:  # not a cache, even with its names
        return None
    rejection = ownership_rejection(str(root), HOME, *names)
    descriptor = None
    if rejection is None:
        try:
            directory = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            descriptor = os.open(root, directory)
            for name in (HOME, *names):
                outer, descriptor = descriptor, os.open(name, directory | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(outer)
            return descriptor
        except FileNotFoundError:
            pass
        except OSError as error:
            place = Path(root, HOME, *names)
            rejection = Rejection(f"{place} cannot be opened: {error.strerror}.", "Remove it as its owner, or as root.")
        if descriptor is not None:
            os.close(descriptor)
    if rejection is not None:
        warn_once(logging.getLogger(__name__), f"A folder stays in the cache. {rejection}")
    return None


def places(root: Path, name: str) -> list[tuple[str, ...]]:
    """What accel-ops has created in the folder ``name``, as components of paths below the cache's home."""
    found: list[tuple[str, ...]] = [(name,)]
    for _ in GENERATED[name]:
        outer, found = found, []
        for place in outer:
            with folder(root, *place) as opened:
                found += [(*place, inner) for inner in opened.names()] if opened is not None else []
    return found
