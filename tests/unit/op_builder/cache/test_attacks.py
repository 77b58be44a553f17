"""A cache beside files of others, links, and users who are not trusted: nothing is lost, no foreign code is used."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from op_builder import env, messages
from op_builder.cache import ownership
from op_builder.cache.eviction import keep_in_bounds, sweep_small, usages
from op_builder.cache.failures import cache_error
from op_builder.cache.layout import GENERATED, HOME
from op_builder.cache.store import MANIFEST, Cache
from op_builder.commands.cache import main
from op_builder.errors import CacheError, EnvironmentValueError
from op_builder.ops.io.tensor_store_files import StoreFiles
from op_builder.system.records import encode
from tests.support.entries import find, publish, set_used
from tests.support.users import place_for_all, run_as

DIGEST = "0123456789abcdef" * 2
# Names of other programs in every folder, and names that differ from generated ones in one letter.
FOREIGN = (
    *(
        f"{folder}/{name}"
        for folder in (*GENERATED, "ops/small", "sycl_kernels/1")
        for name in ("notes.md", "poetry.lock", "x.json", "run.log", ".x.partial", "dataset/data.bin")
    ),
    *(f"memo/{name}" for name in (f"{DIGEST.upper()}.json", f"x{DIGEST}.json", f"{DIGEST}.json\n", ".staged-abc")),
    *(f"locks/{name}" for name in (f"x-{DIGEST}.lock~", f"-{DIGEST}.lock", f"x y-{DIGEST}.lock")),
    *(f"logs/{name}" for name in ("x-20260101-000000-1.log.gz", "x y-20260101-000000-1.log")),
    *(f"staging/{name}/x" for name in ("a@b@1", "a@b@x@abcdefgh", "a@b@1@abcdefgh.bak", "a@b@1@abcdefgh\n")),
    *(f"rejected/{name}/x" for name in (DIGEST, f"{DIGEST}-x", f"{DIGEST}-abcdefgh.old")),
    *(f"sycl_kernels/{name}/x" for name in ("1x", "a", "1\n")),
    *(f"ops/{name}/{DIGEST}/{DIGEST}/{MANIFEST}" for name in ("my-op", "1op", "small.old")),
)
LIKE_OURS = (
    f"memo/{DIGEST}.json",
    f"locks/x-{DIGEST}.lock",
    "logs/x-20260101-000000-1.log",
    "staging/x@host@1@00000000/x",
    f"rejected/{DIGEST}-00000000/x",
    f"ops/small/{DIGEST}/{DIGEST}/{MANIFEST}",
    "sycl_kernels/1/2/x",
)
ANOTHER = 54321
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@pytest.fixture(autouse=True)
def warnings_anew(tmp_path: Path) -> Iterator[None]:
    messages.warn_once.cache_clear()
    with env.scope(XDG_CACHE_HOME=str(tmp_path / "own")):
        yield
    messages.warn_once.cache_clear()


def maintain(root: Path) -> None:
    """Everything that removes."""
    with env.scope(ACCEL_CACHE_MAX_MIB="1"):
        keep_in_bounds(Cache(root))
    for command in (["verify"], ["prune", "--older-than", "1s"], ["clear"]):
        main([*command, "--directory", str(root)])


def plant(directory: Path, names: Iterable[str]) -> dict[Path, bytes]:
    """Write old files that are not the cache's; returns the contents of all files below ``directory``."""
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"precious")
        for place in (path, path.parent) if path.parent != directory else (path,):
            os.utime(place, (0, 0))
    return contents(directory)


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# Files of others ----------------------------------------------------------------------------


@pytest.mark.parametrize("home", ["", HOME])
def test_a_directory_with_files_of_its_own_is_refused_and_stays_as_it_is(tmp_path: Path, home: str) -> None:
    root = tmp_path / "project"
    before, listed = plant(root / home, (*FOREIGN, *LIKE_OURS)), sorted(root.rglob("*"))
    with pytest.raises(CacheError, match="not a cache") as caught:
        publish(Cache(root))
    assert f"for example {root}/accel-ops" in caught.value.remedy
    found = cache_error(root)
    assert found is not None
    assert str(found) == str(caught.value)
    Cache(root).memo.get("x", {}, lambda: ({}, []))
    assert main(["clear", "--directory", str(root)]) == 2
    maintain(root)
    assert contents(root) == before
    assert sorted(root.rglob("*")) == listed


def test_files_of_others_in_a_cache_survive_everything_and_are_no_damage(cache: Cache) -> None:
    entry = publish(cache, bytes(3 << 20))
    set_used(entry, 9)
    plant(cache.root, FOREIGN)
    plant(cache.home, FOREIGN)
    assert cache.entries() == [entry]
    assert main(["verify", "--directory", str(cache.root)]) == 0
    publish(cache, flags="-O0")
    maintain(cache.root)
    assert usages(cache) == []
    assert {(place / name).read_bytes() for name in FOREIGN for place in (cache.root, cache.home)} == {b"precious"}


# Links --------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [*GENERATED, "ops/small"])
def test_maintenance_follows_no_link(cache: Cache, tmp_path: Path, folder: str) -> None:
    private = tmp_path / "private"
    inner = {name.partition("/")[2] for name in LIKE_OURS}
    before = plant(private, {*FOREIGN, *LIKE_OURS, *inner, f"{DIGEST}/{DIGEST}/{MANIFEST}"})
    publish(cache)
    shutil.rmtree(cache.home / folder, ignore_errors=True)
    (cache.home / folder).symlink_to(private)
    cache.entries()
    sweep_small(cache, all_of_them=True)
    maintain(cache.root)
    assert contents(private) == before


# Who may write ------------------------------------------------------------------------------


# From the root to the binary.
PLACES = [
    *("cache", f"cache/{HOME}", f"cache/{HOME}/ops", f"cache/{HOME}/ops/small", f"cache/{HOME}/ops/*/*"),
    *(f"cache/{HOME}/ops/*/*/*{name}" for name in ("", f"/{MANIFEST}", "/small.so")),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("added", [0o002, 0o020])
def test_what_others_may_write_is_a_miss_with_one_warning(
    cache: Cache, caplog: pytest.LogCaptureFixture, place: str, added: int
) -> None:
    entry = publish(cache)
    (path,) = cache.root.parent.glob(place)
    path.chmod(path.stat().st_mode | added)
    assert find(cache) is find(cache) is None
    (record,) = caplog.records
    assert f"{path} can be written by other users" in record.getMessage()
    assert f"chmod go-w {path}" in record.getMessage()
    path.chmod(path.stat().st_mode & ~0o022)
    assert find(cache) == entry


@only_root
@pytest.mark.parametrize("place", PLACES)
def test_what_another_user_owns_is_a_miss_unless_that_user_is_trusted(
    cache: Cache, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    entry = publish(cache)
    os.chown(next(cache.root.parent.glob(place)), ANOTHER, -1)
    assert find(cache) is None
    assert f"is owned by user {ANOTHER}" in caplog.text
    with env.scope(ACCEL_CACHE_TRUST=f"root, {ANOTHER}"):
        assert find(cache) == entry
    with env.scope(ACCEL_CACHE_TRUST="no such user"), pytest.raises(EnvironmentValueError):
        find(cache)


def endless(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 43)


def link(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, endless, link("/dev/zero"), link("as it was")])
@pytest.mark.parametrize("name", ["small.so", MANIFEST])
def test_a_binary_or_manifest_that_is_endless_or_a_link_is_built_again(
    cache: Cache, name: str, make: Callable[[Path], object]
) -> None:
    entry = publish(cache)
    (entry.directory / name).rename(entry.directory / "as it was")
    make(entry.directory / name)
    assert find(cache) is None
    assert publish(cache) == find(cache) == entry
    assert not entry.artifact.is_symlink()


def test_an_entry_that_others_may_write_is_not_exported(
    cache: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(cache).artifact.chmod(0o666)
    assert main(["export", str(tmp_path / "bundle"), "--directory", str(cache.root)]) == 2
    assert "is not exported" in (message := capsys.readouterr().err)
    assert "can be written by other users" in message
    assert list(tmp_path.glob("bundle*")) == []


@pytest.mark.parametrize("inner", ["1", "1/2/3", "1/2/3/0.bin"])
def test_kernels_that_others_may_write_are_not_used(cache: Cache, inner: str) -> None:
    directory = cache.writable_dir("sycl_kernels")
    (directory / "1" / "2" / "3").mkdir(parents=True)
    (directory / "1" / "2" / "3" / "0.bin").touch()
    (directory / inner).chmod(0o777)
    assert cache.kernel_directory() == directory  # in a directory that is closed to others
    cache.root.chmod(0o755)
    assert cache.kernel_directory() is None
    (directory / inner).chmod(0o755)
    assert cache.kernel_directory() == directory


@only_root
def test_the_cache_of_another_user_is_not_maintained(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    entry = publish(cache)
    os.chown(cache.root, ANOTHER, -1)
    assert main(["clear", "--directory", str(cache.root)]) == 2
    assert f"owned by user {ANOTHER}" in capsys.readouterr().err
    assert entry.artifact.exists()


@pytest.mark.parametrize("place", ["cache", "cache/v1/memo", "cache/v1/memo/*.json"])
def test_memos_that_others_may_write_are_not_read(cache: Cache, place: str) -> None:
    publish(cache)
    cache.memo.get("x", {"a": lambda _: True}, lambda: ({"a": 1}, []))
    next(cache.root.parent.glob(place)).chmod(0o777)
    assert Cache(cache.root).memo.get("x", {"a": lambda _: True}, lambda: ({"a": 2}, [])) == {"a": 2}


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    cache, before = Cache(tmp_path / "new" / "cache"), os.umask(umask)
    try:
        publish(cache)
        cache.lock_file(f"small-{DIGEST}.lock").close()
        assert find(cache) is not None
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in (cache.root.parent, cache.root, *cache.root.rglob("*"))}
    assert modes[cache.root] == 0o700
    assert modes[cache.home / "locks" / f"small-{DIGEST}.lock"] == 0o600
    assert not any(mode & 0o022 for mode in modes.values())


def test_a_directory_for_the_files_of_all_users_is_refused_and_stays_open_to_them(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(CacheError, match="mode 1777") as caught:
        publish(Cache(tmp_path))
    assert f"for example {tmp_path}/accel-ops." in caught.value.remedy
    assert "chmod" not in caught.value.remedy
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777
    assert list(tmp_path.iterdir()) == []


# Versions side by side ----------------------------------------------------------------------


def test_entries_of_another_format_are_kept_apart_listed_and_cleared(
    cache: Cache, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = publish(cache)
    other = entry.directory.parents[1] / ("ab" * 16) / ("cd" * 16)
    other.mkdir(parents=True)
    (other / MANIFEST).write_text(encode({}, 99))
    (other / "small.so").write_bytes(bytes(3 << 20))
    os.utime(other / MANIFEST, (time.time() - 99, time.time() - 99))
    assert find(cache, any_compiler=True) == entry
    assert main(["verify", "--directory", str(cache.root)]) == 0
    capsys.readouterr()
    main(["--json", "list", "--directory", str(cache.root)])
    listed = json.loads(capsys.readouterr().out)["entries"]
    assert [(row["op"], row["directory"]) for row in listed] == [("small", str(entry.directory)), ("small", str(other))]
    assert listed[1]["size_bytes"] > 3 << 20
    with env.scope(ACCEL_CACHE_MAX_MIB="1"):
        keep_in_bounds(cache)
    assert not other.exists()
    assert find(cache) == entry


LOOK = """
from op_builder.commands.cache import main
for command in (["list"], ["verify"], ["clear"], ["prune", "--unused"], ["info", "small"]):
    assert main(command) == 2
"""


def test_a_cache_that_cannot_be_read_is_no_empty_one() -> None:
    with place_for_all() as place:
        publish(Cache(place / "cache"))
        done = run_as(ANOTHER, LOOK, ACCEL_CACHE_DIR=str(place / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot be read: Permission denied") == 5


MAKE = """
from op_builder.commands.cache import main
from op_builder.cache.store import Cache
from tests.support.entries import publish
import os
os.umask(0o077)
assert main(["init", "--shared", "4242"]) == 0
publish(Cache())
"""
LOAD = """
from op_builder import env
from op_builder.cache.store import Cache
from tests.support.entries import find, publish
assert find(Cache()) is None
with env.scope(ACCEL_CACHE_TRUST="54321"):
    assert find(Cache()) is not None
    publish(Cache(), flags="second")
"""


def test_a_cache_that_a_member_made_is_used_by_those_who_trust_that_member() -> None:
    with place_for_all() as place:
        place.chmod(0o777)
        variables = {"ACCEL_CACHE_DIR": str(place / "cache")}
        made = run_as(ANOTHER, MAKE, groups=[4242], **variables)
        assert made.returncode == 0, made.stderr
        assert f"Users who trust you also set ACCEL_CACHE_TRUST={ANOTHER}." in made.stdout
        loaded = run_as(ANOTHER + 1, LOAD, groups=[4242], **variables)
        assert loaded.returncode == 0, loaded.stderr
        assert {path.stat().st_gid for path in place.glob("cache/v1/ops/**/*")} == {4242}


def test_a_group_that_no_system_has_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for group in ("4294967295", "99999999999", "9" * 5000, "-1", "no such group"):
        with pytest.raises(SystemExit):
            main(["init", "--shared", group, "--directory", str(tmp_path / "new")])
        assert "is not a group of this system" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_cache_with_entries_is_not_made_a_shared_one(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    publish(cache)
    assert main(["init", "--readers", "--directory", str(cache.root)]) == 2
    assert "has content already" in capsys.readouterr().err


# Clocks and places --------------------------------------------------------------------------


def test_a_clock_that_is_ahead_sweeps_no_living_build(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = cache.writable_dir("staging") / "small@another-host@1@00000000"
    elsewhere.mkdir()
    entry, now = publish(cache), time.time()
    monkeypatch.setattr(time, "time", lambda: now + 400 * 86400)
    publish(cache, flags="-O0")
    keep_in_bounds(cache)
    main(["prune", "--older-than", "1d", "--directory", str(cache.root)])
    assert elsewhere.is_dir()
    assert find(cache) == entry


def test_a_time_in_the_future_protects_no_entry_and_no_log(cache: Cache) -> None:
    old, log = publish(cache, bytes(2 << 20)), cache.writable_dir("logs") / "small-20990101-000000-1.log"
    log.write_bytes(bytes(2 << 20))
    set_used(old, -400)
    os.utime(log, (time.time() + 9e6, time.time() + 9e6))
    with env.scope(ACCEL_CACHE_MAX_MIB="1"):
        keep_in_bounds(cache)
    assert not old.directory.exists()
    assert not log.exists()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, Path.touch])
def test_what_is_no_signature_makes_no_cache(cache: Cache, make: Callable[[Path], object]) -> None:
    entry = publish(cache)
    (cache.root / ownership.SIGNATURE).unlink()
    make(cache.root / ownership.SIGNATURE)
    assert "not a cache of accel-ops" in str(cache_error(cache.root))
    assert [main([name, "--directory", str(cache.root)]) for name in ("list", "verify", "clear")] == [0, 0, 2]
    assert entry.artifact.exists()


def test_a_store_removes_only_partial_files_that_it_names(tmp_path: Path) -> None:
    own = ".host@1@0123456789abcdef.partial"
    files = [".x.partial", ".a@b@c.partial", f"{own}.partial", own[1:]]
    plant(tmp_path, [own, *files])
    StoreFiles(tmp_path, is_durable=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


def test_every_error_of_a_staging_directory_is_explained(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    for name in ("sweep", "make_directory", "process_lock"):
        with monkeypatch.context() as failing:
            failing.setattr(f"op_builder.cache.staging.{name}", fail)
            with pytest.raises(CacheError, match="Input/output error"), cache.staging("small"):
                pass
    assert list((cache.home / "staging").iterdir()) == []


def test_the_group_of_a_shared_cache_is_read_once_for_all_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "shared"
    assert main(["init", "--shared", str(os.getegid()), "--directory", str(root)]) == 0
    found, signed_group = [], ownership.signed_group
    monkeypatch.setattr(ownership, "signed_group", lambda path: found.append(path) or signed_group(path))
    assert ownership.ownership_rejection(str(root), HOME, "ops") is None
    assert found == [str(root)]
