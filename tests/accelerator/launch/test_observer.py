"""What ranks write on its way to their launcher's streams, and which of them ended first."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from accelerator.launch.observer import Observer


def test_the_observer_passes_on_remembers_and_knows_who_ended_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    observer = Observer()
    processes = {}
    for rank, seconds in ((0, 0.6), (1, 0.0)):
        path = observer.new_stream(rank, 2, str(tmp_path / f"log{rank}"))
        code = f"import sys, time; time.sleep({seconds}); print('x' * 5, {rank}, '\\n' * 30, file=sys.stderr)"
        with open(path, "wb") as stream:
            processes[rank] = subprocess.Popen([sys.executable, "-S", "-c", code], stderr=stream)
    observer.watch({rank: process.pid for rank, process in processes.items()})
    for process in processes.values():
        process.wait()
    deadline = time.monotonic() + 60
    while len(observer.ended_s) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    observer.stop()
    if hasattr(os, "pidfd_open"):
        assert observer.ended_s[1] < observer.ended_s[0] <= time.time()
    assert sorted(line for line in capfd.readouterr().err.splitlines() if line.strip()) == ["xxxxx 0 ", "xxxxx 1 "]
    assert (tmp_path / "log1").read_text().startswith("xxxxx 1")
    assert len(observer.tail(1).splitlines()) <= 20


@pytest.fixture
def two_ranks() -> Iterator[tuple[Observer, list[BinaryIO]]]:
    """An observer, and the standard error of two ranks."""
    observer = Observer()
    with contextlib.ExitStack() as stack:
        stack.callback(observer.stop)
        streams = [stack.enter_context(open(observer.new_stream(rank, 2, None), "wb", buffering=0)) for rank in (0, 1)]
        observer.watch({})
        yield observer, streams


def test_a_line_that_is_written_in_pieces_is_not_torn_by_another_ranks(
    two_ranks: tuple[Observer, list[BinaryIO]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("accelerator.launch.observer._HELD_S", 60.0)
    observer, streams = two_ranks
    for rank, text in ((0, b"loss "), (1, b"whole\nhalf"), (0, b"0.1\rloss 0.2"), (1, b" a line\n")):
        streams[rank].write(text)
        deadline_s = time.monotonic() + 60
        while observer.tail(rank).split()[-1:] != text.decode().split()[-1:]:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    streams[0].close()  # without an end of the line
    observer.stop()
    assert capfd.readouterr().err == "whole\nloss 0.1\rhalf a line\nloss 0.2"


def test_the_beginning_of_a_line_comes_when_nothing_follows(
    two_ranks: tuple[Observer, list[BinaryIO]], capfd: pytest.CaptureFixture[str]
) -> None:
    _, streams = two_ranks
    streams[0].write(b"loading ...")
    seen, deadline_s = "", time.monotonic() + 60
    while seen != "loading ...":
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
        seen += capfd.readouterr().err
