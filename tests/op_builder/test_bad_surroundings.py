"""Full disks, read-only and wrong directories, compilers that die: a clear error, and no ruins."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from op_builder import env
from op_builder.cache.store import Cache
from op_builder.errors import AccelError, CacheError, CompileError, IncompatibleOpError
from tests.support.foreign_package import run_python
from tests.support.small_ops import SmallBuilder, make_small, replace_content


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


def works(builder: SmallBuilder) -> bool:
    x = torch.zeros(2)
    builder.load().add_(x)
    return x.tolist() == [1.0, 1.0]


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def fill(directory: Path, leave_bytes: int) -> Path:
    """Fill the file system of ``directory`` but for ``leave_bytes``; returns the file that takes the space."""
    ballast = directory / "ballast"
    free = shutil.disk_usage(directory).free
    ballast.write_bytes(bytes(max(0, free - leave_bytes)))
    return ballast


# Disks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave_bytes", [0, 8 << 10, 24 << 10, 96 << 10])
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
        assert works(with_cache(small, disk / "cache"))
        (entry,) = builder.cache.entries()
        assert entry.is_intact()


def test_a_full_disk_still_serves_what_it_has(small: SmallBuilder, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=4m", "tmpfs") as disk:
        assert works(with_cache(small, disk / "cache"))
        fill(disk, 0)
        with env.scope(ACCEL_JIT="0"):
            assert works(with_cache(small, disk / "cache"))


@pytest.fixture
def read_only(small: SmallBuilder, tmp_path: Path) -> Iterator[Path]:
    """A cache that holds ``small``, mounted read-only; the user's own is in ``tmp_path / "own"``."""
    assert works(with_cache(small, tmp_path / "cache"))
    own = env.scope(XDG_CACHE_HOME=str(tmp_path / "own"))
    with own, mounted(tmp_path / "frozen", "--bind", str(tmp_path / "cache")):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(tmp_path / "frozen")], check=True)
        yield tmp_path / "frozen"


def test_a_read_only_cache_serves_hits(small: SmallBuilder, read_only: Path) -> None:
    before = files_below(read_only)
    builder = with_cache(small, read_only)
    assert builder.is_compatible()
    assert works(builder)
    shutil.rmtree(small.cache.root / "memo")  # through the writable side: what was remembered is gone
    assert works(with_cache(small, read_only))
    assert files_below(read_only) == [name for name in before if not name.startswith("memo")]


@pytest.mark.usefixtures("new_process")
def test_beside_a_read_only_cache_the_compiler_is_asked_once_for_all_processes(
    small: SmallBuilder, read_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(small.cache.root / "memo")
    compiler, asked = tmp_path / "bin" / "g++", tmp_path / "asked"
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\necho "$*" >> "$ASKED"\nexec {shutil.which("g++")} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(asked))
    with_cache(small, read_only).is_compatible(verbose=False)
    first = asked.read_text()
    assert "--version" in first
    with_cache(small, read_only).is_compatible(verbose=False)  # with memos of its own, as another process has
    assert asked.read_text().count("--version") == 1
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["accel-ops"]


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    for name in ("ACCEL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CacheError, match="no home directory") as caught:
        Cache()
    assert "ACCEL_CACHE_DIR" in caught.value.remedy
    assert Cache(tmp_path).entries() == []


def test_a_read_only_cache_that_lacks_the_op_is_a_cache_error(small: SmallBuilder, read_only: Path) -> None:
    (small.directory / "include" / "nested.h").write_text("#define NESTED 2.0f\n")
    with pytest.raises(CacheError, match="cannot be written") as caught:
        with_cache(small, read_only).load()
    assert str(read_only) in str(caught.value)
    assert "ACCEL_CACHE_DIR" in caught.value.remedy


@pytest.mark.usefixtures("new_process")
def test_a_damaged_entry_in_a_read_only_cache_is_not_loaded(small: SmallBuilder, read_only: Path) -> None:
    (entry,) = small.cache.entries()
    replace_content(entry.artifact, b"altered")
    with env.scope(ACCEL_JIT="0"), pytest.raises(IncompatibleOpError):
        with_cache(small, read_only).load()
    with pytest.raises(CacheError, match="cannot be written"):
        with_cache(small, read_only).load()


@pytest.mark.parametrize("below", ["", "sub/cache"])
def test_a_cache_directory_that_is_a_file_is_a_cache_error(small: SmallBuilder, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("precious")
    builder = with_cache(small, tmp_path / "file" / below)
    with pytest.raises(CacheError, match="cannot be written") as caught:
        builder.load()
    assert str(tmp_path / "file") in str(caught.value)
    assert (tmp_path / "file").read_text() == "precious"


def test_a_relative_cache_directory_counts_from_where_it_was_named(small: SmallBuilder, tmp_path: Path) -> None:
    with env.scope(ACCEL_CACHE_DIR="here"):
        before = Path.cwd()
        os.chdir(tmp_path)
        try:
            cache = Cache()
        finally:
            os.chdir(before)
    assert cache.root == tmp_path / "here"
    assert works(SmallBuilder(small.directory, cache))


# Compilers ----------------------------------------------------------------------------------


def fake_compiler(path: Path, when_compiling: str) -> str:
    """A compiler that answers questions and passes the probe, but treats an op's source its own way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\ncase "$*" in\n*small.cpp*) {when_compiling} ;;\nesac\nexec {shutil.which("g++")} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("when_compiling", "told"),
    [
        ("kill -KILL $$", "small.cpp"),
        ("echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1", "Killed signal"),
        ("echo 'internal compiler error: Segmentation fault' >&2; exit 4", "internal compiler error"),
        ("exit 3", ""),
    ],
)
def test_a_compiler_that_dies_is_a_compile_error_and_leaves_nothing(
    small: SmallBuilder, tmp_path: Path, when_compiling: str, told: str
) -> None:
    with env.scope(CXX=fake_compiler(tmp_path / "bin" / "g++", when_compiling)):
        with pytest.raises(CompileError) as caught:
            small.load()
        assert told in str(caught.value)
        assert "small.cpp" in caught.value.command
        assert Path(caught.value.log_path).is_file()
        assert small.cache.entries() == []
        assert list((small.cache.root / "staging").iterdir()) == []


def test_memory_that_runs_out_is_named_with_the_remedy(small: SmallBuilder, tmp_path: Path) -> None:
    killed = "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1"
    with (
        env.scope(CXX=fake_compiler(tmp_path / "bin" / "g++", killed)),
        pytest.raises(CompileError, match="ACCEL_MAX_JOBS=1"),
    ):
        small.load()


def test_a_compiler_that_says_yes_and_writes_nothing_is_an_error(small: SmallBuilder, tmp_path: Path) -> None:
    with env.scope(CXX=fake_compiler(tmp_path / "bin" / "g++", "exit 0")), pytest.raises(AccelError) as caught:
        small.load()
    assert "small" in str(caught.value)
    assert small.cache.entries() == []
    assert works(small)


def test_a_compiler_that_fails_the_probe_makes_the_op_incompatible(small: SmallBuilder, tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "g++"
    broken.parent.mkdir()
    broken.write_text(
        '#!/bin/sh\ncase "$*" in\n--version) echo "g++ 12.0";;\n-dumpmachine) echo x86_64-linux-gnu;;\n'
        "-print-prog-name=*) echo cc1plus;;\n"
        "*) echo \"g++: fatal error: cannot execute 'cc1plus'\" >&2; exit 1;;\nesac\n"
    )
    broken.chmod(0o755)
    with env.scope(CXX=str(broken)):
        assert small.is_compatible() is False
        assert "cannot execute 'cc1plus'" in str(small.error_log)
        with pytest.raises(IncompatibleOpError, match="cannot compile a small program") as caught:
            small.load()
        assert caught.value.remedy
    assert works(small), "a failure is not remembered"


def test_missing_headers_of_the_standard_library_are_named(small: SmallBuilder, tmp_path: Path) -> None:
    bare = tmp_path / "bin" / "g++"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} -nostdinc++ "$@"\n')
    bare.chmod(0o755)
    with env.scope(CXX=str(bare)):
        assert not small.is_compatible()
        assert "apt-get install g++" in str(small.error_log)


def test_a_compiler_that_writes_latin_1_and_control_characters_is_still_quoted(
    small: SmallBuilder, tmp_path: Path
) -> None:
    odd = "printf 'small.cpp:1:1: error: f\\351v\\033[31m\\n' >&2; exit 1"
    with (
        env.scope(CXX=fake_compiler(tmp_path / "bin" / "g++", odd)),
        pytest.raises(CompileError, match=r"small\.cpp:1:1: error: f"),
    ):
        small.load()


@pytest.mark.slow
def test_a_build_killed_half_way_holds_up_nobody(tmp_path: Path) -> None:
    small = make_small(tmp_path / "op", Cache(tmp_path / "cache"))
    reached = tmp_path / "reached"
    os.mkfifo(reached)
    hanging = fake_compiler(tmp_path / "bin" / "g++", f"echo $$ >{reached}; exec sleep 600")
    program = (
        "from pathlib import Path\nfrom small_ops import SmallBuilder\nfrom op_builder.cache.store import Cache\n"
        f"SmallBuilder(Path({str(small.directory)!r}), Cache(Path({str(small.cache.root)!r}))).load()\n"
    )
    search = f"{Path(__file__).parent}:{Path(__file__).parents[2]}"
    environment = env.child_environment(PYTHONPATH=search, CXX=hanging)
    victim = subprocess.Popen([sys.executable, "-c", program], env=environment)
    compiler = int(reached.read_text())  # returns when the compiler has begun
    victim.kill()
    victim.wait(60)
    os.kill(compiler, signal.SIGKILL)
    done = run_python(program, Path(__file__).parent, CXX=None)
    assert done.returncode == 0, done.stderr
    (entry,) = small.cache.entries()
    assert entry.is_intact()
