"""Commands that start ranks elsewhere: which failure is reported, and how the others end."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from accelerator.launch import remote
from accelerator.launch.hosts import host_of
from accelerator.launch.job import Job
from accelerator.launch.output import Failure
from accelerator.launch.remote import RemoteCommand
from tests.support.launching import command, environment

Capture = pytest.CaptureFixture[str]
FAILURE = Failure(rank=3, local_rank=1, host="b", pid=99, exit_code=-9, time_s=10.5, tail="one\ntwo", message="why")


def run(
    scripts: list[str],
    capfd: Capture,
    grace_s: float = 60.0,
    sent: dict[str, str] | None = None,
    margin_s: float = 60.0,
) -> tuple[int, str]:
    """The exit status, and standard error; each script is the command of a host."""
    commands = [RemoteCommand(f"host{n}", ("sh", "-c", text), {}, sent) for n, text in enumerate(scripts)]
    status = remote.run(Job(("x",), (host_of("a", 1),), launcher="ssh", grace_s=grace_s), commands, margin_s)
    return status, capfd.readouterr().err


def fails(failure: Failure, status: int) -> str:
    return f"printf '%s' '{failure.to_line()[:-1]}' >&2; printf '\\n' >&2; exit {status}"


def test_a_failing_host_ends_the_others(capfd: Capture) -> None:
    status, written = run(["sleep 0.2; exit 4", "read order; echo got $order >&2"], capfd)
    assert status == 4
    assert "got SIGTERM" in written
    assert "host0 ended with status 4; ending the others" in written


def test_the_first_failure_of_several_hosts_is_reported(capfd: Capture) -> None:
    first, second = replace(FAILURE, host="first", time_s=1.0), replace(FAILURE, host="second", time_s=2.0)
    scripts = [fails(replace(second, exit_code=1), 1), "read order; " + fails(first, 137)]
    status, written = run(scripts, capfd)
    assert status == 137
    assert "on first ended by signal 9" in written
    assert "on second" not in written
    assert "\x1e" not in written


def test_a_host_that_does_not_end_is_killed(capfd: Capture) -> None:
    assert run(["exit 3", "trap '' TERM; sleep 600 & wait; sleep 600"], capfd, grace_s=0.2, margin_s=0.2)[0] == 3


def test_ignored_signals_stay_ignored(capfd: Capture) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(["kill -HUP $PPID; sleep 0.3"], capfd)[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_failure_of_ssh_is_reported(capfd: Capture) -> None:
    status, written = run(["read sent; echo 'Connection refused' >&2; exit 255"], capfd, sent={})
    assert status == 255
    assert "Connection refused" in written
    assert "host0: ssh failed; see above. Remedy: Make 'sh -c true' work without a prompt." in written


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_rank_with_status_255_is_no_failure_of_ssh(capfd: Capture, is_remote: bool) -> None:
    by_ssh = "read sent; " + fails(replace(FAILURE, exit_code=255), 255)
    status, written = run([by_ssh] if is_remote else ["exit 255"], capfd, sent={} if is_remote else None)
    assert status == 255
    assert "ssh failed" not in written


def test_signals_are_handled_while_left_processes_are_ended(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    is_handled: list[bool] = []
    before = signal.getsignal(signal.SIGTERM)
    look = lambda *_: is_handled.append(signal.getsignal(signal.SIGTERM) is not before)  # noqa: E731
    monkeypatch.setattr(remote, "end_processes_of", look)
    assert run(["exit 3"], capfd)[0] == 3
    assert is_handled == [True]


def test_a_missing_launcher_is_an_error(tmp_path: Path) -> None:
    arguments = command("--launcher", "slurm", "--num_accelerators", "1", "x.py")
    variables = environment(PATH=str(tmp_path))
    done = subprocess.run(arguments, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "srun cannot be started: No such file" in done.stderr


def test_the_launcher_imports_neither_torch_nor_other_slow_modules() -> None:
    code = (
        "import sys, accelerator.launch.command_line, accelerator.launch.remote, accelerator.launch.rank;"
        "print({'torch', 'numpy', 'rich', 'psutil'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
