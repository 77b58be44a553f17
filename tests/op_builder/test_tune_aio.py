"""The tuner of async_io: what it tries, which it finds best, what it writes, and that it leaves no file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from op_builder import env
from op_builder.cpu import AsyncIOBuilder
from op_builder.errors import AccelError
from op_builder.system import storage_engines
from op_builder.tune_aio import __main__ as command
from op_builder.tune_aio.measure import Measurement, Settings, bench
from op_builder.tune_aio.search import Grid, search

QUICK = ["--quick", "--size", "2M", "--seconds", "0.001"]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    directory = tmp_path / "disk"
    directory.mkdir()
    return directory


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory on a file system that is all page cache."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


# The search, on a disk that is made up ----------------------------------------------------------


def speed(settings: Settings) -> Measurement:
    """Best: libaio, 1M, 32 in flight, 2 threads, single_submit, overlap_events."""
    rate = 1e9
    rate += {"io_uring": 0, "libaio": 50e6, "threads": -400e6}[settings.engine]
    rate -= abs(settings.block_size - (1 << 20)) * 100
    rate -= abs(settings.queue_depth - 32) * 1e6
    rate -= abs(settings.intra_op_parallelism - 2) * 1e6
    rate += settings.single_submit * 2e6 + settings.overlap_events * 1e6
    return Measurement(settings, rate, rate / 2, 1.0)


def test_the_best_is_found_along_every_dimension() -> None:
    told: list[Settings] = []
    grid = Grid(storage_engines.ENGINES)
    findings = search(grid, speed, lambda settings, _: told.append(settings))
    assert findings.best.settings == Settings("libaio", 1 << 20, 32, True, True, 2)
    assert findings.best.read_bytes_per_s == pytest.approx(1e9 + 53e6)
    assert {final.settings.engine for final in findings.finals} == set(storage_engines.ENGINES)
    assert grid.steps() - 6 * grid.repeats <= len(told) <= grid.steps()


def test_the_best_for_one_direction_may_be_another() -> None:
    def measure(settings: Settings) -> Measurement:
        deep, large = settings.queue_depth == 128, settings.block_size == 8 << 20
        return Measurement(settings, 3e9 if deep else 1e9, 3e9 if large and not deep else 1e9, 1.0)

    findings = search(Grid(("threads",)), measure)
    assert findings.best_read.settings.queue_depth == 128
    assert findings.best_write.settings.block_size == 8 << 20


def test_a_lucky_moment_does_not_win() -> None:
    seen: list[Settings] = []

    def measure(settings: Settings) -> Measurement:
        is_lucky = settings.queue_depth == 8 and seen.count(settings) == 1
        seen.append(settings)
        rate = 9e9 if is_lucky else 2e9 if settings.queue_depth == 32 else 1e9
        return Measurement(settings, rate, rate, 1.0)

    findings = search(Grid(("threads",), block_sizes=(1 << 20,), queue_depths=(8, 32), threads=(1,)), measure)
    assert findings.best.settings.queue_depth == 32


def test_settings_that_the_system_refuses_are_passed_over() -> None:
    def measure(settings: Settings) -> Measurement:
        if settings.engine == "libaio" or settings.queue_depth > 32:
            raise AccelError("no queue of that size")
        return speed(settings)

    findings = search(Grid(("libaio", "io_uring")), measure)
    assert findings.best.settings.engine == "io_uring"
    assert findings.final_of("libaio") is None
    assert {reason for _, reason in findings.failed} == {"no queue of that size"}


def test_when_nothing_works_the_first_reason_is_the_error() -> None:
    def measure(_settings: Settings) -> Measurement:
        raise AccelError("no queue of that size")

    with pytest.raises(AccelError, match="no queue of that size"):
        search(Grid(("threads",)), measure)


# The command, on a real one ----------------------------------------------------------------------


def test_the_settings_are_what_a_handle_takes(disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    output = tmp_path / "settings.json"
    assert command.main([str(disk), *QUICK, "--output", str(output)]) == 0
    told = capsys.readouterr().out
    settings = json.loads(output.read_text())
    handle = AsyncIOBuilder().load().aio_handle(**settings)
    assert handle.engine == settings.get("engine", AsyncIOBuilder().load().aio_handle().engine)
    assert handle.get_block_size() == settings["block_size"]
    assert handle.get_intra_op_parallelism() == settings["intra_op_parallelism"]
    assert "for both" in told
    assert str(output) in told
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert os.listdir(disk) == []


def test_json_has_all_that_was_measured(disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "settings.json"
    assert command.main([str(disk), *QUICK, "--engine", "threads", "--json", "--output", str(output)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["best"]["settings"] == json.loads(output.read_text())
    assert data["size_bytes"] == 2 << 20
    assert {entry["settings"]["engine"] for entry in data["measured"]} == {"threads"}
    assert all(entry["read_bytes_per_s"] > 0 and entry["written_bytes_per_s"] > 0 for entry in data["measured"])


def test_the_page_cache_is_not_passed_off_as_a_device(
    memory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(memory), *QUICK, "--engine", "threads", "--output", str(tmp_path / "s.json")]) == 0
    told = capsys.readouterr().out
    assert "the figures are those of memory" in told
    assert "past the page cache. Of" not in told


def test_without_matplotlib_the_extra_is_named(
    disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    output = tmp_path / "s.json"
    assert command.main([str(disk), *QUICK, "--engine", "threads", "--output", str(output)]) == 0
    assert "pip install 'accel-ops[demo]'" in capsys.readouterr().out
    assert output.exists()
    assert not output.with_suffix(".png").exists()


def test_a_measurement_moves_the_bytes_that_it_tells_of(disk: Path) -> None:
    with bench(disk, 3 << 20, 0.01) as scratch:
        found = scratch.measure(Settings("threads", 1 << 16, 4))
    assert found.read_bytes_per_s > 0
    assert found.written_bytes_per_s > 0
    assert 0 <= found.direct_share <= 1
    assert os.listdir(disk) == []


# What goes wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directory", "told"), [("missing", "is missing"), ("file", "is no directory")], ids=["missing", "file"]
)
def test_a_directory_that_is_none_is_refused(
    tmp_path: Path, directory: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert command.main([str(tmp_path / directory), *QUICK, "--output", str(tmp_path / "s.json")]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "Name a directory" in error
    assert not (tmp_path / "s.json").exists()


def test_a_directory_that_cannot_be_written_is_refused(
    disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)  # root may write everywhere
    assert command.main([str(disk), *QUICK, "--output", str(tmp_path / "s.json")]) == 2
    assert "this user can write" in capsys.readouterr().err


def test_too_little_space_is_told_before_anything_is_written(
    disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(disk), "--quick", "--size", "999999G", "--output", str(tmp_path / "s.json")]) == 2
    assert "give a --size below" in capsys.readouterr().err


def test_an_output_without_a_directory_is_refused_before_the_work(
    disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(disk), *QUICK, "--output", str(tmp_path / "missing" / "s.json")]) == 2
    assert "--output" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--size", "12"], ["--size", "many"], ["--seconds", "0"], ["--seconds", "x"]], ids=" ".join
)
def test_bad_options_are_refused(disk: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main([str(disk), *options])
    assert caught.value.code == 2
    assert repr(options[1]) in capsys.readouterr().err


def test_help_names_what_takes_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["--help"])
    assert caught.value.code == 0
    assert "aio_handle(**json.load(file))" in capsys.readouterr().out


def test_engines_are_as_asked_for_or_forced(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(disk), *QUICK, "--engine", "floppy"]) == 2
    assert "Name one of io_uring" in capsys.readouterr().err
    with env.scope(ACCEL_AIO_ENGINE="threads"):
        assert command._engines(None) == command._engines(["threads"]) == (("threads",), {})
        with pytest.raises(AccelError, match="ACCEL_AIO_ENGINE=threads forces"):
            command._engines(["libaio"])


def test_the_engine_that_a_handle_takes_by_itself_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_engines, "refusal", lambda name: "forbidden" if name == "io_uring" else None)
    assert command._portable(Settings("libaio", 1 << 20, 32)) == {
        "block_size": 1 << 20,
        "queue_depth": 32,
        "single_submit": False,
        "overlap_events": True,
        "intra_op_parallelism": 1,
    }
    assert command._portable(Settings("threads", 1 << 20, 32))["engine"] == "threads"


def test_an_engine_that_the_system_refuses_is_told_of(monkeypatch: pytest.MonkeyPatch, disk: Path) -> None:
    monkeypatch.setattr(storage_engines, "refusal", lambda name: "forbidden" if name == "io_uring" else None)
    assert command._engines(None) == (("libaio", "threads"), {"io_uring": "forbidden"})
    assert command.main([str(disk), *QUICK, "--engine", "io_uring"]) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_no_file_is_left_when_it_is_ended(disk: Path, tmp_path: Path, number: signal.Signals) -> None:
    AsyncIOBuilder().load()  # so that it is in the cache
    arguments = [str(disk), "--size", "4M", "--seconds", "600", "--engine", "threads"]
    code = (
        "import runpy, sys\n"
        "from op_builder.tune_aio import measure\n"
        "of_class = measure.Bench.measure\n"
        "measure.Bench.measure = lambda *arguments: (print('measuring', flush=True), of_class(*arguments))[1]\n"
        "runpy.run_module('op_builder.tune_aio', run_name='__main__')\n"
    )
    tuner = subprocess.Popen(
        [sys.executable, "-c", code, *arguments, "--output", str(tmp_path / "s.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert tuner.stdout is not None
    assert tuner.stdout.readline() == "measuring\n"
    time.sleep(0.1)
    tuner.send_signal(number)
    _, error = tuner.communicate(timeout=60)
    assert os.listdir(disk) == []
    assert not (tmp_path / "s.json").exists()
    if number == signal.SIGINT:
        assert tuner.returncode == 130
        assert "Interrupted" in error
        assert "Traceback" not in error
