"""What ranks write on its way to their launcher's streams, and which of them ended first."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from accelerator.launch.observer import Observer


def test_the_observer_passes_on_remembers_and_knows_who_ended_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    observer = Observer()
    processes = {}
    for rank in (0, 1):
        path = observer.new_stream(rank, 2, str(tmp_path / f"log{rank}"))
        code = f"import sys; sys.stdin.read(); print('x' * 5, {rank}, '\\n' * 30, file=sys.stderr)"
        with open(path, "wb") as stream:
            program = [sys.executable, "-S", "-c", code]
            processes[rank] = subprocess.Popen(program, stdin=subprocess.PIPE, stderr=stream)
    observer.watch({rank: process.pid for rank, process in processes.items()})
    for rank in (1, 0):
        processes[rank].communicate(b"", timeout=60)  # its end
        if hasattr(os, "pidfd_open"):
            wait_for(lambda rank=rank: rank in observer.ended_s)
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


def wait_for(seen: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def wait_for_output(capfd: pytest.CaptureFixture[str], expected: str) -> None:
    seen = []

    def is_there() -> bool:
        seen.append(capfd.readouterr().err)
        return "".join(seen) == expected

    wait_for(is_there)


@pytest.fixture
def holds_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerator.launch.observer._HELD_S", 60.0)


@pytest.mark.usefixtures("holds_long")
def test_a_line_that_is_written_in_pieces_is_not_torn_by_another_ranks(
    two_ranks: tuple[Observer, list[BinaryIO]], capfd: pytest.CaptureFixture[str]
) -> None:
    observer, streams = two_ranks
    for rank, text in ((0, b"loss "), (1, b"whole\nhalf"), (0, b"0.1\nend"), (1, b" a line\nlast")):
        streams[rank].write(text)
        wait_for(lambda rank=rank, text=text: observer.tail(rank).split()[-1:] == text.decode().split()[-1:])  # type: ignore[misc]
    wait_for_output(capfd, "whole\nloss 0.1\nhalf a line\n")
    streams[0].close()  # without an end of the line
    wait_for_output(capfd, "end")
    observer.stop()  # while the other one has not ended
    wait_for_output(capfd, "last")


@pytest.mark.usefixtures("holds_long")
@pytest.mark.parametrize("text", ["\r 10%", "10%\r", "a line\n 20%\r 30%"])
def test_progress_bars_are_not_held(
    two_ranks: tuple[Observer, list[BinaryIO]], capfd: pytest.CaptureFixture[str], text: str
) -> None:
    two_ranks[1][0].write(text.encode())
    wait_for_output(capfd, text)


@pytest.mark.usefixtures("holds_long")
def test_of_an_endless_line_no_more_is_held_than_a_piece(
    two_ranks: tuple[Observer, list[BinaryIO]], capfd: pytest.CaptureFixture[str]
) -> None:
    two_ranks[1][0].write(b"x" * 70_000)
    came: list[str] = []
    wait_for(lambda: came.append(capfd.readouterr().err) or sum(map(len, came)) >= 1 << 16)  # type: ignore[func-returns-value]


def test_the_beginning_of_a_line_comes_although_more_and_more_of_it_follows(
    two_ranks: tuple[Observer, list[BinaryIO]], capfd: pytest.CaptureFixture[str]
) -> None:
    def more_was_written_and_some_came() -> bool:
        two_ranks[1][0].write(b".")
        return capfd.readouterr().err.startswith(".")

    wait_for(more_was_written_and_some_came)


def test_nothing_waits_for_a_line_that_was_let_go(
    two_ranks: tuple[Observer, list[BinaryIO]], capfd: pytest.CaptureFixture[str]
) -> None:
    observer, streams = two_ranks
    streams[0].write(b"loading ...")
    wait_for_output(capfd, "loading ...")
    assert [stream.due_s for stream in observer._streams()] == [math.inf, math.inf]


@pytest.mark.usefixtures("holds_long")
def test_what_was_written_before_the_stop_is_not_lost(
    two_ranks: tuple[Observer, list[BinaryIO]], capfd: pytest.CaptureFixture[str]
) -> None:
    """Even where the observer has just asked, and found nothing."""
    observer, streams = two_ranks
    ask = observer._selector.select

    def find_nothing_and_be_stopped(_: float | None) -> list[Any]:
        observer._selector.select = ask  # type: ignore[method-assign]
        streams[0].write(b"a line\n")
        observer._stopping = True
        return []

    observer._selector.select = find_nothing_and_be_stopped  # type: ignore[method-assign,assignment]
    observer._wake()
    observer._thread.join(60)
    assert capfd.readouterr().err == "a line\n"


def test_who_reads_slowly_gets_whole_lines(
    two_ranks: tuple[Observer, list[BinaryIO]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A beginning whose time is over while the observer waits for its reader has its end in the pipe by then."""
    observer, streams = two_ranks
    streams[0].write(b"half of ")
    wait_for(lambda: observer.tail(0) != "")
    write, pieces = os.write, []

    def write_slowly(descriptor: int, text: bytes) -> int:
        if descriptor == 2:
            pieces.append(text)
            if len(pieces) == 1:
                streams[0].write(b"a line\n")
                time.sleep(1)
        return write(descriptor, text)

    monkeypatch.setattr(os, "write", write_slowly)
    streams[1].write(b"other\n")
    wait_for_output(capfd, "other\nhalf of a line\n")
    assert pieces == [b"other\n", b"half of a line\n"]
