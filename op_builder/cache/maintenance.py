"""Keeping the cache in bounds: what was used when, what is in use, what may go.

An entry's last use is the modification time of its manifest; a hit renews it, at most twice a
minute. What a process of this host has mapped stays: on a local disk it would not be hurt, but the
next load would compile again. What other hosts have mapped cannot be seen, and a network file system
takes it from them; there nothing that was used within a week goes by itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from op_builder import env
from op_builder.cache import staging
from op_builder.cache.leftovers import leftovers, remove_leftovers, surplus_leftovers, sweep_small
from op_builder.cache.staging import subdirectories
from op_builder.cache.store import MANIFEST, Cache, Entry
from op_builder.errors import CacheError

logger = logging.getLogger(__name__)

# An entry that was used so lately may be about to be opened.
_JUST_USED_S = 60.0
# On a file system that other hosts may share, a process may have begun so long ago with what it still uses.
_PERHAPS_USED_S = 7 * 24 * 3600.0
_NETWORK_FILE_SYSTEMS = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "gluster",
    "afs",
    "9p",
    "panfs",
    "fuse",
)


@dataclass(frozen=True)
class Usage:
    """One entry, its bytes on disk and when it was last used (seconds since the epoch)."""

    entry: Entry
    size_bytes: int
    used_at: float
    is_mapped: bool

    def may_go(self, rested_s: float = _JUST_USED_S) -> bool:
        """Whether nobody is known to use it, and it was last used more than ``rested_s`` seconds ago."""
        return not self.is_mapped and time.time() - self.used_at > rested_s


def examine(cache: Cache) -> tuple[list[Entry], dict[Path, str]]:
    """Read every entry, and move none: those that are whole, and the directories of the others with what is wrong.

    Args:
        cache: one that is not ours to tidy.
    """
    whole = []
    for entry in cache.entries():
        if entry.is_intact():
            whole.append(entry)
        else:
            cache.set_aside(entry.directory, "its binary does not match its manifest")
    directories = [path for op in subdirectories(cache.root / "ops") for path in _entry_directories(op)]
    bare = {path: "it has no manifest" for path in directories if path.exists() and not (path / MANIFEST).exists()}
    return whole, {**cache.damaged, **bare}


def _entry_directories(op: Path) -> list[Path]:
    return [entry for plan in subdirectories(op) for entry in subdirectories(plan)]


def usages(cache: Cache, op: str | None = None) -> list[Usage]:
    """All entries with their use, the most lately used first."""
    mapped = _mapped_files()
    found = [
        Usage(entry, _size_bytes(entry.directory), _used_at(entry), os.path.realpath(entry.artifact) in mapped)
        for entry in cache.entries(op)
    ]
    return sorted(found, key=lambda usage: usage.used_at, reverse=True)


def surplus(
    found: Iterable[Usage],
    *,
    max_size_bytes: int | None = None,
    older_than_s: float | None = None,
    unused: bool = False,
    rested_s: float = _JUST_USED_S,
) -> tuple[list[Usage], list[Usage]]:
    """Of ``found``, those that go, and those that would go but for their use.

    Args:
        max_size_bytes: the least lately used go until the rest fits.
        older_than_s: those not used for so many seconds go.
        unused: all but the last used of each op go.
        rested_s: what was used within so many seconds stays in any case.
    """
    newest_first = sorted(found, key=lambda usage: usage.used_at, reverse=True)
    going: list[Usage] = []
    held: list[Usage] = []
    kept_bytes, kept_ops = 0, set()
    for usage in newest_first:
        op = usage.entry.manifest.op
        goes = (
            (max_size_bytes is not None and kept_bytes + usage.size_bytes > max_size_bytes)
            or (older_than_s is not None and time.time() - usage.used_at > older_than_s)
            or (unused and op in kept_ops)
        )
        if goes and usage.may_go(rested_s):
            going.append(usage)
            continue
        if goes:
            held.append(usage)
        kept_bytes += usage.size_bytes
        kept_ops.add(op)
    return going, held


def remove(cache: Cache, going: Iterable[Usage]) -> int:
    """Remove entries; returns the bytes that were freed."""
    freed = 0
    for usage in going:
        with cache.errors_explained():
            # First out of sight, in one step, so that no reader finds half an entry.
            trash = staging.make_directory(cache.writable_dir("staging"), "removed")
            with contextlib.suppress(FileNotFoundError):  # another process was first
                os.rename(usage.entry.directory, trash / "entry")
            shutil.rmtree(trash, ignore_errors=True)
        with contextlib.suppress(OSError):
            usage.entry.directory.parent.rmdir()
        freed += usage.size_bytes
    return freed


def keep_in_bounds(cache: Cache) -> None:
    """Remove what is beyond ``ACCEL_CACHE_MAX_MIB``: what was set aside and logs, then the least lately used entries.

    Failing at that fails no build.
    """
    bound = env.ACCEL_CACHE_MAX_MIB.get() << 20
    sweep_small(cache)
    others = leftovers(cache)
    total = sum(_size_bytes(entry.directory) for entry in cache.entries()) + sum(item.size_bytes for item in others)
    if total <= bound:
        return
    freed = remove_leftovers(surplus_leftovers(others, excess_bytes=total - bound))
    try:
        if total - freed > bound:
            rested_s = _PERHAPS_USED_S if is_on_network(cache.root) else _JUST_USED_S
            going, _ = surplus(usages(cache), max_size_bytes=bound, rested_s=rested_s)
            freed += remove(cache, going)
    except CacheError as error:
        logger.warning("The cache %s holds more than %d MiB: %s", cache.root, bound >> 20, error.message)
        return
    logger.info("The cache %s held more than %d MiB; %d bytes were freed.", cache.root, bound >> 20, freed)


def is_on_network(directory: Path) -> bool:
    """Whether other hosts may share the file system of ``directory``."""
    import psutil  # not at the top: a warm load has no time for it

    place = os.path.realpath(directory)
    mounts = [part for part in psutil.disk_partitions(all=True) if Path(place).is_relative_to(part.mountpoint)]
    nearest = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    return nearest is not None and nearest.fstype.startswith(_NETWORK_FILE_SYSTEMS)


def _used_at(entry: Entry) -> float:
    try:
        return (entry.directory / MANIFEST).stat().st_mtime
    except OSError:
        return 0.0


def _size_bytes(directory: Path) -> int:
    try:
        with os.scandir(directory) as found:
            return sum(item.stat().st_size for item in found)
    except OSError:  # removed by another process just now
        return 0


def _mapped_files() -> set[str]:
    """Libraries and precompiled headers that a process of this host has open, as far as this user may see.

    By their real paths, whatever links they were opened through.
    """
    mapped: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            lines = maps.read_text(errors="replace").splitlines()
            mapped.update(line[line.index("/") :] for line in lines if line.endswith((".so", ".gch")))
    return mapped
