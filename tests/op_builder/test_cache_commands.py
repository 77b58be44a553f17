"""``python -m op_builder.cache``: list, info, verify, prune, clear, export, import."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import mmap
import os
import subprocess
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_cache_store import manifest

from op_builder import env
from op_builder.cache.__main__ import main
from op_builder.cache.bundle import export_bundle, import_bundle
from op_builder.cache.maintenance import keep_in_bounds, usages
from op_builder.cache.staging import this_host
from op_builder.cache.store import MANIFEST, Cache, Entry
from tests.support.small_ops import SmallBuilder, make_small, replace_content

DAY_S = 86400


def named(directory: Path, name: str) -> SmallBuilder:
    """A small op of another name, so that a cache holds several."""
    return type(f"{name}Builder", (SmallBuilder,), {"NAME": name})(directory, Cache(directory.parent / "cache"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with two builds of 'small' and one of 'other'."""
    base = tmp_path_factory.mktemp("built")
    small = make_small(base / "op", Cache(base / "cache"))
    small.jit_load()
    named(base / "op", "other").jit_load()
    (base / "op" / "include" / "nested.h").write_text("#define NESTED 1.0f\n")
    small.jit_load()
    return base / "cache"


@pytest.fixture
def filled(built: Path, tmp_path: Path) -> Cache:
    """A copy of it that no process has open, last used on days long past."""
    import shutil

    shutil.copytree(built, tmp_path / "cache")
    cache = Cache(tmp_path / "cache")
    for days, entry in enumerate(sorted(cache.entries(), key=lambda entry: entry.manifest.built_at, reverse=True), 1):
        set_used(entry, days)
    return cache


def set_used(entry: Entry, days_ago: float) -> None:
    moment = time.time() - days_ago * DAY_S
    os.utime(entry.directory / "manifest.json", (moment, moment))


def command(capsys: pytest.CaptureFixture[str], cache: Cache, *arguments: str, status: int = 0) -> Any:
    assert main([arguments[0], "--json", "--directory", str(cache.root), *arguments[1:]]) == status
    return json.loads(capsys.readouterr().out)


def ops(cache: Cache) -> list[str]:
    return sorted(entry.manifest.op for entry in cache.entries())


def test_common_options_stand_before_or_behind_the_command(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    directory = ["--directory", str(filled.root)]
    orders = (["--json", *directory, "list"], ["--json", "list", *directory], [*directory, "list", "--json"])
    for arguments in orders:
        assert main(arguments) == 0
        assert len(json.loads(capsys.readouterr().out)["entries"]) == 3


def test_list_tells_op_size_and_use(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    entries = command(capsys, filled, "list")["entries"]
    assert sorted(entry["op"] for entry in entries) == ["other", "small", "small"]
    assert all(entry["size_bytes"] > 1000 and not entry["in_use"] for entry in entries)
    assert main(["list", "--directory", str(filled.root)]) == 0
    said = capsys.readouterr().out
    assert "3 entries" in said
    assert "d ago" in said


def test_info_tells_the_key_and_the_headers(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    (facts,) = command(capsys, filled, "info", "other")
    assert facts["manifest"]["key_parts"]["op"] == "other"
    assert any(header["path"] == "nested.h" for header in facts["manifest"]["headers"])
    assert main(["info", "other", "--directory", str(filled.root)]) == 0
    assert "c++ compiler" in capsys.readouterr().out


def test_info_on_an_op_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    assert main(["info", "absent", "--directory", str(filled.root)]) == 2
    assert "absent" in capsys.readouterr().err


def test_verify_finds_damage_sets_it_aside_and_fails(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    assert command(capsys, filled, "verify") == {"whole": 3, "damaged": [], "cannot_be_moved": []}
    victim = filled.entries("other")[0]
    replace_content(victim.artifact, victim.artifact.read_bytes()[:-1])
    found = command(capsys, filled, "verify", status=1)
    assert found == {"whole": 2, "damaged": [str(victim.directory)], "cannot_be_moved": []}
    assert ops(filled) == ["small", "small"]


@pytest.mark.parametrize("how", ["torn", "missing"])
def test_verify_finds_a_manifest_that_is_not_whole(capsys: pytest.CaptureFixture[str], filled: Cache, how: str) -> None:
    victim = filled.entries("other")[0]
    manifest = victim.directory / MANIFEST
    text = manifest.read_text()
    manifest.unlink()
    if how == "torn":
        manifest.write_text(text[: len(text) // 2])
    for looking in (["list"], ["info", "small"]):
        command(capsys, filled, *looking)
        assert victim.directory.exists(), "who looks moves nothing"
    found = command(capsys, filled, "verify", status=1)
    assert found == {"whole": 2, "damaged": [str(victim.directory)], "cannot_be_moved": []}
    assert not victim.directory.exists()


def test_verify_says_that_it_could_not_move_what_is_damaged(
    capsys: pytest.CaptureFixture[str], filled: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = filled.entries("other")[0]
    replace_content(victim.artifact, victim.artifact.read_bytes()[:-1])

    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "rename", refused)  # root may write anywhere, so permissions would not do
    found = command(capsys, filled, "verify", status=1)
    assert found == {"whole": 2, "damaged": [str(victim.directory)], "cannot_be_moved": [str(victim.directory)]}
    assert main(["verify", "--directory", str(filled.root)]) == 1
    said = capsys.readouterr().out
    assert "cannot be moved" in said
    assert "set aside" not in said


def test_what_a_killed_build_left_goes_with_clear_and_counts_before(
    capsys: pytest.CaptureFixture[str], filled: Cache
) -> None:
    name = f"other@{this_host()}@{ended_process()}@x"
    (filled.root / "staging" / name).mkdir(parents=True)
    (filled.root / "staging" / name / "big.o").write_bytes(bytes(1 << 20))
    os.utime(filled.root / "staging" / name, (0, 0))
    assert command(capsys, filled, "list")["other_bytes"] >= 1 << 20
    assert command(capsys, filled, "clear")["freed_bytes"] >= 1 << 20
    assert list((filled.root / "staging").iterdir()) == []


def ended_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_prune_by_age_takes_what_was_not_used_for_so_long(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    assert len(command(capsys, filled, "prune", "--older-than", "36h")["removed"]) == 2
    assert len(filled.entries()) == 1


def test_prune_by_size_takes_the_least_lately_used(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    sizes = [usage.size_bytes for usage in usages(filled)]
    last = usages(filled)[-1].entry.directory
    bound = (sum(sizes) - 1) // 1024
    assert command(capsys, filled, "prune", "--max-size", f"{bound}K")["removed"] == [str(last)]


def test_prune_unused_keeps_the_last_used_of_each_op(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    command(capsys, filled, "prune", "--unused")
    assert ops(filled) == ["other", "small"]


def test_prune_without_a_criterion_removes_nothing(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    assert main(["prune", "--directory", str(filled.root)]) == 2
    assert "--max-size" in capsys.readouterr().err
    assert len(filled.entries()) == 3


@pytest.mark.parametrize("arguments", [["--max-size", "big"], ["--older-than", "30"], ["--older-than", "3 weeks"]])
def test_a_wrong_size_or_age_is_named(capsys: pytest.CaptureFixture[str], filled: Cache, arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["prune", "--directory", str(filled.root), *arguments])
    assert arguments[1] in capsys.readouterr().err


def test_what_is_in_use_stays(capsys: pytest.CaptureFixture[str], small: SmallBuilder) -> None:
    small.flags.append("-DNOT_LOADED_FROM_ANOTHER_PLACE")
    small.load()
    (entry,) = small.cache.entries()
    set_used(entry, 99)
    assert command(capsys, small.cache, "prune", "--older-than", "1d")["removed"] == []
    cleared = command(capsys, small.cache, "clear")
    assert cleared["removed"] == []
    assert cleared["in_use"] == [str(entry.directory)]


def test_what_is_in_use_stays_though_the_cache_is_named_through_a_link(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    small = make_small(tmp_path / "op", Cache(tmp_path / "home" / "cache"))
    small.load()
    (entry,) = small.cache.entries()
    assert command(capsys, small.cache, "clear")["in_use"] == [str(entry.directory)]
    assert entry.is_intact()


def test_a_precompiled_header_that_a_compiler_reads_is_in_use(cache: Cache, tmp_path: Path) -> None:
    with cache.staging("torch_extension") as staging:
        (staging / "result").mkdir()
        (staging / "result" / "torch.h.gch").write_bytes(b"gpch")
        entry = cache.publish(staging / "result", dataclasses.replace(manifest(b"gpch"), artifact="torch.h.gch"))
    (tmp_path / "torch.h.gch").symlink_to(entry.artifact)  # as a build offers it to GCC, which maps it
    with (tmp_path / "torch.h.gch").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert [usage.is_mapped for usage in usages(cache)] == [True]
    assert [usage.is_mapped for usage in usages(cache)] == [False]


# What lies there besides entries ------------------------------------------------------------------


def lying(path: Path, size_bytes: int, days_ago: float) -> Path:
    """A file, or a directory set aside if its parent is ``rejected``, that was made days ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parent.name == "rejected":
        path.mkdir()
        (path / "entry").mkdir()
        (path / "entry" / "small.so").write_bytes(bytes(size_bytes))
    else:
        path.write_bytes(bytes(size_bytes))
    moment = time.time() - days_ago * DAY_S
    os.utime(path, (moment, moment))
    return path


def test_what_was_set_aside_and_logs_go_before_entries_the_oldest_first(filled: Cache) -> None:
    oldest = lying(filled.root / "rejected" / "a", 3 << 20, days_ago=9)
    older = lying(filled.root / "logs" / "small-1.log", 1 << 20, days_ago=8)
    newer = lying(filled.root / "rejected" / "b", 1 << 20, days_ago=7)
    with env.scope(ACCEL_CACHE_MAX_MIB="2"):
        keep_in_bounds(filled)
    assert (oldest.exists(), older.exists(), newer.exists()) == (False, False, True)
    assert len(filled.entries()) == 3


def test_entries_go_when_that_is_not_enough(filled: Cache) -> None:
    with filled.entries()[0].artifact.open("ab") as file:
        file.truncate(3 << 20)
    log = lying(filled.root / "logs" / "small-1.log", 1, days_ago=1)
    told = lying(filled.root / "logs" / "small-2.log", 1, days_ago=0)
    with env.scope(ACCEL_CACHE_MAX_MIB="1"):
        keep_in_bounds(filled)
    assert (log.exists(), told.exists()) == (False, True), "what a user was just told of stays"
    assert 0 < len(filled.entries()) < 3


def test_on_a_network_file_system_only_what_rested_for_a_week_goes_by_itself(
    filled: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = [
        SimpleNamespace(mountpoint="/", fstype="ext4"),
        SimpleNamespace(mountpoint=str(filled.root), fstype="nfs4"),
    ]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounts)  # noqa: ARG005
    for entry in filled.entries():
        with entry.artifact.open("ab") as file:
            file.truncate(3 << 20)
    with env.scope(ACCEL_CACHE_MAX_MIB="1"):
        keep_in_bounds(filled)
        assert len(filled.entries()) == 3
        set_used(filled.entries()[0], 8)
        keep_in_bounds(filled)
        assert len(filled.entries()) == 2
        mounts.pop()
        keep_in_bounds(filled)
        assert filled.entries() == []


def test_prune_counts_what_is_no_entry(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    aside = lying(filled.root / "rejected" / "a", 3 << 20, days_ago=9)
    log = lying(filled.root / "logs" / "small-1.log", 10, days_ago=1)
    assert command(capsys, filled, "prune", "--max-size", "2M") == {"removed": [], "freed_bytes": 3 << 20, "kept": []}
    assert (aside.exists(), log.exists()) == (False, True)
    assert command(capsys, filled, "prune", "--older-than", "12h")["freed_bytes"] > 10
    assert not log.exists()


def test_locks_that_nobody_holds_and_old_memos_go(cache: Cache) -> None:
    names = ("held", "free", "young")
    locks = {name: lying(cache.root / "locks" / f"{name}.lock", 0, name != "young") for name in names}
    owners = {name: lying(cache.root / "locks" / f"{name}.owner", 9, name != "young") for name in names}
    old, fresh = (lying(cache.root / "memo" / f"{days}.json", 9, days) for days in (31, 29))
    with locks["held"].open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        keep_in_bounds(cache)
    assert {name for name, lock in locks.items() if lock.exists()} == {"held", "young"}
    assert {name for name, owner in owners.items() if owner.exists()} == {"held", "young"}
    assert (old.exists(), fresh.exists()) == (False, True)


def test_a_lock_lately_taken_stays_where_the_file_system_knows_no_locks(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("op_builder.cache.leftovers.fcntl.flock", refuse)
    lately, over = (lying(cache.root / "locks" / f"{days}.lock", 0, days) for days in (0.5, 2))
    keep_in_bounds(cache)
    assert (lately.exists(), over.exists()) == (True, False)


def test_list_tells_what_lies_besides_and_clear_takes_it(capsys: pytest.CaptureFixture[str], cache: Cache) -> None:
    sizes = {"rejected/a": 4 << 20, "logs/small-1.log": 1 << 20, "locks/small.lock": 0, "memo/1.json": 10}
    files = [lying(cache.root / name, size_bytes, days_ago=0) for name, size_bytes in sizes.items()]
    held = lying(cache.root / "locks" / "held.lock", 0, days_ago=0)
    assert command(capsys, cache, "list")["other_bytes"] == sum(sizes.values())
    assert main(["list", "--directory", str(cache.root)]) == 0
    assert "0 entries, 0 KiB in" in (last := capsys.readouterr().out.splitlines()[-1])
    assert "besides, 5.0 MiB of logs" in last
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert command(capsys, cache, "clear")["freed_bytes"] == sum(sizes.values())
    assert not any(path.exists() for path in files)
    assert held.exists()


def test_what_was_just_used_stays(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    for entry in filled.entries():
        set_used(entry, 0)
    told = command(capsys, filled, "prune", "--max-size", "1K")
    assert (told["removed"], len(told["kept"])) == ([], 3)
    assert main(["prune", "--directory", str(filled.root), "--max-size", "1K"]) == 0
    assert "3 entries kept that would go" in capsys.readouterr().out


def test_clear_removes_all_and_leaves_nothing_lying(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    assert len(command(capsys, filled, "clear")["removed"]) == 3
    assert filled.entries() == []
    assert list((filled.root / "staging").iterdir()) == []


def test_the_bound_of_the_environment_holds(filled: Cache) -> None:
    keep_in_bounds(filled)
    assert len(filled.entries()) == 3
    with filled.entries()[0].artifact.open("ab") as file:
        file.truncate(3 << 20)
    with env.scope(ACCEL_CACHE_MAX_MIB="1"):
        keep_in_bounds(filled)
    assert 0 < len(filled.entries()) < 3


def test_a_bundle_loads_on_a_machine_without_a_compiler(
    capsys: pytest.CaptureFixture[str], filled: Cache, built: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "ops.zip"
    assert command(capsys, filled, "export", str(bundle), "small")["entries"] == 2
    elsewhere = Cache(tmp_path / "elsewhere")
    assert len(command(capsys, elsewhere, "import", str(bundle))["entries"]) == 2
    assert ops(elsewhere) == ["small", "small"]
    with env.scope(PATH=str(tmp_path), CXX=None, ACCEL_JIT="0"):
        op = SmallBuilder(built.parent / "op", elsewhere).jit_load()
    x = torch.zeros(2)
    op.add_(x)
    assert x.tolist() == [2.0, 2.0]
    assert len(command(capsys, elsewhere, "import", str(bundle))["entries"]) == 2  # twice does no harm


def rewritten(bundle: Path, changes: dict[str, str]) -> Path:
    """The bundle as another machine would have made it: with other parts of the key."""
    other = bundle.with_name("other.zip")
    with zipfile.ZipFile(bundle) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("manifest.json"):
                data = json.loads(content)
                data["key_parts"].update(changes)
                content = json.dumps(data).encode()
            target.writestr(name, content)
    return other


FOREIGN = {
    "platform": {"platform": "linux riscv128"},
    "torch headers": {"binding": "torch", "torch headers": "of another torch"},
    "c++ compiler": {"c++ compiler": "g++ of long ago"},
    "format": {"format": "0"},
    "cpu": {"cpu": "of another kind"},
    "cuda compiler": {"cuda compiler": "nvcc of long ago"},
    "python abi": {"binding": "torch", "torch c++ abi": "cxx11=1", "python abi": ".cpython-307-somewhere.so"},
}


@pytest.mark.parametrize("part", FOREIGN)
def test_import_tells_what_of_this_machine_an_entry_does_not_fit(
    capsys: pytest.CaptureFixture[str], filled: Cache, tmp_path: Path, part: str
) -> None:
    bundle = tmp_path / "ops.zip"
    command(capsys, filled, "export", str(bundle), "other")
    elsewhere = Cache(tmp_path / "elsewhere")
    (entry,) = command(capsys, elsewhere, "import", str(bundle))["entries"]
    assert (entry["op"], entry["fits"], entry["differences"]) == ("other", True, [])
    other = rewritten(bundle, FOREIGN[part])
    (entry,) = command(capsys, elsewhere, "import", str(other))["entries"]
    assert not entry["fits"]
    assert any(line.startswith(f"{part}: built for {FOREIGN[part][part]}, here") for line in entry["differences"])
    assert main(["import", str(other), "--directory", str(elsewhere.root)]) == 0
    said = capsys.readouterr().out
    assert "will not be used on this machine" in said
    assert FOREIGN[part][part] in said
    assert "1 of them for another machine" in said


def test_without_a_compiler_here_an_entry_of_any_compiler_fits(
    capsys: pytest.CaptureFixture[str], filled: Cache, tmp_path: Path
) -> None:
    bundle = tmp_path / "ops.zip"
    command(capsys, filled, "export", str(bundle), "other")
    other = rewritten(bundle, FOREIGN["c++ compiler"])
    with env.scope(PATH=str(tmp_path), CXX=None):
        (entry,) = command(capsys, Cache(tmp_path / "elsewhere"), "import", str(other))["entries"]
    assert entry["fits"]


def test_an_altered_bundle_is_refused_whole(capsys: pytest.CaptureFixture[str], filled: Cache, tmp_path: Path) -> None:
    bundle, altered = tmp_path / "ops.zip", tmp_path / "altered.zip"
    command(capsys, filled, "export", str(bundle))
    with zipfile.ZipFile(bundle) as source, zipfile.ZipFile(altered, "w") as target:
        names = [name for name in source.namelist() if name.endswith(".so")]
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content + b"x" if name == names[-1] else content)
    elsewhere = Cache(tmp_path / "elsewhere")
    assert main(["import", str(altered), "--directory", str(elsewhere.root)]) == 2
    assert "does not match" in capsys.readouterr().err
    assert elsewhere.entries() == []


def test_a_bundle_that_was_damaged_on_the_way_is_refused(
    capsys: pytest.CaptureFixture[str], filled: Cache, tmp_path: Path
) -> None:
    bundle, damaged = tmp_path / "ops.zip", tmp_path / "damaged.zip"
    command(capsys, filled, "export", str(bundle))
    whole = bundle.read_bytes()
    cut = [whole[: len(whole) * part // 8] for part in range(8)]
    flipped = [
        whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :] for at in range(0, len(whole), len(whole) // 97)
    ]
    refused = 0
    for content in (*cut, *flipped):
        damaged.write_bytes(content)
        elsewhere = Cache(tmp_path / "elsewhere")
        status = main(["import", str(damaged), "--directory", str(elsewhere.root)])
        assert status in (0, 2)  # a flipped date, say, harms nothing
        refused += status == 2
        capsys.readouterr()
        assert all(entry.is_intact() for entry in elsewhere.entries())
    assert refused > len(cut) + len(flipped) // 2


def test_an_import_keeps_the_cache_in_bounds(
    capsys: pytest.CaptureFixture[str], filled: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "ops.zip"
    command(capsys, filled, "export", str(bundle), "other")
    bounded = []
    monkeypatch.setattr("op_builder.cache.__main__.keep_in_bounds", bounded.append)
    command(capsys, Cache(tmp_path / "elsewhere"), "import", str(bundle))
    assert [cache.root for cache in bounded] == [tmp_path / "elsewhere"]


def test_a_name_that_leaves_the_directory_is_refused(
    capsys: pytest.CaptureFixture[str], filled: Cache, tmp_path: Path
) -> None:
    bundle, altered = tmp_path / "ops.zip", tmp_path / "altered.zip"
    command(capsys, filled, "export", str(bundle), "other")
    with zipfile.ZipFile(bundle) as source, zipfile.ZipFile(altered, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content.replace(b'"other.so"', b'"../../o.so"'))
    assert main(["import", str(altered), "--directory", str(tmp_path / "elsewhere")]) == 2
    assert "no plain name" in capsys.readouterr().err


def test_entries_without_a_time_are_exported_and_what_killed_exports_left_goes(filled: Cache, tmp_path: Path) -> None:
    for entry in filled.entries():
        os.utime(entry.artifact, (0, 0))
    abandoned = lying(tmp_path / "bundle.abc.partial", 9, days_ago=2)
    under_way = lying(tmp_path / "bundle.xyz.partial", 9, days_ago=0)
    assert export_bundle(filled.entries(), tmp_path / "bundle") == 3
    assert (abandoned.exists(), under_way.exists()) == (False, True)
    assert len(import_bundle(Cache(tmp_path / "other"), tmp_path / "bundle")) == 3


@pytest.mark.parametrize("content", [b"", b"no zip at all"])
def test_a_file_that_is_no_bundle_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.zip").write_bytes(content)
    assert main(["import", str(tmp_path / "x.zip"), "--directory", str(tmp_path / "c")]) == 2
    assert "x.zip" in capsys.readouterr().err


def test_export_of_what_is_not_there_says_how_to_build_it(
    capsys: pytest.CaptureFixture[str], filled: Cache, tmp_path: Path
) -> None:
    assert main(["export", str(tmp_path / "x.zip"), "absent", "--directory", str(filled.root)]) == 2
    assert "op_builder.build absent" in capsys.readouterr().err
    assert not (tmp_path / "x.zip").exists()
