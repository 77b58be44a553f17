"""Full disks, read-only and wrong directories, broken compilers: a clear error, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from op_builder import env
from op_builder.cache.store import Cache
from op_builder.engine.ninja import find_ninja
from op_builder.errors import CacheError, IncompatibleOpError, LoadError
from op_builder.load.decision import decide
from op_builder.load.load import load
from tests.support.builds import cached_or_built, row_of
from tests.support.compilers import needs_gxx, program
from tests.support.files import mounted
from tests.support.small_ops import SmallBuilder, added
from tests.support.users import STRANGER, run_as


def with_cache(small: SmallBuilder, root: Path) -> SmallBuilder:
    return SmallBuilder(small.directory, Cache(root))


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@contextmanager
def full_disk(directory: Path, size: str, leave_bytes: int) -> Iterator[tuple[Path, Path]]:
    """A file system on which ``leave_bytes`` are free, and the file to remove for more."""
    with mounted(directory, "-t", "tmpfs", "-o", f"size={size}", "tmpfs") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - leave_bytes)))
        yield disk, ballast


# Disks --------------------------------------------------------------------------------------


@needs_gxx
@pytest.mark.parametrize("leave_bytes", [0, 4 << 10, 12 << 10], ids=["the source", "the assembly", "the library"])
def test_a_full_temporary_directory_is_named(
    small: SmallBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave_bytes: int
) -> None:
    with full_disk(tmp_path / "disk", "1m", leave_bytes) as (disk, ballast):
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        with pytest.raises(IncompatibleOpError, match="No space left") as caught:
            small.load()
        assert "set TMPDIR" in caught.value.remedy
        assert "ACCEL_CACHE_DIR" not in str(caught.value)
        assert not small.has_function("puts", ("c",))
        ballast.unlink()
        assert small.has_function("puts", ("c",))
        assert added(small.load()) == 1.0


@pytest.mark.parametrize("leave_bytes", [0, 24 << 10, 96 << 10])
def test_a_full_disk_is_a_cache_error_and_space_heals_it(small: SmallBuilder, tmp_path: Path, leave_bytes: int) -> None:
    with full_disk(tmp_path / "disk", "2m", leave_bytes) as (disk, ballast):
        builder = with_cache(small, disk / "cache")
        with pytest.raises(CacheError, match="No space left") as caught:
            builder.load()
        assert "ACCEL_CACHE_DIR" in caught.value.remedy
        assert builder.cache.entries() == []
        assert [name for name in files_below(disk / "cache") if name.startswith(("v1/ops", "v1/staging"))] == []
        ballast.unlink()
        assert added(with_cache(small, disk / "cache").load()) == 1.0
        (entry,) = builder.cache.entries()
        assert entry.is_intact()


def test_a_file_system_without_inodes_is_named(small: SmallBuilder, tmp_path: Path) -> None:
    small_disk = full_disk(tmp_path / "disk", "64m,nr_inodes=12", 32 << 20)
    with small_disk as (disk, _), pytest.raises((CacheError, IncompatibleOpError), match="no inodes are left"):
        with_cache(small, disk / "cache").load()


def test_a_read_only_cache_serves_hits(small: SmallBuilder, tmp_path: Path) -> None:
    assert added(with_cache(small, tmp_path / "cache").load()) == 1.0
    own = env.scope(XDG_CACHE_HOME=str(tmp_path / "own"))
    with own, mounted(tmp_path / "frozen", "--bind", str(tmp_path / "cache")) as frozen:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(frozen)], check=True)
        before = files_below(frozen)
        builder = with_cache(small, frozen)
        assert builder.is_compatible()
        assert added(builder.load()) == 1.0
        shutil.rmtree(small.cache.home / "memo")  # through the writable side: what was remembered is gone
        assert added(with_cache(small, frozen).load()) == 1.0
        assert files_below(frozen) == [name for name in before if not name.startswith("v1/memo")]


@pytest.mark.parametrize("is_built", [False, True])
def test_a_cache_on_a_noexec_mount_is_refused_by_the_report_and_by_load(
    small: SmallBuilder, tmp_path: Path, is_built: bool
) -> None:
    if is_built:
        cached_or_built(small)
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "noexec", "tmpfs") as disk:
        if is_built:
            shutil.copytree(small.cache.root, disk / "cache")
        builder = with_cache(small, disk / "cache")
        row = row_of(builder)
        assert not row.compatible
        assert "noexec" in row.reason
        assert "noexec" in row.remedy
        with pytest.raises((IncompatibleOpError, LoadError)) as caught:
            builder.load()
        assert "noexec" in caught.value.remedy
        assert "ACCEL_CACHE_DIR" in caught.value.remedy


def test_a_wheel_on_a_noexec_mount_is_refused_by_the_report_and_by_load(small: SmallBuilder, tmp_path: Path) -> None:
    entry = cached_or_built(small)
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "noexec", "tmpfs") as disk, env.scope(ACCEL_JIT="0"):
        root = disk / "_prebuilt"
        shutil.copytree(entry.directory.parent, root / "ops" / "small" / entry.directory.parent.name)
        spec, cache = small.spec()._replace(prebuilt_roots=(root,)), Cache(tmp_path / "empty")
        decision = decide(spec, lambda: cache)
        assert decision.rejection is not None
        assert decision.prebuilt is not None
        assert "noexec" in str(decision.prebuilt.rejection)
        with pytest.raises(IncompatibleOpError, match="ACCEL_JIT=0"):
            load(spec, cache)


BUILD = """
import sys
from op_builder.engine import Binding, Recipe, build_library
text = '#include <vector>\\nextern "C" int f() { return std::vector<int>(3).size(); }'
build_library(Recipe("limited", Binding.C, (), {"f.cpp": text}), cache_root=sys.argv[1])
"""


@needs_gxx
@pytest.mark.parametrize("limit", ["-n 8", "-n 10", "-n 12", "-f 0", "-f 10"])
def test_a_limit_of_the_process_that_ends_a_build_is_named(tmp_path: Path, limit: str) -> None:
    command = ["bash", "-c", f'ulimit {limit}; exec "$@"', "bash", sys.executable, "-c", BUILD, str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"(ulimit {limit[:2]})" in done.stderr.splitlines()[-1]


def test_a_command_in_a_removed_directory_names_it(tmp_path: Path) -> None:
    script = f'cd "{tmp_path}" && rmdir "{tmp_path}" && exec "$@"'
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "op_builder", "report", "pin_memory"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "directory was removed" in done.stderr


REPORT = """
import json
from op_builder.report.__main__ import main
raise SystemExit(main(["--json"]))
"""


def test_the_report_of_a_user_without_a_home_directory_is_complete() -> None:
    done = run_as(STRANGER, REPORT, HOME="/root", ACCEL_CACHE_DIR=None)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "error" in found["environment"]["cache"] or not found["environment"]["cache"]["writable"]
    (adam,) = (row for row in found["ops"] if row["name"] == "cpu_adam")
    assert adam["installed"] or "cache directory" in adam["reason"]


# Compilers ----------------------------------------------------------------------------------


@needs_gxx
def test_a_compiler_that_fails_makes_the_op_incompatible_until_it_works(small: SmallBuilder, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    fails = "echo \"g++: fatal error: cannot execute 'cc1plus'\" >&2; exit 1"
    body = f'case "$*" in *.cpp*) [ ! -e {tmp_path}/broken ] || {{ {fails}; }};; esac\nexec g++ "$@"'
    with env.scope(CXX=str(program(tmp_path / "bin" / "g++", body))):
        assert small.is_compatible() is False
        assert "cannot execute 'cc1plus'" in str(small.error_log)
        with pytest.raises(IncompatibleOpError, match="cannot compile"):
            small.load()
        (tmp_path / "broken").unlink()
        assert added(small.load()) == 1.0, "a failure is not remembered"


@needs_gxx
def test_a_compiler_behind_a_wrapper_that_prints_on_stdout_works(small: SmallBuilder, tmp_path: Path) -> None:
    program(tmp_path / "bin" / "g++", f'echo "hello world"\nexec {shutil.which("g++")} "$@"')
    with env.scope(CXX=str(tmp_path / "bin" / "g++"), PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}"):
        assert added(small.load()) == 1.0


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "#!/does/not/exist\n"])
def test_a_broken_ninja_does_not_hide_a_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    broken = program(tmp_path / "bin" / "ninja", "")
    broken.write_text(script)
    good = find_ninja()
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python3"))
    monkeypatch.setitem(sys.modules, "ninja", None)
    with env.scope(PATH=f"{broken.parent}:{Path(good).parent}:{os.environ['PATH']}"):
        assert find_ninja() == good


@needs_gxx
@pytest.mark.parametrize("builds", [1, 2])
def test_a_cache_that_is_removed_during_a_build_is_made_again_once(
    small: SmallBuilder, tmp_path: Path, builds: int
) -> None:
    log, root = tmp_path / "log", small.cache.root
    remove = f"echo . >>{log}; [ $(wc -l <{log}) -gt {builds} ] || rm -rf {root}"
    compiler = program(tmp_path / "bin" / "g++", f'case "$*" in *.o.d*) {remove};; esac\nexec g++ "$@"')
    with env.scope(CXX=str(compiler)):
        if builds == 1:
            assert added(small.load()) == 1.0
        else:
            with pytest.raises(CacheError, match="was removed"):
                small.load()
