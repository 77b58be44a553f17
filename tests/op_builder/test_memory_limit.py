"""In a real memory control group of 4 GiB there run no more compilers than fit.

The tests make the group as root, below this process's own, and start processes in it. The number of
cores is pretended: memory is to be what limits.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from op_builder import env
from op_builder.system.cgroups import HostFiles, directories
from tests.support.foreign_package import ROOT

GIBIBYTE = 1 << 30
LIMIT_BYTES = 4 * GIBIBYTE

PREPARE = """
import json, sys
from pathlib import Path
from op_builder.engine import jobs
jobs.available_cores = lambda *_: 16
"""

COUNT_JOBS = (
    PREPARE
    + """
from op_builder.plan import Binding, BuildPlan, Language, Source

def count(binding):
    sources = tuple(Source(Path(f"{i}.cpp"), f"{i}.cpp", Language.CXX) for i in range(16))
    return jobs.job_count(BuildPlan("many", "many", binding, sources, (), (), (), ()))

def counts():
    return {binding.name: count(binding) for binding in Binding}

found = {"nothing used": counts()}
"""
)

USE_MEMORY = """
cached = Path(sys.argv[1])
with cached.open("wb") as file:
    file.truncate(1 << 30)  # a hole: reading it fills the page cache and no disk
with cached.open("rb", buffering=0) as file:
    while file.read(1 << 24):
        pass
found["1 GiB of page cache"] = counts()
used = b"x" * (2 << 30)
found["2 GiB used"] = counts()
"""

TELL = "\nprint(json.dumps(found))\n"

BUILD = (
    PREPARE
    + """
from op_builder import Binding, OpBuilder, resolver
from op_builder.cache.store import Cache

class Many(OpBuilder):
    NAME, BUILD_VAR, BINDING = "many", "ACCEL_BUILD_MANY", Binding.TORCH
    cache = Cache(Path(sys.argv[1]) / "cache")
    def sources(self):
        return sorted(str(path) for path in Path(sys.argv[1]).glob("*.cpp"))
    def cxx_args(self):
        return ["-O0"]

builder = Many()
entry = resolver.cached_or_built(builder)
print(json.dumps({"intact": entry.is_intact(), "sources": len(builder.plan().sources)}))
"""
)

MODULE = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "many"};
PyMODINIT_FUNC PyInit_many() { return PyModule_Create(&definition); }
"""

# Stands in for g++: a job that needs 1.5 GiB for a moment, and notes when it begins and ends.
HUNGRY_COMPILER = """#!{python} -S
import os, sys, time
def note(text):
    log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, text)
    os.close(log)
if "-MF" in sys.argv:
    note(b"+")
    held = b"x" * (1536 << 20)
    time.sleep(0.5)
    del held
    note(b"-")
os.execv({compiler!r}, [{compiler!r}, *sys.argv[1:]])
"""


class MemoryGroup:
    """A memory control group, of version 1 or 2."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, code: str, *arguments: str, **variables: str | None) -> dict[str, object]:
        """The JSON that ``code`` prints, run by a new Python in this group."""

        def enter() -> None:
            (self.directory / "cgroup.procs").write_text("0")

        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=env.child_environment(PYTHONPATH=str(ROOT), ACCEL_MAX_JOBS=None, MAX_JOBS=None, **variables),
            preexec_fn=enter,  # before the interpreter starts, so that all its memory counts
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return found

    @property
    def killed(self) -> int:
        """Processes that the kernel ended because the group's memory was used up."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                counters = dict(line.split(" ") for line in (self.directory / name).read_text().splitlines())
                return int(counters["oom_kill"])
        raise AssertionError(f"{self.directory} does not tell what was killed")


def limited(directory: Path) -> str:
    """Give the new group ``directory`` its limit; returns why it cannot have one."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        if (directory / name).exists():
            (directory / name).write_text(str(LIMIT_BYTES))
            return ""
    return "memory is not controlled below it"


def remove_group(directory: Path) -> None:
    """Remove an empty group; its last process may be on its way out still."""
    for _ in range(100):
        try:
            directory.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)
    directory.rmdir()


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    """A group of 4 GiB, below the innermost of this process's groups that can have one."""
    if os.geteuid() != 0:
        pytest.skip("only root makes control groups")
    if psutil.virtual_memory().available < LIMIT_BYTES + GIBIBYTE:
        pytest.skip("less than 5 GiB of memory are free, so the machine would be the limit")
    reason = "there is no memory control group"
    for parent in directories("memory", HostFiles()):
        directory = parent / f"accel-ops-test-{os.getpid()}"
        try:
            directory.mkdir()
        except OSError as error:
            reason = f"no group can be made below {parent}: {error.strerror}"
            continue
        try:
            reason = limited(directory)
            if not reason:
                yield MemoryGroup(directory)
                return
        finally:
            remove_group(directory)
    pytest.skip(reason)


@pytest.fixture
def inner_group(group: MemoryGroup) -> Iterator[MemoryGroup]:
    """A group without a limit of its own, below the one of 4 GiB."""
    directory = group.directory / "inner"
    directory.mkdir()
    try:
        yield MemoryGroup(directory)
    finally:
        remove_group(directory)


def test_as_many_jobs_as_the_group_has_memory_for(group: MemoryGroup, tmp_path: Path) -> None:
    found = group.run(COUNT_JOBS + USE_MEMORY + TELL, str(tmp_path / "cached"))
    # 1800 MiB for a file on torch's C++ API, 400 MiB for one on the Stable ABI.
    assert found["nothing used"] in ({"TORCH": 2, "STABLE": 10}, {"TORCH": 2, "STABLE": 9})
    assert found["1 GiB of page cache"] == found["nothing used"], "the kernel drops it when memory is needed"
    assert found["2 GiB used"] in ({"TORCH": 1, "STABLE": 5}, {"TORCH": 1, "STABLE": 4})
    assert group.killed == 0


def test_the_limit_of_a_group_further_out_counts(inner_group: MemoryGroup) -> None:
    found = inner_group.run(COUNT_JOBS + TELL)
    assert found["nothing used"]["TORCH"] == 2  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.first
def test_a_build_in_the_group_never_runs_more_jobs_than_fit(group: MemoryGroup, tmp_path: Path) -> None:
    for number in range(11):
        (tmp_path / f"part{number}.cpp").write_text(f"int part{number}() {{ return {number}; }}\n")
    (tmp_path / "module.cpp").write_text(MODULE)
    compiler, log = tmp_path / "hungry-g++", tmp_path / "jobs.log"
    compiler.write_text(HUNGRY_COMPILER.format(python=sys.executable, log=str(log), compiler=str(shutil.which("g++"))))
    compiler.chmod(0o755)
    built = group.run(BUILD, str(tmp_path), CXX=str(compiler))
    assert built == {"intact": True, "sources": 12}
    running = most = 0
    for sign in log.read_text():
        running += 1 if sign == "+" else -1
        most = max(most, running)
    assert log.read_text().count("+") == 12
    assert running == 0
    assert 1 <= most <= 2, "two of 1.5 GiB fit into 4 GiB"
    assert group.killed == 0
