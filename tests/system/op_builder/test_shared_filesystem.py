"""The cache on a slow network file system that two hosts share: real mounts, see tests/support/slow_filesystem.py.

Whatever a host knows late, no load fails, and nothing damaged is opened.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from op_builder.cache.eviction import is_on_network
from op_builder.cache.store import MANIFEST, Cache, Entry, Manifest
from tests.support import fuse
from tests.support.processes import QuickBuilder, assert_whole, fork, load_with_log, quick, wait_for
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

_NEW_HOST_NAME = 0x04000000  # CLONE_NEWUTS


class Host:
    """One host: its name, and its mount of the shared directory."""

    def __init__(self, mount: Path) -> None:
        self.name, self.mount, self.log = mount.name, mount, mount.with_name(f"{mount.name}.log")

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
    backing = tmp_path / "server"
    backing.mkdir()
    mounts = [tmp_path / name for name in ("one", "other")]
    program = "tests.support.slow_filesystem"
    try:
        with contextlib.ExitStack() as stack:
            for mount in mounts:
                stack.enter_context(fuse.served(program, backing, mount, request.param, mount=mount))
            one, other = map(Host, mounts)
            yield Site(Cache(backing / "cache"), one, other, quick(tmp_path / "op", one.cache), request.param)
    except fuse.CannotMount as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("site", ["shared", "ENOLCK"], indirect=True)
def test_processes_of_two_hosts_load_one_cold_op(site: Site) -> None:
    assert (is_on_network(site.one.mount), is_on_network(site.server_cache.root)) == (True, False)
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
