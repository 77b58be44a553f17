"""The folders of a cache, and which directories may become a cache.

::

    <root>/accel-ops-cache         the signature: this directory is a cache, and for whom
    <root>/v1/ops/<op>/<plan key>/<build key>/   manifest.json and the binary; never changed
    <root>/v1/staging/             running builds, each in its own directory
    <root>/v1/rejected/            damaged entries: the binary does not match its manifest
    <root>/v1/objects/             compiled sources, each with the headers that it read
    <root>/v1/sycl_kernels/        kernels that the SYCL runtime compiled, in its own layout
    <root>/v1/locks/ logs/ memo/   locks of builds, the compilers' output, remembered facts

A directory becomes a cache only if it is absent or empty. In a cache, only names of :data:`GENERATED` are ever removed.
"""

import contextlib
import errno
import os
import re
import stat
from pathlib import Path
from typing import IO, NamedTuple

from op_builder import env
from op_builder.cache.ownership import (
    SIGNATURE,
    TITLE,
    TO_SHARE,
    open_file,
    ownership_rejection,
    signature,
    signed_group,
)
from op_builder.errors import ArgumentError, CacheError
from op_builder.system.file_contents import replace_text
from op_builder.system.outcomes import Rejection
from op_builder.system.records import Memo, is_name

# Raise it when old records would look damaged, or the meaning of a folder changes.
HOME = "v1"
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Built ops of accel-ops.\n"
_FRESH = f".{SIGNATURE}."
OPEN_TO_READERS, OPEN_TO_GROUP = 0o755, 0o2775

OPS, STAGING, REJECTED, LOGS, LOCKS, MEMO = "ops", "staging", "rejected", "logs", "locks", "memo"
OBJECTS, KERNELS = "objects", "sycl_kernels"

_DIGEST = "[0-9a-f]{32}"
_RANDOM = "[a-z0-9_]{8}"
# What a directory may have that becomes a cache: a new file system's lost+found, temporary files of a killed process,
# and what network file systems make of a removed file that is open.
_OF_NOBODY = re.compile(rf"lost\+found|{re.escape(_FRESH)}{_RANDOM}|\.(?:nfs|fuse_hidden)[\w-]+")
GENERATED: dict[str, tuple[str, ...]] = {
    OPS: (r"[^\W\d]\w*", _DIGEST, _DIGEST),
    STAGING: (rf"\w+@[^@]*@\d+@{_RANDOM}",),
    REJECTED: (rf"{_DIGEST}-{_RANDOM}",),
    LOGS: (r"\w+-\d{8}-\d{6}-\d+\.log",),
    LOCKS: (rf"\w+-{_DIGEST}\.lock",),
    MEMO: (rf"{_DIGEST}\.json|\.staged-{_RANDOM}",),
    OBJECTS: (rf"\w+-{_DIGEST}\.zip",),
    KERNELS: (r"\d+", r"\d+"),
}
"""By folder, the pattern of the names that accel-ops (or the SYCL runtime) makes in it, level by level."""


def default_cache_dir() -> Path:
    """``$ACCEL_CACHE_DIR``, else ``accel-ops`` below ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        CacheError: this user has no home directory, or the current directory was deleted.
    """
    requested = env.ACCEL_CACHE_DIR.get()
    if requested is None:
        return user_cache_dir()
    try:
        return requested.absolute()
    except FileNotFoundError:
        raise CacheError(
            f"ACCEL_CACHE_DIR={str(requested)!r} is relative and the current directory was deleted.",
            "Set ACCEL_CACHE_DIR to an absolute path, or change to an existing directory.",
        ) from None


def user_cache_dir(name: str = "accel-ops") -> Path:
    """``name`` below ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        ArgumentError: ``name`` is not the name of a directory.
        CacheError: this user has no home directory.
    """
    if not is_name(name):
        raise ArgumentError(f"A cache cannot be named {name!r}.", "Use a name such as 'my_project', without '/'.")
    base = env.XDG_CACHE_HOME.get()
    if base is not None and base.is_absolute():  # the XDG specification has programs ignore a relative one
        return base / name
    try:
        home = Path.home()
    except RuntimeError:  # an id without an entry in the user database, as in containers
        raise CacheError("This user has no home directory for the cache.", "Set ACCEL_CACHE_DIR.") from None
    if not home.is_absolute():
        raise CacheError(
            f"HOME={str(home)!r} is relative, so it names no place for the cache.",
            "Set ACCEL_CACHE_DIR, or set HOME to an absolute path.",
        )
    return home / ".cache" / name


def memo(root: Path) -> Memo:
    """The memos of the cache at ``root``; if it cannot be written, also those of the user's own cache.

    A memo names programs that are run, so it must be trusted like a binary.
    """
    places = [root] if ownership_rejection(str(root), HOME, MEMO) is None else []
    if os.path.exists(root) and not (places and os.access(root, os.W_OK)):
        with contextlib.suppress(CacheError):
            own = user_cache_dir()
            places += [own] if ownership_rejection(str(own), HOME, MEMO) is None else []
    directories = (place / HOME / MEMO for place in places)
    return Memo(*directories, create=_create_folder, open_file=_open_memo, open_lock=_open_memo_lock)


def _open_memo(path: Path) -> int:
    opened = open_file(str(path.parents[2]), str(path))
    if isinstance(opened, Rejection):
        raise OSError(errno.EACCES, opened.reason, str(path))
    return opened


def _open_memo_lock(directory: Path, name: str) -> IO[str]:
    _create_folder(directory.with_name(LOCKS))
    return open_lock(directory.parents[1], name)


def open_lock(root: Path, name: str) -> IO[str]:
    """Open a file in LOCKS that processes lock; no other user may lock it.

    Raises:
        OSError: it cannot be opened.
    """
    mode = modes(root).lock
    options = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(root / HOME / LOCKS / name, options, mode)
    with contextlib.suppress(OSError):  # another member of the group made it
        os.fchmod(descriptor, mode)
    return os.fdopen(descriptor, "a+")


def _create_folder(directory: Path) -> None:
    """Create the directory of a cache's memos or locks."""
    root = directory.parents[1]
    if location_rejection(root) is not None:
        raise OSError(errno.EACCES, "It is not a cache", str(root))
    claim(root)
    make_directory(directory, modes(root).directory)


class Modes(NamedTuple):
    """The modes of a cache's new files and directories, which do not depend on the umask."""

    directory: int
    file: int
    lock: int


_PRIVATE = Modes(OPEN_TO_READERS, 0o644, 0o600)  # whoever can lock a file can delay builds
_SHARED = Modes(OPEN_TO_GROUP, 0o664, 0o660)


def modes(root: Path) -> Modes:
    """The modes for what is made in the cache at ``root``."""
    return _PRIVATE if signed_group(str(root)) is None else _SHARED


def location_rejection(root: Path) -> Rejection | None:
    """Why ``root`` must not be used as a cache; None if it may, or if only writing to it can show that."""
    names: list[str] | None
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        is_other = os.path.exists(root)  # else a file is above it, which writing reports
        return Rejection(f"{root} is not a directory.", "Set ACCEL_CACHE_DIR to a directory.") if is_other else None
    except OSError:
        if not os.access(root, os.W_OK | os.X_OK):
            return None  # writing will fail with the reason
        names = None
    if not _is_signed(root):
        if names is None:
            return Rejection(f"{root} cannot be listed, so it may contain files of yours.", f"Run `chmod u+r {root}`.")
        foreign = sorted(name for name in names if not _OF_NOBODY.fullmatch(name))
        if foreign:
            return Rejection(
                f"{root} is not empty and not a cache of accel-ops (it contains {foreign[0]!a:.80}).",
                f"Use a new or empty cache directory (ACCEL_CACHE_DIR), for example {root / 'accel-ops'}.",
            )
        with contextlib.suppress(OSError):
            status = os.stat(root)
            is_for_all = status.st_mode & stat.S_ISVTX  # /tmp or /dev/shm, which must stay open to all users
            if not is_for_all and status.st_uid == os.geteuid() == os.lstat(root).st_uid:
                return None  # claim() corrects its mode
        if (rejection := ownership_rejection(str(root))) is not None:
            example = f", for example {root / 'accel-ops'}" if os.access(root, os.W_OK | os.X_OK) else ""
            return Rejection(
                rejection.reason, f"Use a new cache directory of your own (ACCEL_CACHE_DIR){example}. {TO_SHARE}"
            )
    return ownership_rejection(str(root), HOME)


def claim(root: Path) -> None:
    """Make ``root`` a cache if it is not one: create and sign it, and make the directory for everything else.

    Call :func:`location_rejection` first.
    """
    if not _is_signed(root):
        make_directory(root.parent, None)
        try:
            os.mkdir(root, 0o700)
            os.chmod(root, 0o700)
        except FileExistsError:
            close_to_others(root)
        sign(root)
    home = root / HOME
    make_directory(home, modes(root).directory)
    if not os.path.lexists(home / "CACHEDIR.TAG"):
        replace_text(home / "CACHEDIR.TAG", _TAG, prefix=_FRESH, is_durable=True)


def close_to_others(root: Path) -> None:
    """Remove other users' right to write from an empty directory of this user."""
    status = os.stat(root)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root))
    if status.st_uid == os.geteuid() and status.st_mode & 0o022:
        os.chmod(root, stat.S_IMODE(status.st_mode) & ~0o022)


def sign(root: Path, group: int | None = None) -> None:
    """Write the signature, which may name a group that shares the cache."""
    # A cache whose signature is empty after a power cut would be refused.
    text = TITLE if group is None else f"{TITLE}group {group}\n"
    replace_text(root / SIGNATURE, text, prefix=_FRESH, is_durable=True)


def make_directory(directory: Path, mode: int | None) -> None:
    """Create a directory and its parents, if they are missing.

    Args:
        mode: of each, regardless of the umask; None for 0o755 without what the umask masks.
    """
    missing = []
    while not os.path.isdir(directory):
        missing.append(directory)
        if directory.parent == directory:
            break
        directory = directory.parent
    for place in reversed(missing):
        try:
            os.mkdir(place, 0o755 if mode is None else mode & 0o777)
        except FileExistsError:
            if not os.path.isdir(place):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place)) from None
            continue
        if mode is not None:
            os.chmod(place, mode)


def _is_signed(root: Path) -> bool:
    return signature(str(root)) is not None or _is_signature_hidden(root)


def _is_signature_hidden(root: Path) -> bool:
    """Whether the signature is listed but cannot be opened: a network file system shows another host's files late."""
    with contextlib.suppress(OSError):
        if SIGNATURE in os.listdir(root):
            try:
                os.lstat(root / SIGNATURE)
            except FileNotFoundError:
                return True
    return False
