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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from op_builder.cache.store import MANIFEST, Cache, Entry, Manifest
from tests.support import processes
from tests.support.processes import QuickBuilder, assert_whole, fork, load_with_log, quick, wait_for
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

_NEW_HOST_NAME = 0x04000000  # CLONE_NEWUTS


class Host:
    """One host that has mounted the shared directory ``backing``: its name, and the process that serves the mount."""

    def __init__(self, name: str, backing: Path, locks: str) -> None:
        self.name, self.log = name, backing.with_name(f"{name}.log")
        self.mount = backing.with_name(name)
        self.mount.mkdir()
        program = Path(processes.__file__).with_name("slow_filesystem.py")
        printed = backing.with_name(f"{name}.txt")
        with printed.open("w") as file:
            command = [sys.executable, program, backing, self.mount, locks]
            self.server = subprocess.Popen(command, stdout=file, stderr=file)
        wait_until(lambda: os.path.ismount(self.mount) or self.server.poll() is not None)
        if self.server.poll() is not None:
            text = printed.read_text()
            if "fuse: " in text:  # it has no leave to mount
                pytest.skip(f"FUSE does not mount here: {text.strip().splitlines()[0]}")
            pytest.fail(text)

    def unmount(self) -> None:
        # Lazily: whatever still has a file open must not keep the suite.
        subprocess.run(["umount", "--lazy", self.mount], check=False)
        try:
            self.server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()

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
    """Two hosts and the cache that both have mounted, as it is on the server, where nothing is late."""

    server_cache: Cache
    one: Host
    other: Host
    op: QuickBuilder
    locks: str

    def assert_whole(self) -> None:
        # A closed file that was removed while open goes a moment later.
        wait_until(lambda: not list((self.server_cache.home / "staging").rglob("*")))
        # Where one host saw too late what the other published, a second entry may have taken the place of a whole one.
        for place in (self.server_cache.home / "rejected").glob("*"):
            assert "another entry replaced it" in (place / "reason.txt").read_text()
            assert Entry(place / "entry", Manifest.from_json((place / "entry" / MANIFEST).read_text())).is_intact()
            shutil.rmtree(place)
        assert_whole(self.server_cache)


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
            hosts.append(Host(name, backing, request.param))
        yield Site(Cache(backing / "cache"), *hosts, quick(tmp_path / "op", hosts[0].cache), request.param)
    finally:
        for host in hosts:
            host.unmount()


@pytest.mark.parametrize("site", ["shared", "ENOLCK"], indirect=True)
def test_processes_of_two_hosts_load_one_cold_op(site: Site) -> None:
    loads = [host.load(site.op) for _ in range(4) for host in (site.one, site.other)]
    assert wait_for(loads) == [0] * 8
    site.assert_whole()
    assert len(site.server_cache.entries()) == 1
    assert site.one.compiles + site.other.compiles >= 1
    if site.locks != "ENOLCK":
        assert max(site.one.compiles, site.other.compiles) == 1


@pytest.mark.parametrize("site", ["local"], indirect=True)
def test_an_op_published_on_one_host_loads_at_once_on_the_other(site: Site) -> None:
    # The other host has looked before, and goes on believing that there is nothing.
    assert site.other.cache.entries() == []
    assert not (site.other.mount / "cache" / "v1" / "ops").exists()
    assert wait_for([site.one.load(site.op)]) == [0]
    assert wait_for([site.other.load(site.op) for _ in range(2)]) == [0, 0]
    site.assert_whole()
    assert len(site.server_cache.entries()) == 1
