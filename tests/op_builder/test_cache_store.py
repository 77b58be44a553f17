"""The store: an entry is there whole or not at all, and what is damaged is set aside."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from op_builder import env
from op_builder.cache.staging import sign_of_life
from op_builder.cache.store import Cache, Entry, Manifest, default_cache_dir
from op_builder.errors import CacheError
from op_builder.fingerprint import PlanKey, Roots, SystemHeaders

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
        key_parts=parts,
        headers=(),
        system_headers=SystemHeaders.of([]),
        check="none",
        built_at="2026-01-01T00:00:00+00:00",
        build_s=1.0,
        torch="2.13.0",
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


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 2}'])
def test_a_damaged_manifest_is_set_aside(cache: Cache, text: str) -> None:
    entry = publish(cache)
    (entry.directory / "manifest.json").write_text(text)
    assert find(cache) is None
    assert cache.entries() == []


def test_a_manifest_of_another_version_is_left_alone(cache: Cache) -> None:
    entry = publish(cache)
    (entry.directory / "manifest.json").write_text('{"format": 99}')
    assert find(cache) is None
    assert cache.entries() == []
    assert entry.artifact.is_file()


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
    left = abandoned(cache.root / "staging", f"{socket.gethostname()}@{done.pid}")
    with cache.staging("small"):
        assert not left.exists()


def test_a_living_build_is_not_swept(cache: Cache) -> None:
    by_process = abandoned(cache.root / "staging", f"{socket.gethostname()}@{os.getpid()}")
    by_lock = abandoned(cache.root / "staging", f"{socket.gethostname()}@{2**22 + 1}")
    elsewhere = abandoned(cache.root / "staging", "another-host@1")
    with sign_of_life(by_lock):
        os.utime(by_lock, (time.time() - 60, time.time() - 60))
        with cache.staging("small"):
            assert by_process.exists()
            assert by_lock.exists()
            assert elsewhere.exists()


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
