"""Many processes that load one op.

They are forked from the test's own, which has torch imported, so that what takes time is ours.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from op_builder.cache.store import Cache
from op_builder.engine import build as engine
from tests.support.small_ops import ENTRY, SmallBuilder
from tests.support.waiting import wait_until

LOAD_TIMEOUT_S = 600


class QuickBuilder(SmallBuilder):
    NAME = "quick"


def quick(directory: Path, cache: Cache) -> QuickBuilder:
    """A builder of an op that compiles in a moment."""
    (directory / "include").mkdir(parents=True, exist_ok=True)
    (directory / "small.cpp").write_text(f"#include <vector>\n{ENTRY}")
    builder = QuickBuilder(directory, cache)
    # A content of its own for each test, so that no other test's library of this process is taken.
    builder.flags = [f"-DDIRECTORY={abs(hash(str(directory)))}"]
    return builder


def fork(work: Callable[[], object]) -> int:
    """Run ``work`` in a child, whose exit status is 0 if it returned; its process id."""
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
        while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < deadline:
            time.sleep(0.01)
        if not ended[0]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        statuses.append(os.waitstatus_to_exitcode(ended[1]) if ended[0] else -999)
    return statuses


def without_locks() -> None:
    """Make this process see a file system that has no locks."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    fcntl.flock = refuse


def load_with_log(builder: SmallBuilder, log: Path) -> None:
    """Load, and write down each compiler run of this process."""
    run_ninja = engine.run_ninja

    def counted(*arguments: object, **options: object) -> int:
        with log.open("a") as file:
            file.write("compiled\n")
        return run_ninja(*arguments, **options)  # type: ignore[arg-type]

    engine.run_ninja = counted
    builder.load()


def assert_whole(cache: Cache) -> None:
    """Every entry is intact, none was set aside, and nothing is left of any build."""
    entries = cache.entries()
    assert entries
    assert all(entry.is_intact() for entry in entries)
    rejected = cache.home / "rejected"
    assert not rejected.exists() or not list(rejected.iterdir())
    assert list((cache.home / "staging").iterdir()) == []


def endless_builder(directory: Path, cache: Cache) -> int:
    """A process that has the lock of the op in ``directory`` and compiles for ever."""
    held = directory / "held"

    def compile_for_ever(*_: object, **__: object) -> int:
        held.touch()
        time.sleep(1000)
        return 1

    def hold() -> None:
        engine.run_ninja = compile_for_ever
        quick(directory, cache).load()

    builder = fork(hold)
    wait_until(held.exists)
    return builder
