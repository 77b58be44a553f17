"""Many processes, one cache: one compile, no torn files, no wait for a dead process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from op_builder import env
from op_builder.cache.store import Cache
from op_builder.engine.build import BuildOptions
from op_builder.errors import BuildCancelled
from tests.support.builds import compile_op
from tests.support.compilers import needs_gxx, program
from tests.support.processes import assert_whole, endless_builder, fork, quick, wait_for, without_locks
from tests.support.waiting import wait_until


def test_eight_processes_without_locks_load_one_entry(tmp_path: Path, cache: Cache) -> None:
    builder = quick(tmp_path / "op", cache)

    def work() -> None:
        without_locks()
        builder.load()

    assert wait_for([fork(work) for _ in range(8)]) == [0] * 8
    assert_whole(cache)
    assert len(cache.entries()) == 1


@needs_gxx
def test_eight_processes_run_the_compiler_as_often_as_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    compiler = program(tmp_path / "bin" / "g++", f'echo "$*" >>{log}; exec g++ "$@"')
    counts = []
    with env.scope(CXX=str(compiler)):
        for processes in (1, 8):
            log.write_text("")
            directory = tmp_path / str(processes)
            builder = quick(directory / "op", Cache(directory / "cache"))
            assert wait_for([fork(builder.load) for _ in range(processes)]) == [0] * processes
            assert_whole(builder.cache)
            assert len(builder.cache.entries()) == 1
            counts.append(len(log.read_text().splitlines()))
    assert counts[0] == counts[1]


@pytest.fixture
def builder(tmp_path: Path, cache: Cache) -> Iterator[int]:
    """A process that has the lock of the op and compiles for ever."""
    process = endless_builder(tmp_path / "op", cache)
    yield process
    os.kill(process, signal.SIGKILL)
    wait_for([process])


def test_waiting_processes_name_the_builder_and_take_over_when_it_dies(
    tmp_path: Path, cache: Cache, caplog: pytest.LogCaptureFixture, builder: int
) -> None:
    def kill_when_waited_for() -> None:
        wait_until(lambda: "Still waiting" in caplog.text)
        os.kill(builder, signal.SIGKILL)

    killer = threading.Thread(target=kill_when_waited_for)
    killer.start()
    quick(tmp_path / "op", cache).load()
    killer.join()
    assert f"Still waiting for process {builder}" in caplog.text
    assert len(cache.entries()) == 1
    (lock,) = (cache.home / "locks").glob("quick-*")
    assert lock.read_text() == "", "no process builds it any more"


@pytest.mark.usefixtures("builder")
def test_waiting_for_another_process_can_be_cancelled(tmp_path: Path, cache: Cache) -> None:
    options = BuildOptions()
    options.cancel.set()
    with pytest.raises(BuildCancelled):
        compile_op(quick(tmp_path / "op", cache), options)


@needs_gxx
def test_a_long_build_is_reported(tmp_path: Path, cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    steps: list[str] = []
    options = BuildOptions(progress=lambda _done, _total, step: steps.append(step))
    compiler = program(tmp_path / "bin" / "g++", 'case "$*" in *small.cpp*) sleep 4;; esac\nexec g++ "$@"')
    with env.scope(CXX=str(compiler)):
        compile_op(quick(tmp_path / "op", cache), options)
    assert steps
    assert "0 steps done, not yet compiled: small.cpp" in caplog.text


@pytest.mark.slow
def test_waiting_for_a_stopped_builder_ends_with_the_timeout_of_a_build(
    tmp_path: Path, cache: Cache, caplog: pytest.LogCaptureFixture, builder: int
) -> None:
    os.kill(builder, signal.SIGSTOP)
    with env.scope(ACCEL_COMPILE_TIMEOUT_S="20"):
        quick(tmp_path / "op", cache).load()
    assert f"Gave up waiting for process {builder}" in caplog.text
    assert len(cache.entries()) == 1
