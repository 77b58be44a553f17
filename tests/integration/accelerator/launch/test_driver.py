"""Commands that start ranks elsewhere: which failure is reported, and how the others end."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from accelerator.launch import remote
from accelerator.launch.hosts import host_of
from accelerator.launch.job import Job
from accelerator.launch.output import Failure
from accelerator.launch.remote import RemoteCommand
from tests.support.foreign_package import output_of
from tests.support.launching import command, environment

Capture = pytest.CaptureFixture[str]


def run(
    scripts: list[str], capfd: Capture, timeout_s: float = 60.0, sent: dict[str, str] | None = None
) -> tuple[int, str]:
    """The exit status, and standard error; each script is the command of a host."""
    commands = [RemoteCommand(f"host{n}", ("sh", "-c", text), {}, sent) for n, text in enumerate(scripts)]
    status = remote.run(Job(("x",), (host_of("a", 1),), launcher="ssh", grace_s=timeout_s), commands, timeout_s)
    return status, capfd.readouterr().err


def fails(host: str, time_s: float, exit_code: int, status: int) -> str:
    """A script that reports the failure of a rank."""
    failure = Failure(rank=3, local_rank=1, host=host, pid=99, exit_code=exit_code, time_s=time_s)
    return f"read line; printf '%s' '{failure.to_line()[:-1]}' >&2; printf '\\n' >&2; exit {status}"


ENDS = ("sleep 0.2; exit 4", "read order; echo got $order >&2")
FIRST, SECOND = fails("first", 1.0, -9, 137), fails("second", 2.0, 1, 1).removeprefix("read line; ")
NO_SSH = "read sent; echo 'Connection refused' >&2; exit 255"
REMEDY = "host0: ssh failed; see above. Remedy: Make 'sh -c true' work without a prompt."


@pytest.mark.parametrize(
    ("scripts", "sent", "status", "expected", "absent"),
    [
        (ENDS, None, 4, ("got SIGTERM", "host0 ended with status 4; ending the others"), ()),
        ((SECOND, FIRST), None, 137, ("on first ended by signal 9",), ("on second", "\x1e")),
        ((NO_SSH,), {}, 255, ("Connection refused", REMEDY), ()),
        # A rank's status may be that of a failure of ssh.
        (("exit 255",), None, 255, (), ("ssh failed",)),
        ((fails("a", 1.0, 255, 255),), {}, 255, ("ended with exit status 255",), ("ssh failed",)),
    ],
    ids=["a failing host ends the others", "the first failure counts", "no ssh", "255 here", "255 by ssh"],
)
def test_the_cause_is_reported(
    scripts: tuple[str, ...], sent: dict[str, str] | None, status: int, expected: tuple[str, ...],
    absent: tuple[str, ...], capfd: Capture,
) -> None:  # fmt: skip
    found, written = run(list(scripts), capfd, sent=sent)
    assert found == status
    assert [text for text in expected if text not in written] == [], written
    assert [text for text in absent if text in written] == [], written


def test_a_host_that_does_not_end_is_killed(capfd: Capture) -> None:
    assert run(["exit 3", "trap '' TERM; sleep 600 & wait; sleep 600"], capfd, timeout_s=0.2)[0] == 3


def test_ignored_signals_stay_ignored(capfd: Capture) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(["kill -HUP $PPID; sleep 0.3"], capfd)[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)


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
    assert output_of("-c", code).strip() == "set()"
