"""Processes killed at every step: no load waits, nothing is torn, and nothing is left behind."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

import pytest

from op_builder import OpBuilder
from op_builder.cache.bundle import export_bundle, import_bundle
from op_builder.cache.eviction import examine, remove, usages
from op_builder.cache.store import Cache
from op_builder.engine import build
from tests.support.processes import fork, quick, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.first]


# The functions that begin the steps of a build. Between two of them the process writes nothing that others read, so one
# kill at each, and one while the compilers run (in test_build_command), meets every state that a killed build leaves.
STEPS = ("write_file", "run_ninja", "inspect", "key_of_steps", "publish")


def end_this_process(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_build_killed_at_any_step_leaves_nothing_and_the_next_load_builds(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    for step in STEPS:
        assert hasattr(build, step)
        builder = quick(tmp_path / step, cache)

        def load_until(step: str = step, builder: OpBuilder = builder) -> None:
            setattr(build, step, end_this_process)
            builder.load()

        assert wait_for([fork(load_until)]) == [-signal.SIGKILL]
        assert wait_for([fork(builder.load)]) == [0]
    assert all(entry.is_intact() for entry in cache.entries())
    assert len(cache.entries()) == len(STEPS)
    with cache.staging("quick") as staging:
        assert list((cache.home / "staging").iterdir()) == [staging]


CHANGES_OF_FILES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")


def end_this_process_at(change: int) -> None:
    """Kill this process just before it changes the file system for the ``change``-th time."""
    left = itertools.count(change, -1)

    def hook(event: str, _: object) -> None:
        if event in CHANGES_OF_FILES and next(left) == 0:
            end_this_process()

    sys.addaudithook(hook)


def test_imports_removals_and_exports_killed_before_any_change(tmp_path: Path) -> None:
    made = Cache(tmp_path / "made")
    for number in range(2):
        assert wait_for([fork(quick(tmp_path / str(number), made).load)]) == [0]
    bundle, exported = tmp_path / "bundle", tmp_path / "exported"
    assert export_bundle(made, made.entries(), bundle) == 2
    cache = Cache(tmp_path / "cache")

    # One turn makes about a hundred changes; steps of seven meet each kind of them in both turns.
    for change in range(0, 200, 7):

        def work(change: int = change) -> None:
            end_this_process_at(change)
            while True:
                entries = import_bundle(cache, bundle)
                export_bundle(cache, entries, exported)
                remove(cache, usages(cache))

        assert wait_for([fork(work)]) == [-signal.SIGKILL]
        assert examine(Cache(cache.root, is_ours=False))[1] == {}
        if exported.exists():
            assert len(import_bundle(Cache(tmp_path / "exports"), exported)) == 2
    assert exported.exists()
    for left in (cache.home / "staging").iterdir():
        os.utime(left, (0, 0))  # one that was killed before it held its lock is left alone for ten seconds
    assert len(import_bundle(cache, bundle)) == 2
    with cache.staging("quick") as staging:
        assert list((cache.home / "staging").iterdir()) == [staging]
