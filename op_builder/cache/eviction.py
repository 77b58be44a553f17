"""Keep the cache within its size limit: which entries are in use, and which may be removed.

An entry's last use is the modification time of its manifest; a hit renews it, at most twice a minute. A process that
has opened an entry keeps it on a local disk. On a network file system, removal breaks processes of other hosts: there,
only entries that were not used for a week are removed automatically.

Logs of failed builds, entries that were set aside, objects, and SYCL kernels that the runtime has compiled are not
needed. They count in the cache's bound, and are removed before any entry. Locks and memos are small, but each key
leaves some; builds that were killed leave their staging directories.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from op_builder import env
from op_builder.cache import staging
from op_builder.cache.layout import KERNELS, LOCKS, LOGS, MEMO, OBJECTS, OPS, REJECTED, STAGING
from op_builder.cache.removal import Folder, folder, places
from op_builder.cache.staging import SURELY_OVER_S
from op_builder.cache.store import MANIFEST, Cache, Entry
from op_builder.errors import CacheError
from op_builder.messages import warn_once
from op_builder.system.file_contents import file_system_now
from op_builder.system.file_lock import try_lock
from op_builder.system.outcomes import Rejection

logger = logging.getLogger(__name__)

# An entry that was used so recently may be about to be opened, and a log's path about to be read.
_JUST_USED_S = 60.0
# On a file system that other hosts may share, a process may still use what it opened so long ago.
_PERHAPS_USED_S = 7 * 24 * 3600.0
_OLD_MEMO_S = 30 * 24 * 3600.0
_MOUNTS = Path("/proc/self/mounts")
_NETWORK_FILE_SYSTEMS = (
    *("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "gluster", "afs", "9p", "panfs", "fuse"),
)
_LEFTOVERS = (REJECTED, LOGS, OBJECTS, KERNELS)
_SMALL = (LOCKS, MEMO, STAGING)


@dataclass(frozen=True)
class Item:
    """A log, an object, or the directory of an entry, a rejected entry or a compiled kernel.

    Attributes:
        place: the components of its path below the cache's home.
        used_at: when it was last used, or made, in seconds since the epoch.
    """

    path: Path
    place: tuple[str, ...]
    size_bytes: int
    used_at: float


@dataclass(frozen=True)
class Usage(Item):
    """An entry.

    Attributes:
        entry: None if another version of accel-ops made it, or its manifest cannot be read.
    """

    entry: Entry | None

    @property
    def op(self) -> str:
        return self.place[1]


def usages(cache: Cache, ops: Collection[str] = ()) -> list[Usage]:
    """The entries with their use, the most recently used first; also those of other versions of accel-ops.

    Args:
        ops: only their entries; empty for all.
    """
    readable = {entry.directory: entry for entry in cache.entries()}
    found = []
    for place in places(cache.root, OPS):
        path = cache.home.joinpath(*place)
        if not ops or place[1] in ops:
            used_at = _modified_at(path / MANIFEST) or _modified_at(path)
            found.append(Usage(path, place, size_bytes(path), used_at, readable.get(path)))
    return sorted(found, key=lambda usage: usage.used_at, reverse=True)


def leftovers(cache: Cache) -> list[Item]:
    """Logs, entries that were set aside, objects and compiled SYCL kernels, the newest first."""
    found = [place for name in _LEFTOVERS for place in places(cache.root, name)]
    paths = [(cache.home.joinpath(*place), place) for place in found]
    items = [Item(path, place, size_bytes(path), _modified_at(path)) for path, place in paths]
    return sorted(items, key=lambda item: item.used_at, reverse=True)


def surplus(
    cache: Cache,
    *,
    max_size_bytes: int | None = None,
    older_than_s: float | None = None,
    unused: bool = False,
    ops: Collection[str] = (),
    grace_s: float = _JUST_USED_S,
) -> tuple[list[Item], list[Usage]]:
    """The items to remove, and the entries that would be removed if they were not used recently.

    Entries that only the process that built them uses are always among these.

    Args:
        max_size_bytes: leftovers, and then the least recently used entries, are removed down to this size.
        older_than_s: remove what was not used for this many seconds.
        unused: remove all entries of each op but the last used.
        ops: only their entries, and no leftovers; empty for all.
        grace_s: keep entries that were used within so many seconds.
    """
    now = file_system_now(cache.home)
    removable: list[Item] = []
    protected: list[Usage] = []
    newer_bytes, kept_ops = 0, set()
    for item in (*usages(cache, ops), *([] if ops else leftovers(cache))):
        usage = item if isinstance(item, Usage) else None
        age_s = now - item.used_at
        idle_s = abs(age_s)  # a wrong clock may have left a time in the future, which protects nothing
        newer_bytes += item.size_bytes
        is_surplus = (
            (max_size_bytes is not None and newer_bytes > max_size_bytes)
            or (usage is not None and usage.entry is not None and bool(usage.entry.manifest.key.unlisted))
            or (older_than_s is not None and age_s > older_than_s)
            or (unused and usage is not None and usage.op in kept_ops)
        )
        if is_surplus and idle_s > (_JUST_USED_S if usage is None else grace_s):
            removable.append(item)
        elif usage is not None:
            kept_ops.add(usage.op)
            protected += [usage] if is_surplus else []
    return removable, protected


def remove(cache: Cache, items: Iterable[Item]) -> int:
    """Remove items; returns the bytes that were freed. Items that only another user may remove stay.

    Raises:
        CacheError: the cache cannot be written.
    """
    freed = 0
    for item in items:
        with cache.errors_explained():
            cache.writable_dir(STAGING)
            with folder(cache.root, *item.place[:-1]) as outer, folder(cache.root, STAGING) as trash:
                if outer is not None and trash is not None and _remove(outer, item.place[-1], trash):
                    freed += item.size_bytes
        for depth in (2, 3) if isinstance(item, Usage) else ():
            with folder(cache.root, *item.place[:-depth]) as outer, contextlib.suppress(OSError):
                if outer is not None:
                    os.rmdir(item.place[-depth], dir_fd=outer.descriptor)
    return freed


def _remove(outer: Folder, name: str, trash: Folder) -> bool:
    if not outer.has(name):  # another process was first
        return True
    # Renamed first, which is atomic, so that no reader finds half an entry.
    bin_name = staging.new_name("removed")
    os.mkdir(bin_name, 0o700, dir_fd=trash.descriptor)
    is_permitted = True
    try:
        os.rename(name, f"{bin_name}/removed", src_dir_fd=outer.descriptor, dst_dir_fd=trash.descriptor)
    except FileNotFoundError:
        pass
    except PermissionError:  # a directory that the SYCL runtime of another user made
        is_permitted = False
        warn_once(logger, f"{outer.path / name}: Permission denied: it stays in the cache. Its owner can remove it.")
    trash.remove_tree(bin_name)
    return is_permitted


def sweep_small(cache: Cache, *, all_of_them: bool = False) -> int:
    """Remove unused locks, old memos and the remains of killed builds; returns the bytes freed.

    Args:
        all_of_them: remove locks and memos of any age.
    """
    before, now = _bytes_in(cache, _SMALL), file_system_now(cache.home)
    staging.sweep(cache.root)
    with folder(cache.root, MEMO) as memos:
        if memos is not None:
            for name in memos.names():
                if all_of_them or now - memos.modified_at(name) > _OLD_MEMO_S:
                    memos.unlink(name)
    with folder(cache.root, LOCKS) as locks:
        if locks is not None:
            for name in locks.names():
                age_s = now - locks.modified_at(name)
                if all_of_them or age_s > _JUST_USED_S:
                    _remove_unlocked(locks, name, age_s)
    return max(0, before - _bytes_in(cache, _SMALL))  # a build may be at work


def other_bytes(cache: Cache) -> int:
    """Bytes of everything but the entries."""
    return _bytes_in(cache, (*_LEFTOVERS, *_SMALL))


def keep_in_bounds(cache: Cache) -> None:
    """Remove leftovers, then the least recently used entries, until ``ACCEL_CACHE_MAX_MIB`` is met.

    A failure is logged, and fails no build.
    """
    bound = env.ACCEL_CACHE_MAX_MIB.get() << 20
    sweep_small(cache)
    grace_s = _PERHAPS_USED_S if is_on_network(cache.root) else _JUST_USED_S
    removable, _ = surplus(cache, max_size_bytes=bound, grace_s=grace_s)
    try:
        freed = remove(cache, removable)
    except CacheError as error:
        logger.warning("The cache %s is not kept below %d MiB: %s", cache.root, bound >> 20, error.message)
    else:
        logger.info("The cache %s is kept below %d MiB: %d bytes were freed.", cache.root, bound >> 20, freed)


def is_on_network(directory: Path) -> bool:
    """Whether other hosts may share the file system of ``directory``; True if the system has no list of mounts."""
    try:
        mounts = [line.split(" ") for line in _MOUNTS.read_text(errors="surrogateescape").splitlines()]
    except OSError:
        return True
    place = Path(os.path.realpath(directory))
    # The last mount of a place is the visible one.
    holding = [(len(mount[1]), at, mount[2]) for at, mount in enumerate(mounts) if place.is_relative_to(mount[1])]
    return bool(holding) and max(holding)[2].startswith(_NETWORK_FILE_SYSTEMS)


def examine(cache: Cache) -> tuple[list[Entry], dict[Path, Rejection]]:
    """Check every entry, and move none: the intact ones, and the directories of the others with the reasons.

    Args:
        cache: one that may not move entries.
    """
    whole = []
    for entry in cache.entries():
        rejection = cache.rejection_of(entry)
        if rejection is not None:
            cache.set_aside(entry.directory, rejection)
        else:
            whole.append(entry)
    directories = [cache.home.joinpath(*place) for place in places(cache.root, OPS)]
    # Path.exists() raises where a directory may not be read.
    bare = {path: Rejection("It has no manifest.") for path in directories if not os.path.exists(path / MANIFEST)}
    found = {**cache.damaged, **bare}
    # Another process may have replaced or removed it just now.
    return whole, {path: found[path] for path in found if not cache.usable(path, path.name) and os.path.lexists(path)}


def _remove_unlocked(locks: Folder, name: str, age_s: float) -> None:
    with contextlib.suppress(OSError):
        options = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, options, dir_fd=locks.descriptor)
        try:
            try:
                is_free = try_lock(descriptor)
            except OSError:  # the file system does not support locks
                is_free = age_s > SURELY_OVER_S
            if is_free:
                # While it is locked: a process that has opened it meanwhile builds, at worst, what another one builds.
                locks.unlink(name)
        finally:
            os.close(descriptor)


def _bytes_in(cache: Cache, names: Iterable[str]) -> int:
    return sum(size_bytes(cache.home.joinpath(*place)) for name in names for place in places(cache.root, name))


def size_bytes(path: Path) -> int:
    """Bytes of a file, or of all files below a directory; files removed meanwhile do not count."""
    files = (
        [Path(parent, name) for parent, _, names in os.walk(path) for name in names] if os.path.isdir(path) else [path]
    )
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.lstat().st_size
    return total


def _modified_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
