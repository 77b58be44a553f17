"""What ranks write on its way to their launcher's streams, and the failures that are reported with it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from accelerator.launch.output import Failure, Relay
from tests.support.launching import wait_until

FAILURE = Failure(rank=3, local_rank=1, host="b", pid=99, exit_code=-9, time_s=10.5, tail="one\ntwo", message="why")


class Pipe:
    """A relay between two pipes."""

    def __init__(self, line_timeout_s: float = 600.0, log_path: str | None = None) -> None:
        reader, self._writer = os.pipe()
        self._target, target = os.pipe()
        os.set_blocking(self._target, False)
        self.failures: list[Failure] = []
        self.relay = Relay(reader, target, log_path, self.failures, line_timeout_s)
        self.received = ""

    def write(self, text: str) -> None:
        os.write(self._writer, text.encode())

    def wait_for(self, expected: str) -> None:
        def has_come() -> bool:
            with contextlib.suppress(BlockingIOError):
                self.received += os.read(self._target, 1 << 20).decode()
            return self.received.startswith(expected)

        wait_until(has_come, lambda: self.received)


@pytest.fixture
def pipe() -> Pipe:
    """A pipe that waits long for the rest of a line."""
    return Pipe()


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
    for message in ("", "short", long):
        line = replace(FAILURE, tail=long, message=message).to_line()
        assert len(line.encode()) <= 4096
        received = Failure.from_line(line)
        assert received.tail
        assert long.endswith(received.tail)
        assert message.startswith(received.message)


def test_a_line_in_pieces_is_copied_whole_and_output_also_to_the_log(tmp_path: Path) -> None:
    pipe = Pipe(log_path=str(tmp_path / "log"))
    lines = "".join(f"{number}\n" for number in range(100))
    for text, expected in ((lines + "loss ", lines), ("0.1\nhalf", f"{lines}loss 0.1\n")):
        pipe.write(text)
        pipe.wait_for(expected)
        assert pipe.received == expected
    pipe.relay.finish()  # while the writer may still write
    pipe.wait_for(f"{lines}loss 0.1\nhalf")
    assert (tmp_path / "log").read_text() == pipe.received
    assert pipe.relay.tail.splitlines() == [*map(str, range(82, 100)), "loss 0.1", "half"]


def test_a_line_without_an_end_is_copied_after_the_timeout() -> None:
    pipe = Pipe(line_timeout_s=0.05)
    pipe.write("half")
    pipe.wait_for("half")


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
