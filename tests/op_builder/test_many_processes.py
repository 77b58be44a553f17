"""Many processes, one cache: one compile, no torn files, nobody waits for the dead.

The processes are forked from this one, which has torch imported, so that what is measured is ours.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from op_builder import env
from op_builder.cache.bundle import export_bundle, import_bundle
from op_builder.cache.maintenance import examine, remove, usages
from op_builder.cache.staging import sign_of_life, sweep, this_host
from op_builder.cache.store import Cache
from op_builder.engine import build as engine
from op_builder.engine.ninja import Limits, Progress
from op_builder.errors import BuildCancelled
from op_builder.load import resolver
from tests.support.small_ops import SmallBuilder

# A library that registers nothing: it compiles in a moment, and is built, tried and published like any.
SOURCE = """
#include <vector>
#ifdef SLOW
constexpr long count() { long n = 0; for (int i = 0; i < 1 << 19; ++i) n += i; return n; }
static_assert(count() != 0);
#endif
extern "C" __attribute__((visibility("default"))) int accel_register_library(const char*, char*, unsigned long) {
  return std::vector<int>(1).size() - 1;
}
"""
LOAD_TIMEOUT_S = 120


class QuickBuilder(SmallBuilder):
    NAME = "quick"


def quick(directory: Path, cache: Cache, *, slow: bool = False) -> QuickBuilder:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "include").mkdir(exist_ok=True)
    (directory / "small.cpp").write_text(SOURCE)
    builder = QuickBuilder(directory, cache)
    # A content of its own for each test, so that no other test's library of this process is taken.
    builder.flags = [f"-DDIRECTORY={abs(hash(str(directory)))}"]
    if slow:
        builder.flags += ["-DSLOW", "-fconstexpr-ops-limit=100000000000", "-fconstexpr-loop-limit=100000000"]
    return builder


def fork(work: Callable[[], None]) -> int:
    """Run ``work`` in a child; its exit status tells whether it came through."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    return pid


def wait_for(pids: list[int], timeout_s: float = LOAD_TIMEOUT_S) -> list[int]:
    """The children's exit statuses; one that does not end in time is killed and counts as hung."""
    deadline = time.monotonic() + timeout_s
    statuses = []
    for pid in pids:
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                statuses.append(os.waitstatus_to_exitcode(status))
                break
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                statuses.append(-999)
                break
            time.sleep(0.01)
    return statuses


def without_locks() -> None:
    """A file system that knows no locks, at the boundary where ours asks for them."""
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    fcntl.flock = refuse


def load_with_log(builder: SmallBuilder, log: Path) -> None:
    """Load, and write down each compiler run of this process."""
    run_ninja = engine.run_ninja

    def counted(*arguments: object, **options: object) -> bool:
        with log.open("a") as file:
            file.write("compiled\n")
        return run_ninja(*arguments, **options)  # type: ignore[arg-type]

    engine.run_ninja = counted
    builder.load()


def assert_whole(cache: Cache) -> None:
    entries = cache.entries()
    assert entries
    assert all(entry.is_intact() for entry in entries)
    rejected = cache.root / "rejected"
    assert not rejected.exists() or not list(rejected.iterdir())
    assert list((cache.root / "staging").iterdir()) == []


def race(directory: Path, *, locks: bool, processes: int = 8) -> int:
    """Let many processes load one cold op; returns how often it was compiled."""
    cache = Cache(directory / "cache")
    builder, log = quick(directory / "op", cache), directory / "log"

    def work() -> None:
        if not locks:
            without_locks()
        load_with_log(builder, log)

    assert wait_for([fork(work) for _ in range(processes)]) == [0] * processes
    assert_whole(cache)
    assert len(cache.entries()) == 1
    return log.read_text().count("compiled")


def test_eight_processes_compile_once(tmp_path: Path) -> None:
    assert race(tmp_path, locks=True) == 1


def test_eight_processes_without_locks_all_load_one_entry(tmp_path: Path) -> None:
    assert race(tmp_path, locks=False) >= 1


@pytest.mark.slow
@pytest.mark.first
@pytest.mark.parametrize("locks", [True, False])
def test_twenty_rounds_of_eight_processes(tmp_path: Path, locks: bool) -> None:
    compiles = [race(tmp_path / str(number), locks=locks) for number in range(20)]
    assert not locks or compiles == [1] * 20


def endless_builder(directory: Path, cache: Cache) -> int:
    """A process that has the lock of the op in ``directory`` and compiles for ever."""
    held = directory / "held"

    def hold() -> None:
        def never(*_: object, **__: object) -> bool:
            held.write_text("")
            time.sleep(1000)
            return False

        engine.run_ninja = never
        quick(directory, cache).load()

    builder = fork(hold)
    while not held.exists():
        time.sleep(0.01)
    return builder


def test_waiting_processes_say_for_whom_and_take_over_when_it_dies(
    tmp_path: Path, cache: Cache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_ANNOUNCE_WAIT_S", 0.3)
    builder = endless_builder(tmp_path / "op", cache)

    class KillOnce(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("Waiting since"):
                os.kill(builder, signal.SIGKILL)

    handler = KillOnce()
    logging.getLogger("op_builder").addHandler(handler)
    try:
        quick(tmp_path / "op", cache).load()
    finally:
        logging.getLogger("op_builder").removeHandler(handler)
    assert wait_for([builder], 1) == [-signal.SIGKILL]
    assert f"built by process {builder}" in caplog.text
    assert "Waiting since" in caplog.text
    assert len(cache.entries()) == 1
    (owner,) = (cache.root / "locks").glob("*.owner")
    assert owner.read_text() == "", "nobody builds it any more"


def test_a_builder_that_was_killed_is_not_named(tmp_path: Path, cache: Cache) -> None:
    builder = endless_builder(tmp_path / "op", cache)
    (owner,) = (cache.root / "locks").glob("*.owner")
    assert engine._read(owner).startswith(f"process {builder} on ")
    os.kill(builder, signal.SIGKILL)
    assert wait_for([builder]) == [-signal.SIGKILL]
    assert str(builder) in owner.read_text()
    assert engine._read(owner) == "another process"


def test_a_builder_that_was_stopped_is_waited_for_no_longer_than_a_build_may_take(
    tmp_path: Path, cache: Cache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = endless_builder(tmp_path / "op", cache)
    os.kill(builder, signal.SIGSTOP)
    run_ninja = engine.run_ninja

    def patiently(program: str, directory: Path, log: Path, limits: Limits, progress: Progress | None) -> bool:
        return run_ninja(program, directory, log, replace(limits, timeout_s=600), progress)

    monkeypatch.setattr(engine, "run_ninja", patiently)
    try:
        with env.scope(ACCEL_COMPILE_TIMEOUT_S="1"):
            quick(tmp_path / "op", cache).load()
    finally:
        os.kill(builder, signal.SIGKILL)
        wait_for([builder])
    assert f"being built by process {builder}" in caplog.text
    assert len(cache.entries()) == 1


def test_waiting_for_another_process_can_be_stopped(tmp_path: Path, cache: Cache) -> None:
    builder = endless_builder(tmp_path / "op", cache)
    options = engine.BuildOptions()
    options.cancel.set()
    try:
        with pytest.raises(BuildCancelled):
            resolver.compile_now(resolver.Request.of(quick(tmp_path / "op", cache)), options)
    finally:
        os.kill(builder, signal.SIGKILL)
        wait_for([builder])


def test_waiting_is_told_of_ever_more_seldom() -> None:
    assert list(itertools.islice(engine._announcement_times(), 5)) == [3, 10, 30, 90, 150]


@pytest.mark.parametrize(
    ("silent_s", "progress", "said"),
    [
        pytest.param(0.1, None, ["Compiling 'quick' (1 file), 0 s so far ..."], id="long"),
        pytest.param(600, None, [], id="short"),
        pytest.param(0.1, lambda *_: None, [], id="somebody is told of every step"),
    ],
)
def test_a_build_that_takes_long_says_so_once(
    tmp_path: Path,
    cache: Cache,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    silent_s: float,
    progress: Progress | None,
    said: list[str],
) -> None:
    run_ninja = engine.run_ninja

    def slowly(*arguments: object) -> bool:
        time.sleep(0.5)
        return run_ninja(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "_SILENT_S", silent_s)
    monkeypatch.setattr(engine, "run_ninja", slowly)
    request = resolver.Request.of(quick(tmp_path / "op", cache))
    resolver.compile_now(request, engine.BuildOptions(progress=progress))
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == said


@pytest.mark.slow
@pytest.mark.first
def test_fifty_builds_killed_at_random_moments_and_fifty_loads(tmp_path: Path) -> None:
    chance = random.Random(20)
    cache = Cache(tmp_path / "cache")
    timed = quick(tmp_path / "timing", cache, slow=True)
    started = time.monotonic()
    assert wait_for([fork(lambda: timed.load() and None)]) == [0]
    whole_build_s = time.monotonic() - started
    killed_early = 0
    for number in range(50):
        builder = quick(tmp_path / str(number), cache, slow=True)
        pid = fork(lambda builder=builder: builder.load() and None)  # type: ignore[misc]
        time.sleep(chance.uniform(0, whole_build_s))
        os.kill(pid, signal.SIGKILL)
        was_killed = wait_for([pid]) == [-signal.SIGKILL]
        killed_early += was_killed
        started = time.monotonic()
        assert wait_for([fork(lambda builder=builder: builder.load() and None)], 60) == [0]  # type: ignore[misc]
        if was_killed:
            # That load was a whole build, the latest measure of one: the machine's speed varies.
            whole_build_s = time.monotonic() - started
    assert killed_early >= 25
    assert all(entry.is_intact() for entry in cache.entries())
    assert len(cache.entries()) == 51
    deadline = time.monotonic() + 60
    while left := compilers_of(tmp_path):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    with cache.staging("quick") as staging:
        assert list((cache.root / "staging").iterdir()) == [staging]


@pytest.mark.slow
def test_imports_removals_and_exports_killed_at_random_moments(tmp_path: Path) -> None:
    chance = random.Random(21)
    made = Cache(tmp_path / "made")
    for number in range(3):
        builder = quick(tmp_path / str(number), made)
        assert wait_for([fork(lambda builder=builder: builder.load() and None)]) == [0]  # type: ignore[misc]
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
            # Ninja is told no path; it works in the build's directory.
            if process.pid != os.getpid() and str(directory) in " ".join([process.cwd(), *process.cmdline()]):
                found.append(process.cmdline())
    return found


def test_a_new_staging_directory_without_its_lock_is_not_swept(cache: Cache) -> None:
    ended = fork(lambda: None)
    assert wait_for([ended]) == [0]
    directory = cache.writable_dir("staging") / f"quick@{this_host()}@{ended}@x"
    directory.mkdir()
    assert sweep(directory.parent) == 0
    with sign_of_life(directory):
        assert sweep(directory.parent) == 0
    assert sweep(directory.parent) == 1


def test_readers_of_a_read_only_mirror_hit(tmp_path: Path) -> None:
    import shutil

    cache = Cache(tmp_path / "cache")
    builder = quick(tmp_path / "op", cache)
    assert wait_for([fork(lambda: builder.load() and None)]) == [0]
    shutil.copytree(tmp_path / "cache" / "ops", tmp_path / "mirror" / "ops")
    mirror = Cache(tmp_path / "mirror")
    reader = quick(tmp_path / "op", mirror)

    def read() -> None:
        if os.geteuid() == 0:  # permissions do not bind root
            os.setgid(65534)
            os.setuid(65534)
        reader.load()

    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for parent in list(tmp_path.parents)[:-1]:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o055)
    try:
        assert wait_for([fork(read)]) == [0]
    finally:
        for path in [tmp_path, *tmp_path.rglob("*")]:
            path.chmod(0o755)
    assert {path.name for path in (tmp_path / "mirror").iterdir()} == {"ops"}
