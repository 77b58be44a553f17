"""In a real control group a build runs no more compilers than fit.

The test makes the group as root, below this process's own, and starts processes in it. The number of cores is
pretended: memory is to be the limit.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from op_builder import env
from op_builder.system.cgroups import HostFiles, directories
from tests.support.compilers import program
from tests.support.foreign_package import ROOT
from tests.support.small_ops import MODULE
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.first]

GIBIBYTE = 1 << 30
LIMIT_BYTES = 4 * GIBIBYTE
SUPPORT = ROOT / "tests" / "support"


def is_removed(directory: Path) -> bool:
    """Remove an empty group, whose last process may still be ending."""
    with contextlib.suppress(OSError):
        directory.rmdir()
    return not directory.exists()


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of 4 GiB, below the innermost of this process's that can have one."""
    if os.geteuid() != 0:
        pytest.skip("only root makes control groups")
    if psutil.virtual_memory().available < LIMIT_BYTES + GIBIBYTE:
        pytest.skip("less than 5 GiB of memory are free, so the machine would be the limit")
    limits: list[Path] = []
    for parent in directories("memory", HostFiles()):
        directory = parent / f"accel-ops-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            directory.mkdir()
            limits = [*directory.glob("memory.max"), *directory.glob("memory.limit_in_bytes")]  # of either version
            if limits:
                break
            directory.rmdir()
    if not limits:
        pytest.skip("no control group of memory can be made")
    limits[0].write_text(str(LIMIT_BYTES))
    yield directory
    wait_until(lambda: is_removed(directory))


def test_a_build_in_the_group_never_runs_more_jobs_than_fit(group: Path, tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"part{number}.cpp").write_text(f"int part{number}() {{ return {number}; }}\n")
    (tmp_path / "module.cpp").write_text(MODULE)
    log = tmp_path / "jobs.log"
    compiler = program(tmp_path / "g++", f'exec {sys.executable} -S {SUPPORT / "hungry_compiler.py"} {log} "$@"')
    settings = {"PYTHONPATH": str(ROOT), "ACCEL_MAX_JOBS": None, "MAX_JOBS": None, "CXX": str(compiler)}
    done = subprocess.run(
        [sys.executable, SUPPORT / "build_many_files.py", str(tmp_path)],
        env=env.child_environment(**settings),
        # Before the interpreter starts, so that all its memory counts.
        preexec_fn=lambda: (group / "cgroup.procs").write_text("0"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    signs = log.read_text()
    running = [signs[: at + 1].count("+") - signs[: at + 1].count("-") for at in range(len(signs))]
    assert (signs.count("+"), running[-1]) == (6, 0)
    assert 1 <= max(running) <= 2, "two of 1.5 GiB fit into 4 GiB"
    events = next(filter(Path.exists, (group / name for name in ("memory.events", "memory.oom_control"))))
    assert "oom_kill 0\n" in events.read_text()
