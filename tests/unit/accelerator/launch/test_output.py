"""What ranks write on its way to their launcher's streams, and the failures that are reported with it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from accelerator.launch.output import Failure, Relay
from tests.support.waiting import wait_until

FAILURE = Failure(rank=3, local_rank=1, host="b", pid=99, exit_code=-9, time_s=10.5, tail="one\ntwo")


class Pipe:
    """A relay from a pipe to a file."""

    def __init__(self, directory: Path, line_timeout_s: float = 600.0) -> None:
        reader, self._writer = os.pipe()
        self.target, self.log = directory / "target", directory / "log"
        self.failures: list[Failure] = []
        target = os.open(self.target, os.O_RDWR | os.O_CREAT)
        self.relay = Relay(reader, target, str(self.log), self.failures, line_timeout_s)

    def write(self, text: str) -> None:
        os.write(self._writer, text.encode())

    def wait_for(self, expected: str) -> None:
        wait_until(lambda: self.target.read_bytes().decode().startswith(expected), self.target.read_text)


@pytest.fixture
def pipe(tmp_path: Path) -> Pipe:
    """A pipe that waits long for the rest of a line."""
    return Pipe(tmp_path)


def test_a_failure_travels_in_one_line() -> None:
    line = FAILURE.to_line()
    assert line.count("\n") == 1
    assert Failure.from_line(line) == FAILURE
    assert Failure.from_line("unfinished" + line) == FAILURE
    assert Failure.from_line("an ordinary line\n") is None
    assert Failure.from_line(line[:40]) is None
    assert Failure.from_line(line.replace("pid", "dip")) is None


@pytest.mark.parametrize(
    "long",
    ["x" * 20_000, "错" * 2000, b"\xff\xfe".decode(errors="surrogateescape") * 2000],
    ids=["ascii", "wide", "bytes"],
)
def test_the_line_of_a_failure_is_short_enough_for_an_atomic_write(long: str) -> None:
    line = replace(FAILURE, tail=long).to_line()
    assert len(line.encode()) <= 4096
    received = Failure.from_line(line)
    assert received.tail
    assert long.endswith(received.tail)


def test_a_line_in_pieces_is_copied_whole_and_output_also_to_the_log(pipe: Pipe) -> None:
    lines = "".join(f"{number}\n" for number in range(100))
    for text, expected in ((lines + "loss ", lines), ("0.1\nhalf", f"{lines}loss 0.1\n")):
        pipe.write(text)
        pipe.wait_for(expected)
        assert pipe.target.read_text() == expected
    pipe.relay.finish()  # while the writer may still write
    assert pipe.target.read_text() == pipe.log.read_text() == f"{lines}loss 0.1\nhalf"
    assert pipe.relay.tail.splitlines() == [*map(str, range(82, 100)), "loss 0.1", "half"]


def test_a_line_without_an_end_is_copied_after_the_timeout(tmp_path: Path) -> None:
    """Even if more of it comes again and again."""
    pipe = Pipe(tmp_path, line_timeout_s=0.5)
    wait_until(lambda: pipe.write(".") or pipe.target.read_bytes().startswith(b"."))


@pytest.mark.parametrize("text", ["\r 10%", "10%\r", "a line\n 20%\r 30%"])
def test_progress_bars_are_copied_immediately(pipe: Pipe, text: str) -> None:
    pipe.write(text)
    pipe.wait_for(text)


def test_a_long_line_is_copied_in_pieces(pipe: Pipe) -> None:
    for _ in range(3):
        pipe.write("x" * 30_000)
    pipe.wait_for("x" * (1 << 16))


def test_a_failure_is_removed_from_the_output(pipe: Pipe) -> None:
    line = FAILURE.to_line()
    pipe.write("before\nunfinished" + line[:100])
    pipe.wait_for("before\n")
    pipe.write(line[100:] + "after\n")
    pipe.wait_for("before\nunfinishedafter\n")
    assert pipe.failures == [FAILURE]
