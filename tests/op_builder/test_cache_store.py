"""The store: an entry is there whole or not at all, and what is damaged is set aside."""

from __future__ import annotations

import errno
import hashlib
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
from test_many_processes import quick

from op_builder import OpBuilder, env
from op_builder.cache.fingerprint import PlanKey
from op_builder.cache.headers import Roots, SystemHeaders
from op_builder.cache.maintenance import keep_in_bounds, remove, usages
from op_builder.cache.staging import sign_of_life, this_host
from op_builder.cache.store import Cache, Entry, Manifest, default_cache_dir
from op_builder.errors import CacheError
from op_builder.load import loader

NO_PROCESS = 2**22 + 1  # beyond the numbers that Linux gives to processes
ROOTS = Roots({"include0": "/nowhere"})


def manifest(content: bytes = b"binary", **changes: str) -> Manifest:
    parts = {"op": "small", "c++ compiler": "g++ 12", **changes}
    return Manifest(
        op="small",
        artifact="small.so",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        kind="accel",
        namespaces=(),
        defined_namespaces=(),
        operators=(),
        key_parts=parts,
        headers=(),
        system_headers=SystemHeaders.of([]),
        check="none",
        built_at="2026-01-01T00:00:00+00:00",
        build_s=1.0,
        torch="2.13.0",
        accel_ops="0.1.0",
        needs={},
    )


def publish(cache: Cache, content: bytes = b"binary", **changes: str) -> Entry:
    with cache.staging("small") as staging:
        result = staging / "result"
        result.mkdir()
        (result / "small.so").write_bytes(content)
        return cache.publish(result, manifest(content, **changes))


def find(cache: Cache, *, any_compiler: bool = False, **changes: str) -> Entry | None:
    key = PlanKey({"op": "small", "c++ compiler": "g++ 12", **changes})
    return cache.find(key, "small", ROOTS, any_compiler=any_compiler)


def test_published_entry_is_found_and_reads_back_the_same(cache: Cache) -> None:
    entry = publish(cache)
    found = find(cache)
    assert found == entry
    assert found is not None
    assert found.artifact.read_bytes() == b"binary"
    assert Manifest.from_json(entry.manifest.to_json()) == entry.manifest


def test_another_key_is_a_miss(cache: Cache) -> None:
    publish(cache)
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


@pytest.mark.parametrize("damage", ["truncate", "alter", "remove"])
def test_a_damaged_binary_is_set_aside(cache: Cache, damage: str) -> None:
    artifact = publish(cache).artifact
    if damage == "truncate":
        artifact.write_bytes(b"bin")
    elif damage == "alter":
        artifact.write_bytes(b"BINARY")
    else:
        artifact.unlink()
    assert find(cache) is None
    assert cache.entries() == []
    assert len(list((cache.root / "rejected").iterdir())) == 1
    publish(cache)
    assert find(cache) is not None


def test_publishing_over_a_damaged_entry_replaces_it(cache: Cache) -> None:
    publish(cache).artifact.write_bytes(b"")
    assert publish(cache).is_intact()
    assert find(cache) is not None


DAMAGED = ["", "{", "[]", "{}", "null", "3", '{"format": 5}', "{\xff"]


@pytest.mark.parametrize("text", DAMAGED, ids=["empty", "torn", "list", "bare", "null", "number", "format", "no utf-8"])
def test_a_damaged_manifest_is_set_aside(cache: Cache, text: str) -> None:
    entry = publish(cache)
    (entry.directory / "manifest.json").write_text(text, encoding="latin-1")
    assert find(cache) is None
    assert cache.entries() == []


def test_a_manifest_without_a_key_is_damaged(cache: Cache) -> None:
    entry = publish(cache)
    text = entry.manifest._replace(key_parts=3).to_json()  # type: ignore[arg-type]
    (entry.directory / "manifest.json").write_text(text)
    assert find(cache, any_compiler=True) is None
    assert cache.entries() == []


def test_a_manifest_that_was_changed_and_can_still_be_read_is_set_aside(cache: Cache) -> None:
    entry = publish(cache)
    told = entry.directory / "manifest.json"
    told.write_text(told.read_text().replace("g++ 12", "g++ 13"))
    assert find(cache) is None
    assert not entry.directory.exists()
    assert find(cache, any_compiler=True) is None
    assert publish(cache).directory == entry.directory


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
    text = entry.manifest.to_json().replace('"check": "none"', '"check": "célèbre"')
    (entry.directory / "manifest.json").write_text(text, encoding="utf-8")
    entry.artifact.write_bytes(b"")
    environment = env.child_environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    command = [sys.executable, "-c", SET_ASIDE, str(cache.root)]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    (reason,) = cache.root.glob("rejected/*/reason.txt")
    assert reason.read_text(encoding="utf-8") == f"{entry.directory}: it is damaged\n"


def test_a_cache_that_is_only_looked_at_names_what_is_damaged_and_moves_nothing(cache: Cache) -> None:
    torn, altered = publish(cache, flags="-O0"), publish(cache)
    (torn.directory / "manifest.json").write_text("{")
    altered.artifact.write_bytes(b"")
    looked_at = Cache(cache.root, is_ours=False)
    assert find(looked_at) is None
    assert find(looked_at, flags="-O0") is None
    assert looked_at.damaged == {
        altered.directory: "its binary does not match its manifest",
        torn.directory: "its manifest cannot be read",
    }
    assert torn.directory.is_dir()
    assert altered.directory.is_dir()


def test_a_manifest_of_another_version_is_left_alone(cache: Cache) -> None:
    entry = publish(cache)
    (entry.directory / "manifest.json").write_text('{"format": 99}')
    assert find(cache) is None
    assert cache.entries() == []
    assert entry.artifact.is_file()


def test_an_entry_that_cannot_be_seen_whole_is_a_miss_and_stays(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = publish(cache)
    with monkeypatch.context() as late:
        late.setattr(Path, "read_text", failing(OSError(errno.ESTALE, "stale file handle")))
        assert find(cache) is None
        assert cache.entries() == []
    assert find(cache) == entry


def test_what_is_whole_is_not_set_aside(cache: Cache) -> None:
    entry = publish(cache)
    cache.set_aside(entry.directory, "another host saw it before it was mended")
    assert find(cache) == entry
    assert list((cache.root / "rejected").iterdir()) == []


def test_an_entry_without_its_manifest_is_replaced_by_the_next_build(cache: Cache) -> None:
    (publish(cache).directory / "manifest.json").unlink()
    assert find(cache) is None
    entry = publish(cache)
    assert find(cache) == entry
    assert len(list((cache.root / "rejected").iterdir())) == 1


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


class Meanwhile:
    """``os.rename`` before, or after, whose first call for a finished build something else happens."""

    def __init__(self, before: Callable[[], object] | None = None, lost_answer: int = 0) -> None:
        self._rename = os.rename
        self._before = before
        self._lost_answer = lost_answer

    def __call__(self, old: str | Path, new: str | Path) -> None:
        if Path(old).name != "result":
            self._rename(old, new)
            return
        before, self._before = self._before, None
        if before is not None:
            before()
        self._rename(old, new)
        lost, self._lost_answer = self._lost_answer, 0
        if lost:
            raise OSError(lost, os.strerror(lost))


def test_publishing_goes_on_when_the_directory_above_is_removed_meanwhile(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = cache.root / "ops" / "small" / manifest().key.plan.digest
    monkeypatch.setattr("op_builder.cache.store.os.rename", Meanwhile(above.rmdir))
    assert publish(cache).is_intact()


@pytest.mark.parametrize("answer", [errno.ENOENT, errno.ESTALE], ids=["ENOENT", "ESTALE"])
def test_publishing_succeeds_when_the_answer_of_the_rename_is_lost(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    monkeypatch.setattr("op_builder.cache.store.os.rename", Meanwhile(lost_answer=answer))
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


def test_an_op_whose_entry_is_removed_before_it_is_opened_is_built_again(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_entry, removed = loader.open_entry, []

    def remove_first(entry: Entry, builder: OpBuilder) -> Any:
        if not removed:
            removed.append(entry)
            shutil.rmtree(entry.directory)
        return open_entry(entry, builder)

    monkeypatch.setattr(loader, "open_entry", remove_first)
    quick(tmp_path / "op", cache).load()
    assert len(cache.entries()) == 1


def test_staging_is_gone_after_success_and_after_an_error(cache: Cache) -> None:
    publish(cache)
    with pytest.raises(RuntimeError, match="on the way"), cache.staging("small"):
        raise RuntimeError("on the way")
    assert list((cache.root / "staging").iterdir()) == []


def abandoned(parent: Path, owner: str) -> Path:
    directory = parent / f"small@{owner}@x"
    directory.mkdir(parents=True)
    (directory / "half.o").write_text("")
    os.utime(directory, (time.time() - 60, time.time() - 60))
    return directory


def test_what_a_killed_build_left_is_swept_by_the_next(cache: Cache) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    left = abandoned(cache.root / "staging", f"{this_host()}@{done.pid}")
    with cache.staging("small"):
        assert not left.exists()


def test_a_living_build_is_not_swept(cache: Cache) -> None:
    by_process = abandoned(cache.root / "staging", f"{this_host()}@{os.getpid()}")
    by_lock = abandoned(cache.root / "staging", f"{this_host()}@{NO_PROCESS}")
    elsewhere = abandoned(cache.root / "staging", "another-host@1")
    # Of the same name, but not this machine as it runs now.
    namesake = abandoned(cache.root / "staging", f"{socket.gethostname()}-00000000@{NO_PROCESS}")
    with sign_of_life(by_lock):
        os.utime(by_lock, (time.time() - 60, time.time() - 60))
        with cache.staging("small"):
            assert by_process.exists()
            assert by_lock.exists()
            assert elsewhere.exists()
            assert namesake.exists()


def test_without_locks_a_build_that_may_live_is_not_swept_for_a_day(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("op_builder.cache.staging.fcntl.flock", refuse)
    perhaps = abandoned(cache.root / "staging", f"{this_host()}@{NO_PROCESS}")
    (perhaps / "alive").write_text("")
    yesterday = abandoned(cache.root / "staging", f"{this_host()}@{NO_PROCESS + 1}")
    (yesterday / "alive").write_text("")
    for directory, age_s in ((perhaps, 60), (yesterday, 25 * 3600)):
        os.utime(directory, (time.time() - age_s, time.time() - age_s))
    with cache.staging("small"):
        assert perhaps.exists()
        assert not yesterday.exists()


def test_looking_makes_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "absent")
    assert find(cache) is None
    assert cache.entries() == []
    assert cache.size_bytes() == 0
    assert not (tmp_path / "absent").exists()


def test_size_counts_every_file(cache: Cache) -> None:
    publish(cache, b"x" * 1000)
    assert cache.size_bytes() > 1000


def test_default_directory_follows_the_variables(tmp_path: Path) -> None:
    with env.scope(ACCEL_CACHE_DIR=str(tmp_path / "a")):
        assert default_cache_dir() == tmp_path / "a"
    with env.scope(ACCEL_CACHE_DIR=None, XDG_CACHE_HOME=str(tmp_path)):
        assert default_cache_dir() == tmp_path / "accel-ops"
    with env.scope(ACCEL_CACHE_DIR=None, XDG_CACHE_HOME=None, HOME=str(tmp_path)):
        assert default_cache_dir() == tmp_path / ".cache" / "accel-ops"


def test_a_directory_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be written") as caught, Cache(tmp_path / "file" / "c").staging("x"):
        pass
    assert str(tmp_path / "file") in str(caught.value)
    assert "ACCEL_CACHE_DIR" in caught.value.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(CacheError, match="cannot be written"), Cache(tmp_path / "c").staging("x"):
        pass


def test_what_cannot_be_read_elsewhere_is_not_laid_to_the_cache(cache: Cache, tmp_path: Path) -> None:
    missing = tmp_path / "elsewhere" / "x.h"
    with pytest.raises(CacheError, match="cannot be used") as caught, cache.errors_explained():
        missing.read_text()
    assert str(missing) in caught.value.message
    assert "ACCEL_CACHE_DIR" not in caught.value.remedy
