"""Processes killed at random moments: no load waits, nothing is torn, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from op_builder.cache.bundle import export_bundle, import_bundle
from op_builder.cache.eviction import examine, remove, usages
from op_builder.cache.store import Cache
from tests.support.compilers import wait_until
from tests.support.processes import fork, quick, race, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.first]


@pytest.mark.parametrize("locks", [True, False])
def test_twenty_rounds_of_eight_processes(tmp_path: Path, locks: bool) -> None:
    compiles = [race(tmp_path / str(number), locks=locks) for number in range(20)]
    assert not locks or compiles == [1] * 20


def test_fifty_builds_killed_at_random_moments_and_fifty_loads(tmp_path: Path) -> None:
    chance = random.Random(20)
    cache = Cache(tmp_path / "cache")
    timed = quick(tmp_path / "timing", cache, slow=True)
    started = time.monotonic()
    assert wait_for([fork(timed.load)]) == [0]
    whole_build_s = time.monotonic() - started
    killed_early = 0
    for number in range(50):
        builder = quick(tmp_path / str(number), cache, slow=True)
        pid = fork(builder.load)
        time.sleep(chance.uniform(0, whole_build_s))
        os.kill(pid, signal.SIGKILL)
        was_killed = wait_for([pid]) == [-signal.SIGKILL]
        killed_early += was_killed
        started = time.monotonic()
        assert wait_for([fork(builder.load)]) == [0]
        if was_killed:
            # That load was a whole build, the latest measure of one: the machine's speed varies.
            whole_build_s = time.monotonic() - started
    assert killed_early >= 25
    assert all(entry.is_intact() for entry in cache.entries())
    assert len(cache.entries()) == 51
    wait_until(lambda: not compilers_of(tmp_path))
    with cache.staging("quick") as staging:
        assert list((cache.root / "staging").iterdir()) == [staging]


def test_imports_removals_and_exports_killed_at_random_moments(tmp_path: Path) -> None:
    chance = random.Random(21)
    made = Cache(tmp_path / "made")
    for number in range(3):
        assert wait_for([fork(quick(tmp_path / str(number), made).load)]) == [0]
    bundle, exported = tmp_path / "bundle", tmp_path / "exported"
    assert export_bundle(made.entries(), bundle) == 3
    cache = Cache(tmp_path / "cache")

    def work() -> None:
        while True:
            entries = import_bundle(cache, bundle)
            export_bundle(entries, exported)
            remove(cache, usages(cache))

    for _ in range(50):
        pid = fork(work)
        time.sleep(chance.uniform(0, 0.2))
        os.kill(pid, signal.SIGKILL)
        assert wait_for([pid]) == [-signal.SIGKILL]
        assert examine(Cache(cache.root, is_ours=False))[1] == {}
        if exported.exists():
            assert len(import_bundle(Cache(tmp_path / "exports"), exported)) == 3
    assert exported.exists()
    for left in (cache.root / "staging").iterdir():
        os.utime(left, (0, 0))  # one that was killed before it held its lock is left alone for ten seconds
    assert len(import_bundle(cache, bundle)) == 3
    with cache.staging("quick") as staging:
        assert list((cache.root / "staging").iterdir()) == [staging]


def compilers_of(directory: Path) -> list[list[str]]:
    """Command lines of the compilers, linkers and ninjas at work for ``directory``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            # Ninja gets no path; it works in the build's directory.
            if process.pid != os.getpid() and str(directory) in " ".join([process.cwd(), *process.cmdline()]):
                found.append(process.cmdline())
    return found
