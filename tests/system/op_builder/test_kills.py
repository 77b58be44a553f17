"""Processes killed at every step: no load waits, nothing is torn, and nothing is left behind."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from op_builder import OpBuilder
from op_builder.cache.__main__ import main
from op_builder.cache.bundle import export_bundle, import_bundle
from op_builder.cache.eviction import examine, remove, usages
from op_builder.cache.layout import GENERATED
from op_builder.cache.store import Cache
from op_builder.engine import build
from op_builder.load.resolver import cached_or_built
from tests.support.compilers import wait_until
from tests.support.processes import fork, quick, race, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.first]


# Each starts eight processes at once; a fault of the lock or of publishing showed in the first two.
ROUNDS = 2


@pytest.mark.parametrize("locks", [True, False])
def test_rounds_of_eight_processes(tmp_path: Path, locks: bool) -> None:
    compiles = [race(tmp_path / str(number), locks=locks) for number in range(ROUNDS)]
    assert not locks or compiles == [1] * ROUNDS


# The functions that begin the steps of a build. Between two of them the process writes nothing that others read, so one
# kill at each, and one while the compilers run, meets every state that a killed build can leave.
STEPS = ("write_file", "run_ninja", "inspect", "read_headers", "publish")


def end_this_process(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_build_killed_at_any_step_leaves_nothing_and_the_next_load_builds(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    for step in STEPS:
        builder = quick(tmp_path / step, cache)

        def load_until(step: str = step, builder: OpBuilder = builder) -> None:
            setattr(build, step, end_this_process)
            builder.load()

        assert wait_for([fork(load_until)]) == [-signal.SIGKILL]
        assert wait_for([fork(builder.load)]) == [0]
    builder = quick(tmp_path / "compiling", cache, slow=True)
    pid = fork(builder.load)
    wait_until(lambda: bool(compilers_of(tmp_path)))
    os.kill(pid, signal.SIGKILL)
    assert wait_for([pid]) == [-signal.SIGKILL]
    assert wait_for([fork(builder.load)]) == [0]

    assert all(entry.is_intact() for entry in cache.entries())
    assert len(cache.entries()) == len(STEPS) + 1
    wait_until(lambda: not compilers_of(tmp_path))
    with cache.staging("quick") as staging:
        assert list((cache.home / "staging").iterdir()) == [staging]


# A turn of the works below takes less. More kills: KILLS=200 pytest tests/system/op_builder/test_kills.py -k random
KILLS, LONGEST_S = int(os.environ.get("KILLS", "12")), 1.5

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


@pytest.mark.parametrize("work", ["build", "verify", "publish"])
def test_processes_killed_at_random_moments_block_no_load_and_delete_nothing_foreign(tmp_path: Path, work: str) -> None:
    cache = Cache(tmp_path / "cache")
    builder = quick(tmp_path / "op", cache)
    assert wait_for([fork(builder.load)]) == [0]
    bundle = tmp_path / "bundle"
    export_bundle(cache, cache.entries(), bundle)
    foreign = [cache.home / folder / name for folder in GENERATED for name in ("notes.md", "data/notes.md")]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
        os.utime(path, (0, 0))

    def command(name: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            assert main([name, "--directory", str(cache.root)]) in (0, 1)

    def build_once() -> None:
        cached_or_built(builder)
        remove(cache, usages(cache))

    def verify_once() -> None:
        for entry in import_bundle(cache, bundle):
            entry.artifact.write_bytes(b"damaged")
        command("verify")

    def publish_once() -> None:
        import_bundle(cache, bundle)
        cached_or_built(builder)
        command("clear")

    once = {"build": build_once, "verify": verify_once, "publish": publish_once}[work]

    def forever() -> None:
        while True:
            once()

    moments = random.Random(work)
    for _ in range(KILLS // 3):
        pid = fork(forever)
        time.sleep(moments.uniform(0, LONGEST_S))
        os.kill(pid, signal.SIGKILL)
        assert wait_for([pid]) == [-signal.SIGKILL]
        assert wait_for([fork(builder.load)]) == [0]
        assert examine(Cache(cache.root, is_ours=False))[1] == {}
    assert [path.read_text() for path in foreign] == ["precious"] * len(foreign)


def compilers_of(directory: Path) -> list[list[str]]:
    """Command lines of the compilers, linkers and ninjas at work for ``directory``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            # Ninja gets no path; it works in the build's directory.
            if process.pid != os.getpid() and str(directory) in " ".join([process.cwd(), *process.cmdline()]):
                found.append(process.cmdline())
    return found
