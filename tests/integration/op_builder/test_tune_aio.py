"""The command that tunes async_io: what it measures, prints and writes, and that it leaves no file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE

import pytest

from op_builder import env
from op_builder import tune_aio as command
from op_builder.cpu import AsyncIOBuilder
from tests.support.waiting import open_files, wait_until

QUICK = ["--quick", "--size", "2M", "--seconds", "0.001"]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def test_the_settings_are_what_a_handle_takes(disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "settings.json"
    assert command.main([str(disk), *QUICK, "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    settings = json.loads(output.read_text())
    handle = AsyncIOBuilder().load().aio_handle(**settings)
    assert handle.engine == settings.get("engine", AsyncIOBuilder().load().aio_handle().engine)
    assert handle.get_block_size() == settings["block_size"]
    assert handle.get_intra_op_parallelism() == settings["intra_op_parallelism"]
    assert "for both" in printed
    assert str(output) in printed
    assert os.listdir(disk) == []


def test_json_has_all_measurements(disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "settings.json"
    with env.scope(ACCEL_AIO_ENGINE="threads"):
        assert command.main([str(disk), *QUICK, "--json", "--output", str(output)]) == 0
        data = json.loads(capsys.readouterr().out)
        assert command.main([str(disk), *QUICK, "--engine", "libaio"]) == 2
        assert "ACCEL_AIO_ENGINE=threads selects one engine" in capsys.readouterr().err
    best, written = data["best"]["settings"], json.loads(output.read_text())
    assert best == {"engine": "threads", **written}
    assert data["size_bytes"] == 2 << 20
    assert {entry["settings"]["engine"] for entry in data["measured"]} == {"threads"}
    assert all(entry["read_bytes_per_s"] > 0 and entry["written_bytes_per_s"] > 0 for entry in data["measured"])
    assert all(0 <= entry["direct_share"] <= 1 for entry in data["measured"])


def test_the_speed_of_memory_is_not_called_that_of_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no /dev/shm")
    output = tmp_path / "s.json"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:  # a file system that consists of page cache
        assert command.main([memory, *QUICK, "--engine", "threads", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "the figures mostly measure memory" in printed
    assert "bypassed the page cache" not in printed
    assert output.exists()


# What goes wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tmp}/missing", *QUICK, "--output", "{tmp}/s.json"], "is missing.\n  Remedy: Pass a directory"),
        (["{tmp}/file", *QUICK, "--output", "{tmp}/s.json"], "is not a directory"),
        (["{tmp}/disk", "--quick", "--size", "999999G", "--output", "{tmp}/s.json"], "pass a --size below"),
        (["{tmp}/disk", *QUICK, "--output", "{tmp}/missing/s.json"], "--output"),
        (["{tmp}/" + "x" * 300, *QUICK, "--output", "{tmp}/s.json"], "is missing."),
        (["{tmp}/disk", *QUICK, "--output", "{tmp}/" + "x" * 300 + "/s.json"], "--output"),
    ],
    ids=["missing", "file", "space", "output", "long", "long output"],
)
def test_what_cannot_be_measured_is_refused_before_the_work(
    disk: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert command.main([argument.replace("{tmp}", str(tmp_path)) for argument in arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "s.json").exists()
    assert os.listdir(disk) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_no_file_is_left_when_it_is_ended(disk: Path, tmp_path: Path, number: signal.Signals) -> None:
    AsyncIOBuilder().load()  # so that it is in the cache
    arguments = ["--size", "4M", "--seconds", "600", "--engine", "threads", "--output", tmp_path / "s.json"]
    tuner = subprocess.Popen([sys.executable, "-m", command.__name__, disk, *arguments], stderr=PIPE, text=True)
    wait_until(lambda: tuner.poll() is not None or any(path.startswith(str(disk)) for path in open_files(tuner.pid)))
    tuner.send_signal(number)
    _, error = tuner.communicate(timeout=300)
    assert os.listdir(disk) == []
    assert not (tmp_path / "s.json").exists()
    if number == signal.SIGINT:
        assert tuner.returncode == 130
        assert "Interrupted" in error
        assert "Traceback" not in error
