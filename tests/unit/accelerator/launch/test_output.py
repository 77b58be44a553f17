"""What ranks write on its way to their launcher's streams, and the failures that are reported with it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
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
    for true, false in (("pid", "dip"), ("-9", '"-9"'), ("10.5", "null"), ('"one', '7, "tale": "')):
        assert Failure.from_line(line.replace(true, false)) is None


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


@pytest.mark.parametrize("is_same", [False, True], ids=["two_pipes", "one_pipe"])
def test_processes_with_two_relays_lose_and_mix_no_line(is_same: bool) -> None:
    """With two pipes the kernel's deadlock detection gives false alarms."""
    ends = [os.pipe() for _ in range(1 if is_same else 2)]
    writers = [writer for _, writer in ends]
    targets = [str(writer) for writer in (writers * 2)[:2]]
    command = [sys.executable, "-m", "tests.support.two_relays"]
    ranks = [subprocess.Popen([*command, name, *targets], pass_fds=writers) for name in ("a", "b")]
    for writer in writers:
        os.close(writer)
    texts = dict.fromkeys(reader for reader, _ in ends)

    def read(reader: int) -> None:
        with open(reader, encoding="ascii") as file:
            texts[reader] = file.read()

    threads = [threading.Thread(target=read, args=(reader,)) for reader in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [rank.wait() for rank in ranks] == [0, 0]
    sent = sorted(f"{name}{number} {'x' * 9000}" for name in "ab" for number in range(300))
    for text in texts.values():
        assert sorted(text.splitlines()) == (sorted(sent * 2) if is_same else sent)


def test_a_stream_that_nobody_reads_does_not_stop_the_other() -> None:
    (full, full_target), (free, free_target) = os.pipe(), os.pipe()
    size = len(b"x" * 9000 + b"\n") * 30  # more than a pipe holds
    relays, writers = [], []
    for target in (full_target, free_target):
        reader, writer = os.pipe()
        relays.append(Relay(reader, target))
        writers.append(writer)
    writes = threading.Thread(target=lambda: [os.write(writers[0], b"x" * 9000 + b"\n") for _ in range(30)])
    writes.start()
    wait_until(lambda: select.select([full], [], [], 0)[0])
    os.write(writers[1], b"ready\n")
    wait_until(lambda: select.select([free], [], [], 0)[0])
    assert os.read(free, 100) == b"ready\n"
    while size:
        size -= len(os.read(full, 1 << 16))
    writes.join()
    for relay in relays:
        relay.finish()
