"""The torture suite: it observes what happens, and keeps it after each case."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.torture import bench as torture
from benchmarks.torture import filesystems
from benchmarks.torture.__main__ import observe
from benchmarks.torture.bench import (
    CLEAR,
    CRASH,
    HANG,
    REBUILT,
    RIGHT,
    STALE,
    TORN,
    UNCLEAR,
    UNSAFE,
    Bench,
    NotApplicable,
    Run,
    make_counted_compilers,
)
from benchmarks.torture.contenders import CONTENDERS, Contender, named
from tests.support import careless_jit
from tests.support.compilers import needs_gxx

CARELESS = Contender("careless", str(Path(careless_jit.__file__)), "torch", "CARELESS_CACHE")


@needs_gxx
@pytest.mark.parametrize(
    ("values", "status", "output", "compilers", "word"),
    [
        ((2,), 0, "", ("g++ -c",), RIGHT),
        ((1, 1), 0, "", (), STALE),
        ((77,), 0, "", (), TORN),
        ((), None, "", (), HANG),
        ((), -11, "", (), CRASH),
        ((), 1, "OSError: No space left on device\nstopped", (), CLEAR),
        ((), 1, "KeyError: 3", (), UNCLEAR),
    ],
)
def test_an_outcome_is_what_was_observed(
    values: tuple[int, ...], status: int | None, output: str, compilers: tuple[str, ...], word: str, tmp_path: Path
) -> None:
    bench = Bench(CONTENDERS[0], tmp_path / "bench", is_quick=True)
    outcome = bench.judge(Run(values, status, output, compilers, 1.0), 2, clear=("no space",))
    assert outcome.word == word
    if status == 1:
        assert outcome.detail in ("OSError: No space left on device", "KeyError: 3")
    if word == RIGHT:
        assert bench.judge(Run(values, status, output, compilers, 1.0), 2, compiles=False).word == REBUILT


@needs_gxx
def test_only_commands_that_compile_or_link_are_counted(tmp_path: Path) -> None:
    log, source = tmp_path / "log", tmp_path / "a.cpp"
    log.touch()
    source.write_text("int four() { return 4; }\n")
    make_counted_compilers(tmp_path / "bin", log)
    for words in (["--version"], ["-E", "a.cpp"], ["-c", "a.cpp"], ["-shared", "a.o", "-o", "a.so"], ["-S", "a.cpp"]):
        subprocess.run([tmp_path / "bin" / "g++", *words], cwd=tmp_path, check=True, capture_output=True)
    assert [line.split()[1] for line in log.read_text().splitlines()] == ["-c", "-shared", "-S"]


@needs_gxx
@pytest.mark.parametrize(
    ("case", "word"),
    [
        ("lie_header", STALE),
        ("tear_flipped", TORN),
        ("tear_truncated", CRASH),
        ("hang_killed_compiling", HANG),
        ("trust_world_writable", UNSAFE),
    ],
)
def test_the_cases_find_what_a_careless_builder_does(case: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torture, "HANG_S", 5.0)
    row = observe(CARELESS, case, is_quick=True)
    if row["outcome"] == torture.NONE:
        pytest.skip(row["detail"])
    assert row["outcome"] == word, row["detail"]


@needs_gxx
@pytest.mark.parametrize("case", ["lie_header", "tear_truncated", "tear_power_loss"])
def test_the_engine_is_right_in_a_case(case: str) -> None:
    row = observe(named(["accel-ops engine"])[0], case, is_quick=True)
    if row["outcome"] == torture.NONE:
        pytest.skip(row["detail"])
    assert row["outcome"] == RIGHT, row["detail"]


def test_a_limit_is_written_as_the_version_of_control_groups_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystems, "CGROUPS", tmp_path)
    for controller in ("cpu", "memory", "pids"):
        (tmp_path / controller).mkdir()
        (tmp_path / controller / "cgroup.procs").touch()

    def written(controller: str) -> dict[str, str]:
        with filesystems.control_group(controller, 7, tmp_path) as group:
            files = {path.name: path.read_text() for path in group.parent.iterdir()}
            for name in files:  # else the directory cannot be removed
                (group.parent / name).unlink()
        return files

    assert written("cpu") == {"cpu.cfs_quota_us": "7"}
    assert written("memory") == {"memory.limit_in_bytes": "7"}
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "cgroup.procs").touch()
    assert written("cpu") == {"cpu.max": "7"}
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert written("memory") == {"memory.max": "7"}
    assert written("pids") == {"pids.max": "7"}
    (tmp_path / "cgroup.subtree_control").unlink()
    (tmp_path / "cgroup.subtree_control").mkdir()  # as where a process is in this group
    with (
        pytest.raises(NotApplicable, match="no control group for pids"),
        filesystems.control_group("pids", 7, tmp_path),
    ):
        pass
