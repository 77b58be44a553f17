"""File systems and limits that the cases need. They need root and FUSE; else the case is not applicable."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.torture.bench import NotApplicable
from tests.support import fuse

SLOW_FILESYSTEM = "tests.support.slow_filesystem"
CGROUPS = Path("/sys/fs/cgroup")
# The file of each controller's limit in version 2 and in version 1. The periods of cpu's two are equal, 100 ms.
LIMITS = {
    "cpu": ("cpu.max", "cpu.cfs_quota_us"),
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "pids": ("pids.max", "pids.max"),
}


@contextlib.contextmanager
def served(module: str, backing: Path, mount: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A mount of ``backing`` by a FUSE program."""
    try:
        with fuse.served(module, backing, mount, *arguments, mount=mount) as server:
            yield server
    except fuse.CannotMount as reason:
        raise NotApplicable(str(reason)) from None


@contextlib.contextmanager
def two_hosts(backing: Path) -> Iterator[tuple[Path, Path]]:
    """Two mounts of a directory, as two hosts see it on NFS without locks between hosts: each has caches of its own."""
    mounts = [backing.with_name(name) for name in ("host1", "host2")]
    with contextlib.ExitStack() as stack:
        for mount in mounts:
            stack.enter_context(served(SLOW_FILESYSTEM, backing, mount, "local"))
        yield mounts[0], mounts[1]


@contextlib.contextmanager
def loses_unsynced(cache: Path) -> Iterator[Callable[[], None]]:
    """The cache on a file system that loses power when the yielded function is called."""
    backing = cache.rename(cache.with_name("backing"))
    with served("benchmarks.torture.unsynced_filesystem", backing, cache) as server:

        def lose_power() -> None:
            lost = backing.with_name("power_lost")
            lost.unlink(missing_ok=True)
            os.kill(server.pid, 10)  # SIGUSR1
            os.listdir(cache)  # the server's loop wakes up
            deadline = time.monotonic() + 10
            while not lost.exists():
                if time.monotonic() > deadline:
                    raise NotApplicable("the file system did not lose power")
                with contextlib.suppress(OSError):
                    os.listdir(cache)
                time.sleep(0.05)

        yield lose_power


def mount(*words: object) -> None:
    """Run mount; raise :class:`NotApplicable` if it is not allowed."""
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise NotApplicable(f"mount: {done.stderr.strip()}")


@contextlib.contextmanager
def small_disk(cache: Path, size_bytes: int) -> Iterator[Callable[[], None]]:
    """The cache on an empty disk of this size; the yielded function makes it large enough."""
    mount("-t", "tmpfs", "-o", f"mode=700,size={size_bytes}", "tmpfs", cache)
    try:
        yield lambda: mount("-o", "remount,size=1G", cache)
    finally:
        subprocess.run(["umount", "--lazy", cache], check=False)


@contextlib.contextmanager
def read_only(cache: Path) -> Iterator[None]:
    """The cache's directory mounted read-only."""
    mount("--bind", cache, cache)
    try:
        mount("-o", "remount,bind,ro", cache)
        yield
    finally:
        subprocess.run(["umount", "--lazy", cache], check=False)


@contextlib.contextmanager
def control_group(controller: str, value: int, root: Path) -> Iterator[Path]:
    """A control group with one limit: its file ``cgroup.procs``, into which a process writes 0 to enter it."""
    is_version_2 = (CGROUPS / "cgroup.controllers").exists()
    limit = LIMITS[controller][0 if is_version_2 else 1]
    with contextlib.ExitStack() as stack:
        top = CGROUPS if is_version_2 else CGROUPS / controller
        if not (top / "cgroup.procs").exists():
            top = root / f"cgroup-{controller}"
            top.mkdir(exist_ok=True)
            mount("-t", "cgroup", "-o", controller, "none", top)
            stack.callback(subprocess.run, ["umount", "--lazy", top], check=False)
        try:
            if is_version_2:  # only the named controllers have files in the groups below
                (top / "cgroup.subtree_control").write_text(f"+{controller}")
            group = Path(tempfile.mkdtemp(prefix="torture-", dir=top))
            (group / limit).write_text(str(value))
            if (group / "memory.swap.max").exists():  # else the kernel swaps, and kills nothing
                (group / "memory.swap.max").write_text("0")
        except OSError as error:
            raise NotApplicable(f"no control group for {controller}: {error}") from None
        stack.callback(remove_group, group)
        yield group / "cgroup.procs"


def remove_group(group: Path) -> None:
    """Remove a control group once its processes have ended."""
    for _ in range(50):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
