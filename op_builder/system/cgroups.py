"""The control groups (Linux, version 1, 2 or both) that this process runs in.

All files are read below :class:`HostFiles`, so tests can pass a tree of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class HostFiles(NamedTuple):
    """Where the kernel's pseudo files are."""

    sysfs: Path = Path("/sys")
    procfs: Path = Path("/proc")


def read_text(path: Path) -> str | None:
    """The stripped text of a pseudo file, or None where it is missing or cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def directories(controller: str, files: HostFiles) -> Iterator[Path]:
    """Directories of this process's groups that may hold ``controller``'s files, innermost first.

    The ancestors are included because every one of them limits its descendants. A path seen from
    outside this container's namespace does not exist here; the mount is always read,
    and in a container that is the container's own group.
    """
    base = files.sysfs / "fs" / "cgroup"
    for line in (read_text(files.procfs / "self" / "cgroup") or "0::/").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers:  # version 2: one hierarchy, below "unified" where version 1 has the base
            yield from _ancestry(base, group)
            yield from _ancestry(base / "unified", group)
        elif controller in controllers.split(","):
            yield from _ancestry(base / controller, group)


def _ancestry(mount: Path, group: str) -> Iterator[Path]:
    parts = [part for part in group.split("/") if part]
    if ".." in parts:  # the group is outside this cgroup namespace
        parts = []
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])


def total_memory_bytes(files: HostFiles) -> int:
    """Memory that this process can ever have: the machine's, or its control group's limit if that is less."""
    return min([_machine_bytes(files, "MemTotal"), *(limit for _, limit in _memory_limits(files))])


def available_memory_bytes(files: HostFiles) -> int:
    """Memory that this process can still get without swapping or meeting its control group's limit."""
    return min([_machine_bytes(files, "MemAvailable"), *(_room(*found) for found in _memory_limits(files))])


def _machine_bytes(files: HostFiles, name: str) -> int:
    """A value of ``/proc/meminfo``."""
    for line in (read_text(files.procfs / "meminfo") or "").splitlines():
        label, _, value = line.partition(":")
        if label == name:
            return int(value.split()[0]) << 10
    import psutil  # for macOS; elsewhere the engine works without it

    memory = psutil.virtual_memory()
    return int(memory.total if name == "MemTotal" else memory.available)


def _memory_limits(files: HostFiles) -> Iterator[tuple[Path, int]]:
    for directory in directories("memory", files):
        # Above memory.high the kernel slows a group's processes down until they stand still.
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            text = read_text(directory / name)
            if text is not None and text.isdecimal():  # "max" is no limit
                yield directory, int(text)


def _room(directory: Path, limit: int) -> int:
    """How much more a group may use; page cache that the kernel would drop first (``inactive_file``) counts as free."""
    used = next(
        (int(text) for name in ("memory.current", "memory.usage_in_bytes") if (text := read_text(directory / name))), 0
    )
    counters = dict(line.split(" ", 1) for line in (read_text(directory / "memory.stat") or "").splitlines())
    reclaimable = int(counters.get("total_inactive_file", counters.get("inactive_file", "0")))
    return max(0, limit - max(0, used - reclaimable))


def allowed_cores(files: HostFiles) -> frozenset[int] | None:
    """The cores that the cpuset allows this process, or None without a cpuset."""
    for directory in directories("cpuset", files):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            text = read_text(directory / name)
            if text:
                return parse_index_list(text)
    return None


def cpu_quota_cores(files: HostFiles) -> float | None:
    """The cores' worth of time that this process's groups may use, or None without a quota."""
    quotas = []
    for directory in directories("cpu", files):
        quota, _, period = (read_text(directory / "cpu.max") or "").partition(" ")
        if not quota:
            quota = read_text(directory / "cpu.cfs_quota_us") or ""
            period = read_text(directory / "cpu.cfs_period_us") or ""
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:  # "max" and -1 are no quota
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def parse_index_list(text: str) -> frozenset[int]:
    """The numbers in the kernel's list format: ``0-2,8`` is {0, 1, 2, 8}."""
    indices: set[int] = set()
    for item in text.split(","):
        first, _, last = item.strip().partition("-")
        if first:
            indices.update(range(int(first), int(last or first) + 1))
    return frozenset(indices)
