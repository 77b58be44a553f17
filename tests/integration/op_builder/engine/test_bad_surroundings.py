"""Full disks, read-only and wrong directories, broken compilers: a clear error, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from op_builder import env
from op_builder.cache.store import Cache
from op_builder.errors import AccelError, CacheError, IncompatibleOpError
from tests.support.compilers import fake_compiler, program
from tests.support.small_ops import SmallBuilder, added


@contextmanager
def mounted(directory: Path, *options: str) -> Iterator[Path]:
    """A file system of its own at ``directory``; the test is skipped where mounting is not permitted."""
    if shutil.which("mount") is None:
        pytest.skip("no mount program")
    directory.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(directory)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def with_cache(small: SmallBuilder, root: Path) -> SmallBuilder:
    return SmallBuilder(small.directory, Cache(root))


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def fill(directory: Path, leave_bytes: int) -> Path:
    """Fill the file system of ``directory`` but for ``leave_bytes``; returns the file that takes the space."""
    ballast = directory / "ballast"
    free = shutil.disk_usage(directory).free
    ballast.write_bytes(bytes(max(0, free - leave_bytes)))
    return ballast


# Disks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave_bytes", [0, 24 << 10, 96 << 10])
def test_a_full_disk_is_a_cache_error_and_space_heals_it(small: SmallBuilder, tmp_path: Path, leave_bytes: int) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=2m", "tmpfs") as disk:
        ballast = fill(disk, leave_bytes)
        builder = with_cache(small, disk / "cache")
        with pytest.raises(CacheError, match="No space left on the disk of the cache directory") as caught:
            builder.load()
        assert "ACCEL_CACHE_DIR" in caught.value.remedy
        assert builder.cache.entries() == []
        assert [name for name in files_below(disk / "cache") if name.startswith(("ops", "staging"))] == []
        ballast.unlink()
        assert added(with_cache(small, disk / "cache").load()) == 1.0
        (entry,) = builder.cache.entries()
        assert entry.is_intact()


def test_a_full_disk_still_serves_what_it_has(small: SmallBuilder, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=4m", "tmpfs") as disk:
        assert added(with_cache(small, disk / "cache").load()) == 1.0
        fill(disk, 0)
        with env.scope(ACCEL_JIT="0"):
            assert added(with_cache(small, disk / "cache").load()) == 1.0


@pytest.fixture
def read_only(small: SmallBuilder, tmp_path: Path) -> Iterator[Path]:
    """A cache that holds ``small``, mounted read-only; the user's own is in ``tmp_path / "own"``."""
    assert added(with_cache(small, tmp_path / "cache").load()) == 1.0
    own = env.scope(XDG_CACHE_HOME=str(tmp_path / "own"))
    with own, mounted(tmp_path / "frozen", "--bind", str(tmp_path / "cache")):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(tmp_path / "frozen")], check=True)
        yield tmp_path / "frozen"


def test_a_read_only_cache_serves_hits(small: SmallBuilder, read_only: Path) -> None:
    before = files_below(read_only)
    builder = with_cache(small, read_only)
    assert builder.is_compatible()
    assert added(builder.load()) == 1.0
    shutil.rmtree(small.cache.root / "memo")  # through the writable side: what was remembered is gone
    assert added(with_cache(small, read_only).load()) == 1.0
    assert files_below(read_only) == [name for name in before if not name.startswith("memo")]


@pytest.mark.usefixtures("new_process")
def test_beside_a_read_only_cache_the_compiler_is_asked_once_for_all_processes(
    small: SmallBuilder, read_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(small.cache.root / "memo")
    asked = tmp_path / "asked"
    compiler = program(tmp_path / "bin" / "g++", f'echo "$*" >> "$ASKED"\nexec {shutil.which("g++")} "$@"')
    monkeypatch.setenv("PATH", f"{compiler.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(asked))
    with_cache(small, read_only).is_compatible(verbose=False)
    first = asked.read_text()
    assert "--version" in first
    with_cache(small, read_only).is_compatible(verbose=False)  # with memos of its own, as another process has
    assert asked.read_text().count("--version") == 1
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["accel-ops"]


def test_a_read_only_cache_that_lacks_the_op_is_a_cache_error(small: SmallBuilder, read_only: Path) -> None:
    (small.directory / "include" / "nested.h").write_text("#define NESTED 2.0f\n")
    with pytest.raises(CacheError, match="cannot be written") as caught:
        with_cache(small, read_only).load()
    assert str(read_only) in str(caught.value)
    assert "ACCEL_CACHE_DIR" in caught.value.remedy


@pytest.mark.parametrize("below", ["", "sub/cache"])
def test_a_cache_directory_that_is_a_file_is_a_cache_error(small: SmallBuilder, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("precious")
    builder = with_cache(small, tmp_path / "file" / below)
    with pytest.raises(CacheError, match="cannot be written") as caught:
        builder.load()
    assert str(tmp_path / "file") in str(caught.value)
    assert (tmp_path / "file").read_text() == "precious"


# Compilers ----------------------------------------------------------------------------------


def test_a_compiler_that_says_yes_and_writes_nothing_is_an_error(small: SmallBuilder, tmp_path: Path) -> None:
    with env.scope(CXX=fake_compiler(tmp_path / "bin" / "g++", "exit 0")), pytest.raises(AccelError) as caught:
        small.load()
    assert "small" in str(caught.value)
    assert small.cache.entries() == []
    assert added(small.load()) == 1.0


def test_a_compiler_that_fails_the_probe_makes_the_op_incompatible(small: SmallBuilder, tmp_path: Path) -> None:
    answers = 'case "$*" in\n--version) echo "g++ 12.0";;\n-dumpmachine) echo x86_64-linux-gnu;;\n'
    fails = "*) echo \"g++: fatal error: cannot execute 'cc1plus'\" >&2; exit 1;;\nesac"
    broken = program(tmp_path / "bin" / "g++", f"{answers}-print-prog-name=*) echo cc1plus;;\n{fails}")
    with env.scope(CXX=str(broken)):
        assert small.is_compatible() is False
        assert "cannot execute 'cc1plus'" in str(small.error_log)
        with pytest.raises(IncompatibleOpError, match="cannot compile a small program") as caught:
            small.load()
        assert caught.value.remedy
    assert added(small.load()) == 1.0, "a failure is not remembered"


def test_missing_headers_of_the_standard_library_are_named(small: SmallBuilder, tmp_path: Path) -> None:
    bare = program(tmp_path / "bin" / "g++", f'exec {shutil.which("g++")} -nostdinc++ "$@"')
    with env.scope(CXX=str(bare)):
        assert not small.is_compatible()
        assert "apt-get install g++" in str(small.error_log)
