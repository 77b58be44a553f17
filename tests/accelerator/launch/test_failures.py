"""What is told of a failure, and how it travels from one process of the launcher to another."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launching import environment

from accelerator.launch import driver
from accelerator.launch.driver import RemoteCommand
from accelerator.launch.failures import Failure, first_failure, tail_of
from accelerator.launch.hostfile import Host
from accelerator.launch.job import Job
from accelerator.launch.received import receiving_command
from accelerator.launch.worker import tell

FAILURE = Failure(rank=3, local_rank=1, host="b", pid=99, exit_code=-9, time_s=10.5, tail="one\ntwo", message="why")


def test_a_failure_is_told_with_rank_host_cause_and_tail() -> None:
    assert str(FAILURE).splitlines() == [
        "rank 3 (local rank 1, pid 99) on b ended by signal 9 (SIGKILL)",
        "why",
        "The last it wrote to standard error:",
        "  | one",
        "  | two",
    ]
    assert "with exit status 5" in str(replace(FAILURE, exit_code=5))
    assert "signal 63 (unknown)" in str(replace(FAILURE, exit_code=-63))


@pytest.mark.parametrize(("code", "status"), [(1, 1), (137, 137), (-9, 137), (-15, 143)])
def test_the_exit_status_is_the_ranks_as_shells_have_it(code: int, status: int) -> None:
    assert replace(FAILURE, exit_code=code).exit_status == status


def test_a_failure_travels_in_one_line() -> None:
    line = FAILURE.to_line()
    assert line.count("\n") == 1
    assert Failure.from_line(line) == FAILURE
    assert Failure.from_line("unfinished" + line) == FAILURE
    assert Failure.from_line("an ordinary line\n") is None
    assert Failure.from_line(line[:40]) is None


TEXTS = {
    "none": "",
    "short": "one\ntwo",
    "long": "x" * 20_000,
    "wide": "错" * 2000,
    "cut": tail_of("错".encode() * 2000),
    "no text": b"\xff\xfe\x80".decode(errors="surrogateescape"),
}


@pytest.mark.parametrize("tail", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("message", TEXTS.values(), ids=TEXTS)
def test_a_failure_is_short_enough_for_a_pipe_to_take_it_in_one_piece(tail: str, message: str) -> None:
    line = replace(FAILURE, tail=tail, message=message).to_line()
    assert len(line.encode()) <= 4096
    told = Failure.from_line(line)
    assert told is not None
    assert told.tail == tail[len(tail) - len(told.tail) :], "its end"
    assert told.message == message[: len(told.message)], "its beginning"
    if (told.tail, told.message) != (tail, message):
        assert len(line) > 4096 - 24, "no more is left out than must be"


def test_what_is_no_text_is_told_all_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    tell(TEXTS["no text"])
    assert capfd.readouterr().err == "accel-launch: \\udcff\\udcfe\\udc80\n"


def test_the_first_that_ended_is_the_cause() -> None:
    later = replace(FAILURE, rank=0, time_s=10.6)
    assert first_failure([later, FAILURE]) is FAILURE
    assert first_failure([]) is None


def test_the_tail_is_the_last_lines() -> None:
    assert tail_of(b"".join(b"%d\n" % n for n in range(100))).splitlines() == [str(n) for n in range(80, 100)]
    assert tail_of(b"\xff\n") == "\N{REPLACEMENT CHARACTER}"


def run(commands: list[str], capfd: pytest.CaptureFixture[str], grace_s: float = 5.0) -> tuple[int, str]:
    made = [RemoteCommand(f"host{n}", ("sh", "-c", text), True, {}) for n, text in enumerate(commands)]
    return run_commands(made, capfd, grace_s)


def run_commands(
    commands: list[RemoteCommand], capfd: pytest.CaptureFixture[str], grace_s: float = 5.0
) -> tuple[int, str]:
    job = Job(program=("x",), hosts=(Host("a", 1, (0,)),), launcher="ssh", grace_s=grace_s)
    status = driver.run(job, commands)
    return status, capfd.readouterr().err


def test_when_one_host_fails_the_others_are_told_to_end(capfd: pytest.CaptureFixture[str]) -> None:
    status, told = run(["sleep 0.2; exit 4", "read order; echo got $order >&2"], capfd)
    assert status == 4
    assert "got SIGTERM" in told
    assert "host0 ended with status 4; ending the others" in told


def fails(failure: Failure, status: int) -> str:
    return f"printf '%s' '{failure.to_line()[:-1]}' >&2; printf '\\n' >&2; exit {status}"


def test_of_several_failing_hosts_the_rank_that_failed_first_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    first, second = replace(FAILURE, host="first", time_s=1.0), replace(FAILURE, host="second", time_s=2.0)
    status, told = run([fails(replace(second, exit_code=1), 1), "sleep 0.5; " + fails(first, 137)], capfd)
    assert status == 137
    assert "on first ended by signal 9" in told
    assert "on second" not in told
    assert "\x1e" not in told


def test_a_host_that_does_not_end_is_killed(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_ON_TOP_S", 0.2)
    status, _ = run(["exit 3", "trap '' TERM; sleep 600 & wait; sleep 600"], capfd, grace_s=0.2)
    assert status == 3


def test_a_host_has_the_time_that_its_ranks_and_what_they_left_may_take(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_ON_TOP_S", 0.5)
    _, told = run(["exit 3", "read order; sleep 5; echo all have ended >&2"], capfd, grace_s=4.0)
    assert "all have ended" in told


def test_a_driver_leaves_signals_ignored_that_were_ignored_before(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(["kill -HUP $PPID; sleep 0.3"], capfd)[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ssh_that_does_not_get_there_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    refused = ("sh", "-c", "read sent; echo 'Connection refused' >&2; exit 255")
    status, told = run_commands([RemoteCommand("host0", refused, True, {}, sent={})], capfd)
    assert status == 255
    assert "Connection refused" in told
    assert "host0: ssh failed; see above. Remedy: Have 'sh -c true' work without questions." in told


def test_a_rank_that_ends_with_ssh_s_own_status_is_not_taken_for_ssh(capfd: pytest.CaptureFixture[str]) -> None:
    here = RemoteCommand("localhost", ("sh", "-c", "exit 255"), True, {})
    there = RemoteCommand("b", ("sh", "-c", "read sent; " + fails(replace(FAILURE, exit_code=255), 255)), True, {}, {})
    for command in (here, there):
        status, told = run_commands([command], capfd)
        assert status == 255
        assert "ssh failed" not in told


def test_what_is_left_is_ended_while_signals_are_still_heeded(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    before = signal.getsignal(signal.SIGTERM)
    look = lambda *_: seen.append(signal.getsignal(signal.SIGTERM) is not before)  # noqa: E731
    monkeypatch.setattr(driver, "end_processes_of", look)
    assert run(["exit 3"], capfd)[0] == 3
    assert seen == [True]


def test_a_host_that_is_sent_no_variables_tells_so() -> None:
    command = receiving_command(sys.executable, ["true"])
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "accel-launch: standard input ended before the variables of this host came" in done.stderr


def test_what_has_no_line_end_is_passed_on_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert "progress 50%\rprogress 100%" in run(["printf 'progress 50%%\\rprogress 100%%' >&2"], capfd)[1]


def test_a_launcher_that_is_missing_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "accelerator.launch", "--launcher", "slurm", "--num_accelerators", "1", "x.py"]
    variables = environment(PATH=str(tmp_path))
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "srun cannot be started: No such file" in done.stderr
