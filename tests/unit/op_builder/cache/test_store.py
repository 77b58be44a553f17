"""The store: an entry is there whole or not at all, and damaged ones are set aside."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from op_builder import env
from op_builder.cache.eviction import keep_in_bounds, remove, usages
from op_builder.cache.fingerprint import MANIFEST_FORMAT
from op_builder.cache.staging import sign_of_life, sweep, this_host
from op_builder.cache.store import MANIFEST, Cache, Manifest, default_cache_dir
from op_builder.errors import CacheError
from tests.support.entries import edit_record, find, manifest, publish

NO_PROCESS = 2**22 + 1  # beyond the numbers that Linux gives to processes


def rejected(cache: Cache) -> list[Path]:
    return list((cache.home / "rejected").iterdir())


def test_published_entry_is_found_and_reads_back_the_same(cache: Cache) -> None:
    entry = publish(cache)
    assert find(cache) == entry
    assert entry.artifact.read_bytes() == b"binary"
    assert Manifest.from_json(entry.manifest.to_json()) == entry.manifest
    assert find(cache, flags="-O0") is None


def test_without_a_compiler_any_compilers_entry_serves_but_no_other_flags(cache: Cache) -> None:
    publish(cache)
    parts = {"c++ compiler": ""}
    assert find(cache, any_compiler=True, **parts) is not None
    assert find(cache, any_compiler=True, flags="-O0", **parts) is None


def test_the_loser_of_a_race_takes_the_winners_entry(cache: Cache) -> None:
    first = publish(cache)
    assert publish(cache).directory == first.directory
    assert len(cache.entries()) == 1


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


NOT_TEXT = manifest()._replace(key_parts=3).to_json()  # type: ignore[arg-type]
DAMAGED = {"empty": "", "torn": "{", "list": "[]", "bare": "{}", "null": "null", "number": "3", "no utf-8": "{\xff"}


@pytest.mark.parametrize(
    "text", [*DAMAGED.values(), f'{{"format": {MANIFEST_FORMAT}}}', NOT_TEXT], ids=[*DAMAGED, "format", "no parts"]
)
def test_a_damaged_manifest_is_set_aside(cache: Cache, text: str) -> None:
    entry = publish(cache)
    (entry.directory / MANIFEST).write_text(text, encoding="latin-1")
    assert find(cache, any_compiler=True) is None
    assert cache.entries() == []
    assert not entry.directory.exists()


def test_a_manifest_that_was_changed_and_can_still_be_read_is_set_aside(cache: Cache) -> None:
    entry = publish(cache)
    edit_record(entry.directory / MANIFEST, lambda record: record["key_parts"].update({"c++ compiler": "g++ 13"}))
    assert find(cache) is None
    assert not entry.directory.exists()
    assert find(cache, any_compiler=True) is None
    assert publish(cache).directory == entry.directory


def test_an_entry_without_its_manifest_is_replaced_by_the_next_build(cache: Cache) -> None:
    (publish(cache).directory / MANIFEST).unlink()
    assert find(cache) is None
    entry = publish(cache)
    assert find(cache) == entry
    assert len(rejected(cache)) == 1


SET_ASIDE = """
import sys
from pathlib import Path
from op_builder.cache.store import Cache
cache = Cache(Path(sys.argv[1]))
(entry,) = cache.entries()
cache.set_aside(entry.directory, "it is damaged")
"""


def test_the_encoding_of_the_locale_does_not_matter(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "caché")
    entry = publish(cache)
    edit_record(entry.directory / MANIFEST, lambda record: record.update(check="célèbre"))
    entry.artifact.write_bytes(b"")
    environment = env.child_environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    command = [sys.executable, "-c", SET_ASIDE, str(cache.root)]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    (reason,) = cache.home.glob("rejected/*/reason.txt")
    assert reason.read_text(encoding="utf-8") == f"{entry.directory}: it is damaged\n"


def test_a_cache_that_is_not_ours_names_what_is_damaged_and_moves_nothing(cache: Cache) -> None:
    torn, altered = publish(cache, flags="-O0"), publish(cache)
    (torn.directory / MANIFEST).write_text("{")
    altered.artifact.write_bytes(b"")
    other = Cache(cache.root, is_ours=False)
    assert find(other) is None
    assert find(other, flags="-O0") is None
    assert other.damaged == {
        altered.directory: "its binary does not match its manifest",
        torn.directory: "its manifest cannot be read",
    }
    assert torn.directory.is_dir()
    assert altered.directory.is_dir()


def test_a_manifest_of_another_version_is_left_alone(cache: Cache) -> None:
    entry = publish(cache)
    (entry.directory / MANIFEST).write_text('{"format": 99}')
    assert find(cache) is None
    assert cache.entries() == []
    assert entry.artifact.is_file()


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


class Meanwhile:
    """``os.rename`` before, or after, whose first call for a finished build something else happens."""

    def __init__(self, before: Callable[[], object] = lambda: None, lost_answer: int = 0) -> None:
        self._rename = os.rename
        self._before = before
        self._lost_answer = lost_answer

    def __call__(self, old: str | Path, new: str | Path) -> None:
        if Path(old).name != "result":
            self._rename(old, new)
            return
        before, self._before = self._before, lambda: None
        before()
        self._rename(old, new)
        lost, self._lost_answer = self._lost_answer, 0
        if lost:
            raise OSError(lost, os.strerror(lost))


@pytest.mark.parametrize("answer", [0, errno.ENOENT, errno.ESTALE], ids=["removed above", "ENOENT", "ESTALE"])
def test_publishing_succeeds_though_the_directory_is_removed_or_an_answer_is_lost(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    above = cache.home / "ops" / "small" / manifest().key.plan.digest
    meanwhile = Meanwhile(lost_answer=answer) if answer else Meanwhile(above.rmdir)
    monkeypatch.setattr("op_builder.cache.store.os.rename", meanwhile)
    entry = publish(cache)
    assert entry.is_intact()
    assert find(cache) == entry


def test_publishing_over_a_damaged_entry_takes_what_another_published_meanwhile(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(cache).artifact.write_bytes(b"")
    aside, calls = cache.set_aside, []

    def aside_and_another_publishes(directory: Path, reason: str) -> None:
        aside(directory, reason)
        if not calls:
            calls.append(1)
            publish(Cache(cache.root))

    monkeypatch.setattr(cache, "set_aside", aside_and_another_publishes)
    assert publish(cache).is_intact()
    assert calls


def test_a_place_that_cannot_be_freed_is_an_error(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(cache).artifact.write_bytes(b"")
    monkeypatch.setattr(cache, "set_aside", lambda *_: None)
    with pytest.raises(CacheError, match="not empty"):
        publish(cache)


def test_entries_that_vanish_while_the_cache_is_kept_in_bounds_fail_no_build(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = publish(cache, bytes(2 << 20), flags="-O0"), publish(cache)
    listed, going = cache.entries(), usages(cache)
    shutil.rmtree(large.directory)
    monkeypatch.setattr(cache, "entries", lambda *_: listed)
    with env.scope(ACCEL_CACHE_MAX_MIB="1"):
        keep_in_bounds(cache)
    assert find(cache) == small
    remove(cache, going)
    assert find(cache) is None


# Staging ------------------------------------------------------------------------------------


def test_staging_is_removed_after_success_and_after_an_error(cache: Cache) -> None:
    publish(cache)
    with pytest.raises(RuntimeError, match="on the way"), cache.staging("small"):
        raise RuntimeError("on the way")
    assert list((cache.home / "staging").iterdir()) == []


def abandoned(parent: Path, owner: str, age_s: float = 60) -> Path:
    directory = parent / f"small@{owner}@0a1b2c3d"
    directory.mkdir(parents=True)
    (directory / "half.o").write_text("")
    os.utime(directory, (time.time() - age_s, time.time() - age_s))
    return directory


def test_what_a_killed_build_left_is_swept_by_the_next(cache: Cache) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    left = abandoned(cache.writable_dir("staging"), f"{this_host()}@{done.pid}")
    with cache.staging("small"):
        assert not left.exists()


def test_a_living_build_is_not_swept(cache: Cache) -> None:
    by_process = abandoned(cache.writable_dir("staging"), f"{this_host()}@{os.getpid()}")
    by_lock = abandoned(cache.writable_dir("staging"), f"{this_host()}@{NO_PROCESS}")
    elsewhere = abandoned(cache.writable_dir("staging"), "another-host@1")
    # Of the same name, but not this machine as it runs now.
    namesake = abandoned(cache.writable_dir("staging"), f"{socket.gethostname()}-00000000@{NO_PROCESS}")
    with sign_of_life(by_lock):
        os.utime(by_lock, (time.time() - 60, time.time() - 60))
        with cache.staging("small"):
            assert all(path.exists() for path in (by_process, by_lock, elsewhere, namesake))


def test_a_new_staging_directory_without_its_lock_is_not_swept(cache: Cache) -> None:
    directory = cache.writable_dir("staging") / f"quick@{this_host()}@{NO_PROCESS}@0a1b2c3d"
    directory.mkdir()
    assert sweep(cache.root) == 0
    with sign_of_life(directory):
        assert sweep(cache.root) == 0
    assert sweep(cache.root) == 1


def test_without_locks_a_build_that_may_live_is_not_swept_for_a_day(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", failing(OSError(errno.ENOLCK, "no locks available")))
    left = []
    for number, age_s in enumerate((60, 25 * 3600)):
        left.append(abandoned(cache.writable_dir("staging"), f"{this_host()}@{NO_PROCESS + number}"))
        (left[-1] / "alive").write_text("")
        os.utime(left[-1], (time.time() - age_s, time.time() - age_s))
    with cache.staging("small"):
        assert [path.exists() for path in left] == [True, False]


# The directory ------------------------------------------------------------------------------


def test_default_directory_follows_the_variables(tmp_path: Path) -> None:
    with env.scope(ACCEL_CACHE_DIR=str(tmp_path / "a")):
        assert default_cache_dir() == tmp_path / "a"
    with env.scope(ACCEL_CACHE_DIR=None, XDG_CACHE_HOME=str(tmp_path)):
        assert default_cache_dir() == tmp_path / "accel-ops"
    with env.scope(ACCEL_CACHE_DIR=None, XDG_CACHE_HOME=None, HOME=str(tmp_path)):
        assert default_cache_dir() == tmp_path / ".cache" / "accel-ops"


def test_a_relative_cache_directory_counts_from_where_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with env.scope(ACCEL_CACHE_DIR="here"), monkeypatch.context() as there:
        there.chdir(tmp_path)
        cache = Cache()
    assert cache.root == tmp_path / "here"


def test_a_user_without_a_home_learns_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "home", failing(RuntimeError("Could not determine home directory.")))
    with env.scope(ACCEL_CACHE_DIR=None, XDG_CACHE_HOME=None):
        with pytest.raises(CacheError, match="no home directory") as caught:
            Cache()
        assert "ACCEL_CACHE_DIR" in caught.value.remedy
        assert Cache(tmp_path).entries() == []


def test_a_directory_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be written") as caught, Cache(tmp_path / "file" / "c").staging("x"):
        pass
    assert str(tmp_path / "file") in str(caught.value)
    assert "ACCEL_CACHE_DIR" in caught.value.remedy


def test_a_file_elsewhere_that_cannot_be_read_is_not_blamed_on_the_cache(cache: Cache, tmp_path: Path) -> None:
    missing = tmp_path / "elsewhere" / "x.h"
    with pytest.raises(CacheError, match="cannot be used") as caught, cache.errors_explained():
        missing.read_text()
    assert str(missing) in caught.value.message
    assert "ACCEL_CACHE_DIR" not in caught.value.remedy
