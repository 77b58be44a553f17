"""The cache on a slow network file system that two hosts share: real mounts, see tests/support/slow_filesystem.py.

Whatever a host knows late, no load fails, and nothing damaged is opened.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from op_builder.cache.store import MANIFEST, Cache, Entry, Manifest
from tests.support import processes
from tests.support.processes import QuickBuilder, assert_whole, fork, load_with_log, quick, wait_for
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

_NEW_HOST_NAME = 0x04000000  # CLONE_NEWUTS


@dataclass
class Host:
    """One host: its name, where it has the shared directory, and the process that serves that mount."""

    name: str
    mount: Path
    server: subprocess.Popen[str]
    log: Path

    @property
    def cache(self) -> Cache:
        return Cache(self.mount / "cache")

    @property
    def compiles(self) -> int:
        return self.log.read_text().count("compiled") if self.log.exists() else 0

    def load(self, op: QuickBuilder) -> int:
        """Load an op in a new process of this host; returns the process's id."""

        def work() -> None:
            if ctypes.CDLL(None, use_errno=True).unshare(_NEW_HOST_NAME) == 0:
                socket.sethostname(self.name)
            op.cache = self.cache  # type: ignore[misc]
            load_with_log(op, self.log)

        return fork(work)


@dataclass
class Site:
    """Two hosts and the directory on the server that both have mounted."""

    backing: Path
    one: Host
    other: Host
    op: QuickBuilder
    locks: str

    @property
    def server_cache(self) -> Cache:
        """The cache as it is on the server, where nothing is late."""
        return Cache(self.backing / "cache")

    def assert_whole(self) -> None:
        # A closed file that was removed while open goes a moment later.
        wait_until(lambda: not list((self.server_cache.home / "staging").rglob("*")))
        # Where one host saw too late what the other published, a second entry may have taken the place of a whole one.
        for place in (self.server_cache.home / "rejected").glob("*"):
            assert "another entry replaced it" in (place / "reason.txt").read_text()
            assert Entry(place / "entry", Manifest.from_json((place / "entry" / MANIFEST).read_text())).is_intact()
            shutil.rmtree(place)
        assert_whole(self.server_cache)


def mounted(name: str, backing: Path, directory: Path, locks: str) -> Host:
    """A host that has mounted ``backing``."""
    mount = directory / name
    mount.mkdir()
    program = Path(processes.__file__).with_name("slow_filesystem.py")
    said = directory / f"{name}.txt"
    with said.open("w") as file:
        server = subprocess.Popen([sys.executable, program, backing, mount, locks], stdout=file, stderr=file, text=True)
    while not os.path.ismount(mount):
        if server.poll() is not None:
            text = said.read_text()
            if "fuse: " in text:  # it has no leave to mount
                pytest.skip(f"FUSE does not mount here: {text.strip().splitlines()[0]}")
            pytest.fail(text)
        time.sleep(0.02)
    return Host(name, mount, server, directory / f"{name}.log")


def unmounted(host: Host) -> None:
    # Lazily: whatever still has a file open must not keep the suite.
    subprocess.run(["umount", "--lazy", host.mount], check=False)
    try:
        host.server.wait(timeout=20)
    except subprocess.TimeoutExpired:
        host.server.kill()
        host.server.wait()


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Two hosts, with the locks that the test's parameter names."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting needs root and /dev/fuse")
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as error:
        pytest.skip(f"no FUSE for Python: {error}")
    backing = tmp_path / "server"
    backing.mkdir()
    hosts: list[Host] = []
    try:
        for name in ("one", "other"):
            hosts.append(mounted(name, backing, tmp_path, request.param))
        yield Site(backing, *hosts, quick(tmp_path / "op", hosts[0].cache), request.param)
    finally:
        for host in hosts:
            unmounted(host)


def with_locks(*kinds: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("site", kinds, indirect=True)


@with_locks("shared", "ENOLCK")
def test_processes_of_two_hosts_load_one_cold_op(site: Site) -> None:
    loads = [host.load(site.op) for _ in range(4) for host in (site.one, site.other)]
    assert wait_for(loads) == [0] * 8
    site.assert_whole()
    assert len(site.server_cache.entries()) == 1
    assert site.one.compiles + site.other.compiles >= 1
    if site.locks != "ENOLCK":
        assert max(site.one.compiles, site.other.compiles) == 1


@with_locks("local")
def test_an_op_published_on_one_host_loads_at_once_on_the_other(site: Site) -> None:
    # The other host has looked before, and goes on believing that there is nothing.
    assert site.other.cache.entries() == []
    assert not (site.other.mount / "cache" / "v1" / "ops").exists()
    assert wait_for([site.one.load(site.op)]) == [0]
    assert wait_for([site.other.load(site.op) for _ in range(2)]) == [0, 0]
    site.assert_whole()
    assert len(site.server_cache.entries()) == 1
