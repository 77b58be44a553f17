"""Keeping the cache in bounds: what was used when, what is in use, what may go.

An entry's last use is the modification time of its manifest; a hit renews it, at most twice a
minute. Removing a binary that some process has mapped would not hurt that process, but the next
load would compile again, so what is in use stays.
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


@dataclass(frozen=True)
class Usage:
    """One entry, its bytes on disk and when it was last used (seconds since the epoch)."""

    entry: Entry
    size_bytes: int
    used_at: float
    is_mapped: bool

    @property
    def may_go(self) -> bool:
        return not self.is_mapped and time.time() - self.used_at > _JUST_USED_S


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
) -> list[Usage]:
    """Of ``found``, those that go.

    Args:
        max_size_bytes: the least lately used go until the rest fits.
        older_than_s: those not used for so many seconds go.
        unused: all but the last used of each op go.
    """
    newest_first = sorted(found, key=lambda usage: usage.used_at, reverse=True)
    going: list[Usage] = []
    kept_bytes, kept_ops = 0, set()
    for usage in newest_first:
        op = usage.entry.manifest.op
        goes = (
            (max_size_bytes is not None and kept_bytes + usage.size_bytes > max_size_bytes)
            or (older_than_s is not None and time.time() - usage.used_at > older_than_s)
            or (unused and op in kept_ops)
        )
        if goes and usage.may_go:
            going.append(usage)
            continue
        kept_bytes += usage.size_bytes
        kept_ops.add(op)
    return going


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
            freed += remove(cache, surplus(usages(cache), max_size_bytes=bound))
    except CacheError as error:
        logger.warning("The cache %s holds more than %d MiB: %s", cache.root, bound >> 20, error.message)
        return
    logger.info("The cache %s held more than %d MiB; %d bytes were freed.", cache.root, bound >> 20, freed)


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
