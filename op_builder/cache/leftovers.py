"""What lies in a cache besides its entries; none of it is needed.

Entries that were set aside, and logs of failed builds, are there for people to look at; SYCL kernels that the
SYCL runtime has compiled are compiled again when one is missing. These count in the cache's bound, and go before any
entry. Locks and memos are small, but each key leaves some; builds that were killed leave their staging directories.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from op_builder.cache import staging
from op_builder.cache.staging import SURELY_OVER_S
from op_builder.cache.store import Cache
from op_builder.toolchains.sycl_runtime import KERNELS_DIRECTORY

_TO_LOOK_AT = ("rejected", "logs")
_SMALL = ("locks", "memo", "staging")
_YOUNG_S = 60.0  # its name may stand on a screen just now
_OLD_MEMO_S = 30 * 24 * 3600.0


@dataclass(frozen=True)
class Leftover:
    """A log, or the directory of an entry that was set aside or of a kernel; ``made_at`` in seconds since the epoch."""

    path: Path
    size_bytes: int
    made_at: float


def leftovers(cache: Cache) -> list[Leftover]:
    """Logs, entries that were set aside and compiled SYCL kernels, the oldest first."""
    paths = [path for name in _TO_LOOK_AT for path in _inside(cache.root / name)]
    # The runtime has a directory for each device, and in it one for each kernel.
    paths += [path for device in _inside(cache.root / KERNELS_DIRECTORY) for path in _inside(device)]
    return sorted((Leftover(path, _size_bytes(path), _made_at(path)) for path in paths), key=lambda item: item.made_at)


def surplus_leftovers(
    oldest_first: Iterable[Leftover], *, excess_bytes: int = 0, older_than_s: float | None = None
) -> list[Leftover]:
    """Of ``oldest_first``, those that go: as many as free ``excess_bytes``, and those older than that."""
    going: list[Leftover] = []
    freed, now = 0, time.time()
    for item in oldest_first:
        age_s = now - item.made_at
        if (freed < excess_bytes and age_s > _YOUNG_S) or (older_than_s is not None and age_s > older_than_s):
            going.append(item)
            freed += item.size_bytes
    return going


def remove_leftovers(going: Iterable[Leftover]) -> int:
    """Remove them; returns the bytes that were freed."""
    freed = 0
    for item in going:
        if item.path.is_dir():
            shutil.rmtree(item.path, ignore_errors=True)
        else:
            _unlink(item.path)
        freed += 0 if os.path.lexists(item.path) else item.size_bytes
    return freed


def sweep_small(cache: Cache, *, all_of_them: bool = False) -> int:
    """Remove locks that nobody holds, memos that are old and what killed builds left; returns the bytes freed.

    Args:
        all_of_them: locks and memos whatever their age.
    """
    before, now = _bytes_in(cache, _SMALL), time.time()
    staging.sweep(cache.root / "staging")
    for path in _inside(cache.root / "memo"):
        if all_of_them or now - _made_at(path) > _OLD_MEMO_S:
            _unlink(path)
    for path in _inside(cache.root / "locks"):
        if path.suffix == ".lock":
            _remove_unheld(path, now, min_age_s=0.0 if all_of_them else _YOUNG_S)
    return max(0, before - _bytes_in(cache, _SMALL))  # a build may be at work


def other_bytes(cache: Cache) -> int:
    """Bytes of all that this module is about."""
    return _bytes_in(cache, (*_TO_LOOK_AT, KERNELS_DIRECTORY, *_SMALL))


def _bytes_in(cache: Cache, names: Iterable[str]) -> int:
    return sum(_size_bytes(cache.root / name) for name in names)


def _remove_unheld(lock: Path, now: float, min_age_s: float) -> None:
    owner = lock.with_suffix(".owner")  # written whenever the lock is taken
    age_s = now - max(_made_at(lock), _made_at(owner))
    if age_s < min_age_s:
        return
    with contextlib.suppress(OSError), lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:
            if age_s < SURELY_OVER_S:
                return
        # Who opened it in this moment holds a lock that no other will see: at worst something is built twice.
        _unlink(lock)
        _unlink(owner)


def _inside(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _made_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _size_bytes(path: Path) -> int:
    """Bytes of a file, or of all files below a directory."""
    files = (
        [path] if not path.is_dir() else [Path(parent, name) for parent, _, names in os.walk(path) for name in names]
    )
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.lstat().st_size
    return total


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
