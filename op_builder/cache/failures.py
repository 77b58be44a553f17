"""Why a cache cannot be used, and the errors about it."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from op_builder.cache import layout
from op_builder.cache.ownership import ownership_rejection, unusable
from op_builder.errors import CacheError
from op_builder.system.file_contents import mapping_error
from op_builder.system.process import remedy_of_limit

_WRITTEN = (layout.STAGING, layout.LOCKS, layout.LOGS, layout.OPS)  # directories that a build writes to
_FULL = (errno.ENOSPC, errno.EDQUOT)
_WRITABLE_REMEDY = (
    "Use a cache directory (ACCEL_CACHE_DIR) that you can write to and that is not mounted noexec, or prebuilt ops."
)


@contextmanager
def errors_explained(root: Path) -> Iterator[None]:
    """Turn an OSError of the body into a CacheError of the cache at ``root``, with a remedy."""
    try:
        yield
    except CacheError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(root) from error
        place = str(error.filename or root)
        is_related = root in (Path(place), *Path(place).parents) or Path(place) in root.parents
        if os.path.isabs(place) and not is_related:
            if isinstance(error, PermissionError):
                remedy = f"Run `ls -l {place}`, let this user read the file, then load the op again."
            else:
                remedy = "Correct this file, or its name in the op's sources, include directories or flags."
            remedy = remedy_of_limit(str(error.strerror)) or remedy
            raise CacheError(f"{place} cannot be used: {error.strerror}.", remedy) from error
        raise _unwritable(root, _existing(Path(place)), error.strerror) from error


def cache_error(root: Path, op: str = "") -> CacheError | None:
    """Why a binary (of ``op``) cannot be written to the cache at ``root`` and opened there; creates nothing.

    Every existing directory that a build writes to is tried, because another user may own one of them.
    """
    names = [(), *((name,) for name in _WRITTEN), *([(layout.OPS, op)] if op else [])]
    rejections = (ownership_rejection(str(root), layout.HOME, *name) for name in names)
    if (rejection := layout.location_rejection(root) or next(filter(None, rejections), None)) is not None:
        return unusable(root, rejection)
    places = dict.fromkeys(_existing(path) for path in (root, *(root.joinpath(layout.HOME, *name) for name in names)))
    return next((error for place in places if (error := _writing_error(root, place))), None)


def _existing(path: Path) -> Path:
    """``path`` or the closest of its parents that exists."""
    while not os.path.lexists(path) and path.parent != path:
        path = path.parent
    return path


def _writing_error(root: Path, directory: Path) -> CacheError | None:
    """Why no binary can be written to ``directory`` of the cache and opened there."""
    reason: str | None
    if not os.path.isdir(directory):
        reason = "it is not a directory"
    else:
        try:
            # Tried, because permissions, read-only mounts and quotas can refuse in many ways.
            with tempfile.TemporaryFile(dir=directory) as file:
                file.truncate(1)
                reason = mapping_error(file.fileno())
        except OSError as error:
            if error.errno in _FULL:
                return disk_full(root)
            reason = error.strerror or str(error)
    return _unwritable(root, directory, reason) if reason else None


def _unwritable(root: Path, place: Path, reason: str | None) -> CacheError:
    return CacheError(
        f"The cache directory {root} cannot be written: {reason} ({place}{_owned_by(place)}).",
        remedy_of_limit(str(reason)) or _WRITABLE_REMEDY,
    )


def _owned_by(path: Path) -> str:
    """A note with the owner of ``path`` if that is another user."""
    try:
        owner = os.stat(path).st_uid
    except (OSError, ValueError):
        return ""
    return f", owned by user {owner}" if owner != os.geteuid() else ""


def disk_full(root: Path) -> CacheError:
    """The error for a cache directory on a full disk."""
    with contextlib.suppress(OSError):
        system = os.statvfs(_existing(root))
        if system.f_files and not system.f_favail and system.f_bavail:
            return CacheError(
                f"The file system of the cache directory {root} cannot hold more files (no inodes are left).",
                "Run `accel-ops cache prune --unused`, delete other files, or set ACCEL_CACHE_DIR to another disk.",
            )
    return CacheError(
        f"No space left on the disk of the cache directory {root}.",
        "Run `accel-ops cache prune --max-size 1G`, free other space, or set ACCEL_CACHE_DIR to another disk.",
    )
