"""``python -m op_builder.cache`` list, info, verify, prune and clear, and what is removed without being asked for."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from op_builder import env
from op_builder.cache.eviction import keep_in_bounds, usages
from op_builder.cache.key import unlisted
from op_builder.cache.store import MANIFEST, Cache
from op_builder.commands.cache import main
from op_builder.system.host import this_host
from tests.support.entries import NO_PROCESS, publish, set_used

SIZE = 100_000
KEY = "0123456789abcdef" * 2
ASIDE = f"{KEY}-00000000"


@pytest.fixture
def filled(cache: Cache) -> Cache:
    """Two builds of 'small' and one of 'other', last used one, two and three days ago."""
    for days, entry in enumerate((publish(cache, bytes(SIZE)), publish(cache, bytes(SIZE), flags="-O0")), 1):
        set_used(entry, days)
    set_used(publish(cache, bytes(SIZE), op="other"), 3)
    return cache


def command(capsys: pytest.CaptureFixture[str], cache: Cache, *arguments: str, status: int = 0) -> Any:
    assert main([arguments[0], "--json", "--directory", str(cache.root), *arguments[1:]]) == status
    return json.loads(capsys.readouterr().out)


def output(capsys: pytest.CaptureFixture[str], cache: Cache, *arguments: str, status: int = 0) -> str:
    assert main([*arguments, "--directory", str(cache.root)]) == status
    printed = capsys.readouterr()
    return printed.out + printed.err


def enlarge(cache: Cache, *, all_of_them: bool = False) -> None:
    for entry in cache.entries() if all_of_them else cache.entries()[:1]:
        with entry.artifact.open("ab") as file:
            file.truncate(3 << 20)


def test_list_shows_op_size_and_use_with_options_before_or_after_it(
    capsys: pytest.CaptureFixture[str], filled: Cache
) -> None:
    directory = ["--directory", str(filled.root)]
    for arguments in (["--json", *directory, "list"], ["--json", "list", *directory], [*directory, "list", "--json"]):
        assert main(arguments) == 0
        entries = json.loads(capsys.readouterr().out)["entries"]
        assert [entry["op"] for entry in entries] == ["small", "small", "other"]
        assert all(entry["size_bytes"] > SIZE for entry in entries)
    publish(filled, bytes(SIZE), op="an_op_with_a_long_name")
    assert [entry["op"] for entry in command(capsys, filled, "list", "other")["entries"]] == ["other"]
    assert re.search(r"an_op_with_a_long_name  \w{12} (.|\n)*days ago(.|\n)*4 entries", output(capsys, filled, "list"))


def test_info_shows_the_key(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    (facts,) = command(capsys, filled, "info", "other")
    assert facts["manifest"]["key_parts"]["op"] == "other"
    assert "c++ compiler" in output(capsys, filled, "info", "other")


@pytest.mark.parametrize("command", [["list"], ["info"], ["prune"], ["export", "ops.tar"]])
def test_a_misspelled_op_is_an_error(capsys: pytest.CaptureFixture[str], filled: Cache, command: list[str]) -> None:
    assert "Did you mean small?" in output(capsys, filled, *command, "smal", status=2)
    assert len(filled.entries()) == 3


# Damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["binary", "torn", "missing"])
def test_verify_finds_damage_sets_it_aside_and_fails(
    capsys: pytest.CaptureFixture[str], filled: Cache, damage: str
) -> None:
    assert command(capsys, filled, "verify") == {"whole": 3, "damaged": [], "cannot_be_moved": []}
    (victim,) = filled.entries("other")
    path = victim.artifact if damage == "binary" else victim.directory / MANIFEST
    path.unlink()
    if damage != "missing":
        path.write_bytes(b"{")
    for looking in (["list"], ["info", "small"]):
        command(capsys, filled, *looking)
        assert victim.directory.exists(), "commands that only look move nothing"
    found = command(capsys, filled, "verify", status=1)
    assert found == {"whole": 2, "damaged": [str(victim.directory)], "cannot_be_moved": []}
    assert not victim.directory.exists()
    assert [entry.manifest.op for entry in filled.entries()] == ["small", "small"]


# Removing -----------------------------------------------------------------------------------


def test_prune_by_age_size_and_use(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    assert command(capsys, filled, "prune", "--older-than", "100h")["removed"] == []
    last = usages(filled)[-1]
    bound = (sum(usage.size_bytes for usage in usages(filled)) - 1) // 1024
    assert command(capsys, filled, "prune", "--max-size", f"{bound}K")["removed"] == [str(last.path)]
    command(capsys, filled, "prune", "--unused")
    assert [entry.manifest.op for entry in filled.entries()] == ["small"], "the last used of each op stays"
    assert len(command(capsys, filled, "prune", "--older-than", "12h")["removed"]) == 1


def test_prune_of_an_op_keeps_the_others(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    oldest = usages(filled, ["small"])[-1]
    assert command(capsys, filled, "prune", "small", "--older-than", "36h")["removed"] == [str(oldest.path)]
    command(capsys, filled, "prune", "small")
    assert [entry.manifest.op for entry in filled.entries()] == ["other"]


def test_prune_without_a_criterion_removes_nothing(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    assert "--max-size" in output(capsys, filled, "prune", status=2)
    for arguments in (["--max-size", "big"], ["--older-than", "30"], ["--older-than", "3 weeks"]):
        with pytest.raises(SystemExit):
            output(capsys, filled, "prune", *arguments)
        assert arguments[1] in capsys.readouterr().err
    assert len(filled.entries()) == 3


def test_what_was_just_used_stays(capsys: pytest.CaptureFixture[str], filled: Cache) -> None:
    for entry in filled.entries():
        set_used(entry, 0)
    pruned = command(capsys, filled, "prune", "--max-size", "1K")
    assert (pruned["removed"], len(pruned["kept"])) == ([], 3)
    assert "3 entries kept: used within" in output(capsys, filled, "prune", "--max-size", "1K")


def test_the_least_recently_used_go_although_a_smaller_one_would_fit(
    capsys: pytest.CaptureFixture[str], filled: Cache
) -> None:
    newest, middle, oldest = usages(filled)
    with middle.path.joinpath("small.so").open("ab") as file:
        file.truncate(3 << 20)
    removed = command(capsys, filled, "prune", "--max-size", "1M")["removed"]
    assert removed == [str(middle.path), str(oldest.path)]
    assert [usage.path for usage in usages(filled)] == [newest.path]


def test_an_entry_that_only_its_own_process_uses_is_removed_after_a_minute(cache: Cache) -> None:
    entry = publish(cache, headers=(unlisted("#embed in a.cpp"),))
    keep_in_bounds(cache)
    assert cache.entries() == [entry]
    set_used(entry, 0.01)
    keep_in_bounds(cache)
    assert cache.entries() == []


# Logs, locks and memos ----------------------------------------------------------------------


def lying(path: Path, size_bytes: int, days_ago: float) -> Path:
    """A file, or a directory set aside if its parent is ``rejected``, that was made days ago."""
    Cache(path.parents[2]).writable_dir(path.parent.name)
    file = path / "entry" / "small.so" if path.parent.name == "rejected" else path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(size_bytes))
    moment = time.time() - days_ago * 86400
    os.utime(path, (moment, moment))
    return path


def test_entries_set_aside_objects_and_logs_go_before_entries_the_oldest_first(filled: Cache) -> None:
    oldest = lying(filled.home / "rejected" / ASIDE, 3 << 20, days_ago=9)
    lying(filled.home / "objects" / f"small-{KEY}.zip", 1 << 20, days_ago=8.5)
    older = lying(filled.home / "logs" / "small-20260101-000000-1.log", 1 << 20, days_ago=8)
    newer = lying(filled.home / "rejected" / f"{KEY}-00000001", 1 << 20, days_ago=7)
    with env.scope(ACCEL_CACHE_MAX_MIB="2"):
        keep_in_bounds(filled)
    assert (oldest.exists(), older.exists(), newer.exists()) == (False, False, True)
    assert list((filled.home / "objects").iterdir()) == []
    assert len(filled.entries()) == 3


def test_entries_go_when_that_is_not_enough_and_a_new_log_stays(filled: Cache) -> None:
    keep_in_bounds(filled)
    assert len(filled.entries()) == 3
    enlarge(filled)
    log = lying(filled.home / "logs" / "small-20260101-000000-2.log", 2 << 20, days_ago=0)
    with env.scope(ACCEL_CACHE_MAX_MIB="1"):
        keep_in_bounds(filled)
    assert log.exists(), "a user was just shown its name"
    assert len(filled.entries()) == 2


def test_eviction_on_a_network_file_system_removes_only_what_is_unused_for_a_week(
    filled: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("op_builder.cache.eviction.is_on_network", filled.root.__eq__)
    enlarge(filled, all_of_them=True)
    with env.scope(ACCEL_CACHE_MAX_MIB="1"):
        keep_in_bounds(filled)
        assert len(filled.entries()) == 3
        set_used(filled.entries()[0], 8)
        keep_in_bounds(filled)
        assert len(filled.entries()) == 2
        monkeypatch.setattr("op_builder.cache.eviction.is_on_network", lambda _: False)
        keep_in_bounds(filled)
        assert filled.entries() == []


def test_locks_that_nobody_holds_and_old_memos_go(cache: Cache) -> None:
    names = ("held", "free", "young")
    locks = {name: lying(cache.home / "locks" / f"{name}-{KEY}.lock", 9, name != "young") for name in names}
    old, fresh = (lying(cache.home / "memo" / f"{days:032}.json", 9, days) for days in (31, 29))
    with locks["held"].open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        keep_in_bounds(cache)
    assert {name for name, lock in locks.items() if lock.exists()} == {"held", "young"}
    assert (old.exists(), fresh.exists()) == (False, True)


def test_list_counts_the_rest_and_clear_removes_it_and_all_entries(
    capsys: pytest.CaptureFixture[str], filled: Cache
) -> None:
    left = filled.home / "staging" / f"other@{this_host()}@{NO_PROCESS}@0a1b2c3d"  # by a killed build
    left.mkdir(parents=True)
    (left / "big.o").write_bytes(bytes(1 << 20))
    os.utime(left, (0, 0))
    sizes = {
        f"rejected/{ASIDE}": 4 << 20,
        "logs/small-20260101-000000-1.log": 1 << 20,
        f"locks/small-{KEY}.lock": 0,
        f"memo/{KEY}.json": 10,
    }
    files = [lying(filled.home / name, size_bytes, days_ago=0) for name, size_bytes in sizes.items()]
    held = lying(filled.home / "locks" / f"held-{KEY}.lock", 0, days_ago=0)
    others = sum(sizes.values()) + (1 << 20)
    assert command(capsys, filled, "list")["other_bytes"] == others
    last = output(capsys, filled, "list").splitlines()[-1]
    assert last.startswith("3 entries, ")
    assert "also 6 MiB of logs" in last
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        cleared = command(capsys, filled, "clear")
    assert (len(cleared["removed"]), cleared["freed_bytes"] >= others) == (3, True)
    assert not any(path.exists() for path in (*files, left))
    assert filled.entries() == []
    assert held.exists()
