"""Whose files are trusted: those of this user, of root and of the users in ``ACCEL_CACHE_TRUST``.

Whoever can write to a cache can run code as its readers. So before a binary is opened, the directories from the cache's
root to it, and the file, must belong to one of these users, and no other user may write to them. In a cache that was
made for a group, its members count as well: the signature names the group, and the modes allow only it.

Between the check and the dynamic linker's opening it by name, a file can be replaced, but only by these users and by
those who may write to a directory above the root. Opened through ``/proc/self/fd``, the library would have a name that
later means another file, and debuggers and profilers would not find it.
"""

import contextlib
import os
import stat
from collections.abc import Callable
from functools import cache, partial

from op_builder import env
from op_builder.errors import CacheError
from op_builder.system.outcomes import Rejection

SIGNATURE = "accel-ops-cache"
"""The file in a directory that marks it as a cache."""
TITLE = "This directory is a cache of accel-ops; v1 and this file may be removed at any time.\n"
TO_SHARE = "To share a cache, make one: `accel-ops cache init --shared GROUP`."
_WRITABLE_BY_OTHERS, _WRITABLE_BY_ALL = 0o022, 0o002
_ENTERED_BY_OTHERS = 0o011


def unusable(root: object, rejection: Rejection) -> CacheError:
    """The error for the cache at ``root``."""
    return CacheError(f"The cache directory {root} cannot be used. {rejection.reason}", rejection.remedy)


def ownership_rejection(root: str, *names: str) -> Rejection | None:
    """Why ``root`` or a directory below it, ``root/names[0]/...``, is not trusted; None if each is, or is missing."""
    place, group = root, cache(partial(signed_group, root))  # read at most once, and only if a file needs it
    try:
        status = os.stat(root)
        # The owners of the root and of a link to it must be trusted in a shared cache, too.
        rejection = _owner_rejection(root, status) or _owner_rejection(root, os.lstat(root))
        rejection = rejection or _rejection(group, root, status)
        for name in names:
            if rejection is not None:
                return rejection
            place = f"{place}/{name}"
            status = os.lstat(place)
            if not stat.S_ISDIR(status.st_mode):
                return Rejection(f"{place} is not a directory but a link or a file.", f"Remove {place}.")
            rejection = _rejection(group, place, status)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        remedy = "Use a cache directory of your own (ACCEL_CACHE_DIR)."
        return Rejection(f"{place} cannot be read: {error.strerror}.", remedy)
    return rejection


def ownership_rejection_below(root: str, directory: str) -> Rejection | None:
    """Why something below ``directory`` of the cache at ``root`` is not trusted; None if all of it is.

    For files that other programs create with the modes that the umask leaves. Where only the owner may enter the root,
    everything below it is trusted.
    """
    group = cache(partial(signed_group, root))
    with contextlib.suppress(OSError):
        if os.stat(root).st_mode & _ENTERED_BY_OTHERS:
            for place, names, files in os.walk(directory):
                for path in (f"{place}/{name}" for name in (*names, *files)):
                    with contextlib.suppress(FileNotFoundError):  # another process has removed it
                        if (rejection := _rejection(group, path, os.lstat(path))) is not None:
                            return rejection
    return None


def open_file(root: str, path: str) -> int | Rejection:
    """A descriptor of a file of the cache at ``root``, or why it is not trusted.

    Raises:
        OSError: it cannot be opened, or is a link.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    status = os.fstat(descriptor)
    rejection: Rejection | None = None
    if not stat.S_ISREG(status.st_mode):
        rejection = Rejection(f"{path} is not a regular file.", f"Remove {path}.")
    else:
        rejection = _rejection(partial(signed_group, root), path, status)
    if rejection is None:
        return descriptor
    os.close(descriptor)
    return rejection


def signed_group(root: str) -> int | None:
    """The group that shares the cache at ``root``; None if it is one user's."""
    try:
        status, signed = os.stat(root), os.lstat(f"{root}/{SIGNATURE}")
    except OSError:
        return None
    # In a directory that only inherited these modes, any member of its group could write a signature.
    if not status.st_mode & stat.S_ISGID or signed.st_uid != status.st_uid or signed.st_mode & _WRITABLE_BY_OTHERS:
        return None
    return status.st_gid if (signature(root) or "").endswith(f"\ngroup {status.st_gid}\n") else None


def signature(root: str) -> str | None:
    """The text of the signature in ``root``; None if there is none."""
    try:
        descriptor = os.open(f"{root}/{SIGNATURE}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        text = os.read(descriptor, 1000).decode("ascii", "replace")
    except OSError:  # it is a directory
        return None
    finally:
        os.close(descriptor)
    return text if text.startswith(TITLE) else None


def _rejection(group: Callable[[], int | None], place: str, status: os.stat_result) -> Rejection | None:
    """Why a file or directory of a cache is not trusted: its owner, or others may write to it.

    Args:
        group: returns the group that shares the cache.
    """
    owner, writers = _owner_rejection(place, status), status.st_mode & _WRITABLE_BY_OTHERS
    if (owner is not None or writers) and status.st_gid == group():
        owner, writers = None, status.st_mode & _WRITABLE_BY_ALL
    if owner is not None or not writers:
        return owner
    return Rejection(
        f"{place} can be written by other users (mode {stat.S_IMODE(status.st_mode):o}).",
        f"Run `chmod go-w {place}`. {TO_SHARE}",
    )


def _owner_rejection(place: str, status: os.stat_result) -> Rejection | None:
    user = status.st_uid
    if user in (os.geteuid(), 0) or user in env.ACCEL_CACHE_TRUST.get():
        return None
    return Rejection(
        f"{place} is owned by user {user}.",
        f"Use your own cache directory (ACCEL_CACHE_DIR), or ACCEL_CACHE_TRUST={user} if you trust that user.",
    )
