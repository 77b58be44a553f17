"""The store: an entry is there whole or not at all, and damaged ones are set aside."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from op_builder import env
from op_builder.cache.staging import process_lock
from op_builder.cache.store import Cache, Manifest
from op_builder.errors import CacheError
from op_builder.system.host import this_host
from tests.support.entries import NO_PROCESS, find, manifest, publish


def rejected(cache: Cache) -> list[Path]:
    return list((cache.home / "rejected").iterdir())


def test_published_entry_is_found_and_reads_back_the_same(cache: Cache) -> None:
    entry = publish(cache)
    assert find(cache) == entry
    assert entry.artifact.read_bytes() == b"binary"
    assert Manifest.from_json(entry.manifest.to_json()) == entry.manifest
    assert find(cache, flags="-O0") is None


def test_without_a_compiler_any_compilers_entry_serves_but_no_other_flags(cache: Cache) -> None:
    entry = publish(cache)
    assert find(cache, any_compiler=True, **{"c++ compiler": ""}) == entry
    for part in ("c++ flags", "flags in CXX"):
        assert find(cache, any_compiler=True, **{"c++ compiler": "", part: "-O0"}) is None


@pytest.mark.parametrize("content", [b"bin", b"BINARY", None], ids=["truncated", "altered", "removed"])
def test_a_damaged_binary_is_set_aside(cache: Cache, content: bytes | None) -> None:
    artifact = publish(cache).artifact
    artifact.unlink()
    if content is not None:
        artifact.write_bytes(content)
    assert find(cache) is None
    assert cache.entries() == []
    assert len(rejected(cache)) == 1
    publish(cache)
    assert find(cache) is not None


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


def test_an_entry_that_cannot_be_seen_whole_is_a_miss_and_stays(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = publish(cache)
    with monkeypatch.context() as late:
        late.setattr("op_builder.cache.store.read_text", failing(OSError(errno.ESTALE, "stale file handle")))
        assert find(cache) is None
        assert cache.entries() == []
    assert find(cache) == entry


def test_an_intact_entry_is_not_set_aside(cache: Cache) -> None:
    entry = publish(cache)
    cache.set_aside(entry.directory, "another host saw it before it was replaced")
    assert find(cache) == entry
    assert rejected(cache) == []


@pytest.mark.parametrize("answer", [0, errno.ENOENT, errno.ESTALE], ids=["removed above", "ENOENT", "ESTALE"])
def test_publishing_succeeds_though_the_directory_is_removed_or_an_answer_is_lost(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    above = cache.home / "ops" / "small" / manifest().key.plan.digest
    rename, renamed = os.rename, []

    def first_rename_fails(old: str | Path, new: str | Path) -> None:
        is_first = Path(old).name == "result" and not renamed
        if is_first:
            renamed.append(new)
            if not answer:
                above.rmdir()
        rename(old, new)
        if is_first and answer:
            raise OSError(answer, os.strerror(answer))

    monkeypatch.setattr("op_builder.cache.store.os.rename", first_rename_fails)
    entry = publish(cache)
    assert renamed
    assert entry.is_intact()
    assert find(cache) == entry


# Staging ------------------------------------------------------------------------------------


def abandoned(cache: Cache, owner: str, age_s: float = 60) -> Path:
    directory = cache.writable_dir("staging") / f"small@{owner}@0a1b2c3d"
    directory.mkdir()
    (directory / "half.o").write_text("")
    os.utime(directory, (time.time() - age_s, time.time() - age_s))
    return directory


def test_a_new_cache_is_usable_after_a_power_cut(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, synced = os.fsync, set()

    def note(descriptor: int) -> None:
        honest(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", note)
    entry = publish(cache)
    for path in cache.root.rglob("*"):  # names remain, data that was not synced is lost
        if path.is_file() and path.stat().st_ino not in synced:
            os.truncate(path, 0)
    after = Cache(cache.root)
    assert find(after) == entry
    publish(after, flags="-O0")
    assert find(after, flags="-O0") is not None


def test_what_a_killed_build_left_is_swept_by_the_next(cache: Cache) -> None:
    left = abandoned(cache, f"{this_host()}@{NO_PROCESS}")
    with cache.staging("small"):
        assert not left.exists()


def test_a_living_build_is_not_swept(cache: Cache) -> None:
    by_process = abandoned(cache, f"{this_host()}@{os.getpid()}")
    by_lock = abandoned(cache, f"{this_host()}@{NO_PROCESS}")
    elsewhere = abandoned(cache, "another-host@1")
    # Of the same name, but not this machine as it runs now.
    namesake = abandoned(cache, f"{socket.gethostname()}-00000000@{NO_PROCESS}")
    with process_lock(by_lock):
        os.utime(by_lock, (time.time() - 60, time.time() - 60))
        with cache.staging("small"):
            assert all(path.exists() for path in (by_process, by_lock, elsewhere, namesake))


def test_without_locks_a_build_that_may_live_is_not_swept_for_a_day(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", failing(OSError(errno.ENOLCK, "no locks available")))
    left = []
    for number, age_s in enumerate((60, 25 * 3600)):
        left.append(abandoned(cache, f"{this_host()}@{NO_PROCESS + number}"))
        (left[-1] / "alive").write_text("")
        os.utime(left[-1], (time.time() - age_s, time.time() - age_s))
    with cache.staging("small"):
        assert [path.exists() for path in left] == [True, False]


# The directory ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "directory"),
    [
        ({"ACCEL_CACHE_DIR": "here"}, "{tmp}/here"),
        ({"XDG_CACHE_HOME": "{tmp}"}, "{tmp}/accel-ops"),
        ({"HOME": "{tmp}"}, "{tmp}/.cache/accel-ops"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/"}, "/.cache/accel-ops"),  # the XDG specification has it ignored
    ],
)
def test_the_default_directory_follows_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], directory: str
) -> None:
    values = {name: value.format(tmp=tmp_path) for name, value in variables.items()}
    with monkeypatch.context() as there, env.scope(**{"ACCEL_CACHE_DIR": None, "XDG_CACHE_HOME": None, **values}):
        there.chdir(tmp_path)
        cache = Cache()
    assert cache.root == Path(directory.format(tmp=tmp_path))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ACCEL_CACHE_DIR": "relative"}, "current directory was deleted"),
        ({"HOME": "here"}, "HOME='here' is relative"),
        ({"HOME": None}, "no home directory"),
    ],
)
def test_a_user_without_a_place_for_the_cache_learns_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str | None], message: str
) -> None:
    (tmp_path / "deleted").mkdir()
    monkeypatch.chdir(tmp_path / "deleted")
    (tmp_path / "deleted").rmdir()
    if variables == {"HOME": None}:  # an id without an entry in the user database
        monkeypatch.setattr(Path, "home", failing(RuntimeError("Could not determine home directory.")))
    with env.scope(**{"ACCEL_CACHE_DIR": None, "XDG_CACHE_HOME": None, **variables}):
        with pytest.raises(CacheError, match=message) as caught:
            Cache()
        assert "ACCEL_CACHE_DIR" in caught.value.remedy
        assert Cache(tmp_path).entries() == []


def test_a_cache_directory_that_is_a_file_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o666)
    with pytest.raises(CacheError, match="is not a directory") as caught, Cache(tmp_path / "file").staging("x"):
        pass
    assert "chmod" not in caught.value.remedy


def test_a_directory_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be written") as caught, Cache(tmp_path / "file" / "c").staging("x"):
        pass
    assert str(tmp_path / "file") in str(caught.value)
    assert "ACCEL_CACHE_DIR" in caught.value.remedy


def test_a_new_cache_may_have_what_a_network_file_system_keeps_of_removed_files(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.root.mkdir()
    for name in (".nfs000000000012d68700000001", ".fuse_hidden-26004-0000000300000001", "lost+found"):
        (cache.root / name).touch()
    with cache.staging("small"):
        pass
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".nfs-notes.txt").touch()
    with pytest.raises(CacheError, match=r"it contains '\.nfs-notes\.txt'"), Cache(tmp_path / "other").staging("small"):
        pass
