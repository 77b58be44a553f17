"""What ranks write on its way to their launcher's streams, and the failures that are reported with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from accelerator.launch.output import Failure, Relay, exit_status
from tests.support.waiting import wait_until

FAILURE = Failure(rank=3, local_rank=1, host="b", pid=99, exit_code=-9, time_s=10.5, tail="one\ntwo", message="why")


class Pipe:
    """A relay between two pipes."""

    def __init__(
        self, log_path: str | None = None, failures: list[Failure] | None = None, line_timeout_s: float = 0.5
    ) -> None:
        reader, self._writer = os.pipe()
        self.target, target = os.pipe()
        os.set_blocking(self.target, False)
        self.relay = Relay(reader, target, log_path, failures, line_timeout_s)
        self.received = ""

    def write(self, text: str) -> None:
        os.write(self._writer, text.encode())

    def close(self) -> None:
        os.close(self._writer)

    def has_received(self, expected: str) -> bool:
        with contextlib.suppress(BlockingIOError):
            self.received += os.read(self.target, 1 << 20).decode()
        return self.received == expected

    def wait_for(self, expected: str) -> None:
        wait_until(lambda: self.has_received(expected), lambda: self.received)


@pytest.fixture(params=[600.0])
def pipe(request: pytest.FixtureRequest) -> Iterator[Pipe]:
    """A pipe that waits long for the rest of a line, unless a test sets another timeout."""
    made = Pipe(line_timeout_s=request.param)
    yield made
    with contextlib.suppress(OSError):
        made.close()


def test_a_failure_is_described_with_rank_host_cause_and_tail() -> None:
    assert str(FAILURE).splitlines() == [
        "rank 3 (local rank 1, pid 99) on b ended by signal 9 (SIGKILL)",
        "why",
        "Its last lines on standard error:",
        "  | one",
        "  | two",
    ]
    assert "with exit status 5" in str(replace(FAILURE, exit_code=5))
    assert "signal 63 (unknown)" in str(replace(FAILURE, exit_code=-63))


@pytest.mark.parametrize(("code", "status"), [(1, 1), (137, 137), (-9, 137), (-15, 143)])
def test_the_exit_status_is_the_ranks_as_shells_report_it(code: int, status: int) -> None:
    assert exit_status(code) == status


def test_a_failure_travels_in_one_line() -> None:
    line = FAILURE.to_line()
    assert line.count("\n") == 1
    assert Failure.from_line(line) == FAILURE
    assert Failure.from_line("unfinished" + line) == FAILURE
    assert Failure.from_line("an ordinary line\n") is None
    assert Failure.from_line(line[:40]) is None


LONG = ["x" * 20_000, "错" * 2000, b"\xff\xfe".decode(errors="surrogateescape") * 2000]


@pytest.mark.parametrize("tail", LONG, ids=["ascii", "wide", "no text"])
def test_the_line_of_a_failure_is_short_enough_for_an_atomic_write(tail: str) -> None:
    for message in ("", "short", *LONG):
        line = replace(FAILURE, tail=tail, message=message).to_line()
        assert len(line.encode()) <= 4096
        received = Failure.from_line(line)
        assert received is not None
        assert received.tail
        assert tail.endswith(received.tail)
        assert message.startswith(received.message)


def test_output_is_copied_to_the_target_and_the_log(tmp_path: Path) -> None:
    pipe = Pipe(str(tmp_path / "log"))
    text = "".join(f"{number}\n" for number in range(100)) + "without an end"
    pipe.write(text)
    pipe.close()
    pipe.wait_for(text)
    assert (tmp_path / "log").read_text() == text
    assert pipe.relay.tail.splitlines() == [*map(str, range(81, 100)), "without an end"]


def test_a_line_written_in_pieces_is_copied_whole(pipe: Pipe) -> None:
    for text, expected in (("loss ", ""), ("0.1\nend", "loss 0.1\n"), (" of it\nhalf", "loss 0.1\nend of it\n")):
        pipe.write(text)
        pipe.wait_for(expected)
    pipe.relay.finish()  # while the writer may still write
    pipe.wait_for("loss 0.1\nend of it\nhalf")


@pytest.mark.parametrize("pipe", [0.5], indirect=True)
def test_an_endless_line_is_copied_after_the_timeout(pipe: Pipe) -> None:
    def more_was_written_and_some_came() -> bool:
        pipe.write(".")
        pipe.has_received("")
        return pipe.received.startswith(".")

    wait_until(more_was_written_and_some_came)


@pytest.mark.parametrize("text", ["\r 10%", "10%\r", "a line\n 20%\r 30%"])
def test_progress_bars_are_copied_immediately(pipe: Pipe, text: str) -> None:
    pipe.write(text)
    pipe.wait_for(text)


def test_a_long_line_is_copied_in_pieces(pipe: Pipe) -> None:
    for _ in range(3):
        pipe.write("x" * 30_000)
    wait_until(lambda: pipe.has_received("") or len(pipe.received) >= 1 << 16)


def test_a_failure_is_removed_from_the_output() -> None:
    failures: list[Failure] = []
    pipe = Pipe(failures=failures)
    line = FAILURE.to_line()
    pipe.write("before\nunfinished" + line[:100])
    pipe.wait_for("before\n")
    pipe.write(line[100:] + "after\n")
    pipe.wait_for("before\nunfinishedafter\n")
    assert failures == [FAILURE]
