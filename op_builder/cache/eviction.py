"""Keeping the cache in bounds: what was used when, what is in use, what may be removed.

An entry's last use is the modification time of its manifest; a hit renews it, at most twice a minute. What a process
of this host has mapped stays: on a local disk it would not be hurt, but the next load would compile again. What other
hosts have mapped cannot be seen, and a network file system takes it from them; there no entry is removed
automatically that was used within a week.

Logs of failed builds, entries that were set aside and SYCL kernels that the runtime has compiled are not needed. They
count in the cache's bound, and are removed before any entry. Locks and memos are small, but each key leaves some;
builds that were killed leave their staging directories.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from op_builder import env
from op_builder.cache import staging
from op_builder.cache.staging import SURELY_OVER_S
from op_builder.cache.store import MANIFEST, Cache, Entry
from op_builder.errors import CacheError
from op_builder.system.file_contents import subdirectories
from op_builder.toolchains.sycl_runtime import KERNELS_DIRECTORY

logger = logging.getLogger(__name__)

# What was used so recently may be about to be opened; the name of a log may be on a screen.
_JUST_USED_S = 60.0
# On a file system that other hosts may share, a process may have begun so long ago with what it still uses.
_PERHAPS_USED_S = 7 * 24 * 3600.0
_OLD_MEMO_S = 30 * 24 * 3600.0
_NETWORK_FILE_SYSTEMS = (
    *("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "gluster", "afs", "9p", "panfs", "fuse"),
)
_LOGS = ("rejected", "logs")
_SMALL = ("locks", "memo", "staging")


@dataclass(frozen=True)
class Item:
    """A log, or the directory of an entry, of what was set aside, or of a compiled kernel.

    Attributes:
        used_at: when it was last used, or made, in seconds since the epoch.
    """

    path: Path
    size_bytes: int
    used_at: float


@dataclass(frozen=True)
class Usage(Item):
    """An entry, and whether a process of this host has its binary open."""

    entry: Entry
    is_mapped: bool


def usages(cache: Cache, op: str | None = None) -> list[Usage]:
    """All entries with their use, the most recently used first."""
    mapped = _mapped_files()
    found = [
        Usage(
            path=entry.directory,
            size_bytes=_size_bytes(entry.directory),
            used_at=_modified_at(entry.directory / MANIFEST),
            entry=entry,
            is_mapped=os.path.realpath(entry.artifact) in mapped,
        )
        for entry in cache.entries(op)
    ]
    return sorted(found, key=lambda usage: usage.used_at, reverse=True)


def leftovers(cache: Cache) -> list[Item]:
    """Logs, entries that were set aside and compiled SYCL kernels, the newest first."""
    paths = [path for name in _LOGS for path in _inside(cache.root / name)]
    # The runtime has a directory for each device, and in it one for each kernel.
    paths += [path for device in _inside(cache.root / KERNELS_DIRECTORY) for path in _inside(device)]
    items = [Item(path, _size_bytes(path), _modified_at(path)) for path in paths]
    return sorted(items, key=lambda item: item.used_at, reverse=True)


def surplus(
    cache: Cache,
    *,
    max_size_bytes: int | None = None,
    older_than_s: float | None = None,
    unused: bool = False,
    rested_s: float = _JUST_USED_S,
) -> tuple[list[Item], list[Usage]]:
    """What is to be removed, and the entries that would be removed but are in use.

    Args:
        max_size_bytes: leftovers go, then the least recently used entries, until the rest fits.
        older_than_s: remove what was not used for this many seconds.
        unused: all entries but the last used of each op go.
        rested_s: entries that were used within so many seconds stay in any case.
    """
    now = time.time()
    going: list[Item] = []
    held: list[Usage] = []
    kept_bytes, kept_ops = 0, set()
    for item in (*usages(cache), *leftovers(cache)):
        usage = item if isinstance(item, Usage) else None
        age_s = now - item.used_at
        goes = (
            (max_size_bytes is not None and kept_bytes + item.size_bytes > max_size_bytes)
            or (older_than_s is not None and age_s > older_than_s)
            or (unused and usage is not None and usage.entry.manifest.op in kept_ops)
        )
        may_go = age_s > _JUST_USED_S if usage is None else age_s > rested_s and not usage.is_mapped
        if goes and may_go:
            going.append(item)
            continue
        kept_bytes += item.size_bytes
        if usage is not None:
            kept_ops.add(usage.entry.manifest.op)
            held += [usage] if goes else []
    return going, held


def remove(cache: Cache, going: Iterable[Item]) -> int:
    """Remove items; returns the bytes that were freed.

    Raises:
        CacheError: the cache cannot be written.
    """
    freed = 0
    for item in going:
        with cache.errors_explained():
            # First out of sight, in one step, so that no reader finds half an entry.
            trash = staging.make_directory(cache.writable_dir("staging"), "removed")
            with contextlib.suppress(FileNotFoundError):  # another process was first
                os.rename(item.path, trash / "removed")
            shutil.rmtree(trash, ignore_errors=True)
        if isinstance(item, Usage):
            with contextlib.suppress(OSError):
                item.path.parent.rmdir()
        freed += item.size_bytes
    return freed


def sweep_small(cache: Cache, *, all_of_them: bool = False) -> int:
    """Remove unused locks, old memos and the remains of killed builds; returns the bytes freed.

    Args:
        all_of_them: locks and memos whatever their age.
    """
    before, now = _bytes_in(cache, _SMALL), time.time()
    staging.sweep(cache.root / "staging")
    for path in _inside(cache.root / "memo"):
        if all_of_them or now - _modified_at(path) > _OLD_MEMO_S:
            _unlink(path)
    for path in _inside(cache.root / "locks"):
        age_s = now - _modified_at(path)
        if all_of_them or age_s > _JUST_USED_S:
            _remove_unheld(path, age_s)
    return max(0, before - _bytes_in(cache, _SMALL))  # a build may be at work


def other_bytes(cache: Cache) -> int:
    """Bytes of everything but the entries."""
    return _bytes_in(cache, (*_LOGS, KERNELS_DIRECTORY, *_SMALL))


def keep_in_bounds(cache: Cache) -> None:
    """Remove what is beyond ``ACCEL_CACHE_MAX_MIB``: leftovers, then the least recently used entries.

    A failure is logged, and fails no build.
    """
    bound = env.ACCEL_CACHE_MAX_MIB.get() << 20
    sweep_small(cache)
    if _bytes_in(cache, ("ops", *_LOGS, KERNELS_DIRECTORY)) <= bound:
        return
    rested_s = _PERHAPS_USED_S if is_on_network(cache.root) else _JUST_USED_S
    going, _ = surplus(cache, max_size_bytes=bound, rested_s=rested_s)
    try:
        freed = remove(cache, going)
    except CacheError as error:
        logger.warning("The cache %s holds more than %d MiB: %s", cache.root, bound >> 20, error.message)
    else:
        logger.info("The cache %s held more than %d MiB; %d bytes were freed.", cache.root, bound >> 20, freed)


def is_on_network(directory: Path) -> bool:
    """Whether other hosts may share the file system of ``directory``."""
    import psutil  # not at the top: commands that only look need not load it

    place = os.path.realpath(directory)
    mounts = [part for part in psutil.disk_partitions(all=True) if Path(place).is_relative_to(part.mountpoint)]
    nearest = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    return nearest is not None and nearest.fstype.startswith(_NETWORK_FILE_SYSTEMS)


def examine(cache: Cache) -> tuple[list[Entry], dict[Path, str]]:
    """Read every entry, and move none: those that are whole, and the directories of the others with what is wrong.

    Args:
        cache: one that may not move entries.
    """
    whole = []
    for entry in cache.entries():
        if entry.is_intact():
            whole.append(entry)
        else:
            cache.set_aside(entry.directory, "its binary does not match its manifest")
    plans = [plan for op in subdirectories(cache.root / "ops") for plan in subdirectories(op)]
    directories = [entry for plan in plans for entry in subdirectories(plan)]
    bare = {path: "it has no manifest" for path in directories if path.exists() and not (path / MANIFEST).exists()}
    return whole, {**cache.damaged, **bare}


def _mapped_files() -> set[str]:
    """Libraries and precompiled headers that a process of this host has open, as far as this user may see.

    By their real paths, whatever links they were opened through.
    """
    mapped: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            lines = maps.read_bytes().split(b"\n")
            mapped.update(os.fsdecode(line[line.index(b"/") :]) for line in lines if line.endswith((b".so", b".gch")))
    return mapped


def _remove_unheld(lock: Path, age_s: float) -> None:
    with contextlib.suppress(OSError), lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:  # the file system does not support locks
            if age_s < SURELY_OVER_S:
                return
        # Who opened it in this moment holds a lock that no other will see: at worst something is built twice.
        _unlink(lock)


def _bytes_in(cache: Cache, names: Iterable[str]) -> int:
    return sum(_size_bytes(cache.root / name) for name in names)


def _size_bytes(path: Path) -> int:
    """Bytes of a file, or of all files below a directory; what is removed meanwhile does not count."""
    files = [Path(parent, name) for parent, _, names in os.walk(path) for name in names] if path.is_dir() else [path]
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.lstat().st_size
    return total


def _inside(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _modified_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
