"""The launcher's small processes, and the kernel's calls: what they do, and what is reported when they are refused."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from accelerator.launch.binding import MemoryPolicy, RankBinding
from accelerator.launch.hosts import host_of
from accelerator.launch.job import Job
from accelerator.launch.processes import end_processes_of, helper_process, log, processes_of
from accelerator.launch.rank import bind
from tests.support.foreign_package import output_of
from tests.support.launching import environment
from tests.support.processes import fork, wait_for

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="needs Linux")

SLURM = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS_PER_NODE": "1"}


def rank(*program: str) -> list[str]:
    return helper_process("rank", Job(program, (host_of("a", 1),), launcher="slurm").to_json(), "2", *program)


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="this kernel has no memory policies")
@pytest.mark.parametrize(
    ("mode", "nodes", "policy"),
    [("bind", [0], "bind"), ("prefer", [0], "prefer"), ("prefer", [0, 63], "prefer"), ("any", [], "default")],
)
def test_a_memory_policy_outlives_exec(mode: str, nodes: list[int], policy: str) -> None:
    show = "print({line.split()[1] for line in open('/proc/self/numa_maps') if 'stack' in line})"
    code = (
        "import os, sys; from accelerator.launch.rank import set_memory_policy\n"
        f"print(set_memory_policy({mode!r}, {nodes}), flush=True)\n"
        f"os.execv(sys.executable, [sys.executable, '-c', {show!r}])"
    )
    refused, shown = output_of("-c", code).splitlines()
    if refused != "None":
        pytest.skip(f"not allowed here: {refused}")
    assert shown.startswith(f"{{'{policy}")


def test_a_rank_runs_unbound_if_the_kernel_refuses(capfd: pytest.CaptureFixture[str]) -> None:
    impossible = RankBinding((100_000,), (), MemoryPolicy("bind", (1000,)))
    assert wait_for([fork(lambda: bind(impossible, 0))]) == [0]
    errors = capfd.readouterr().err
    for call in ("sched_setaffinity", "set_mempolicy"):
        assert f"local rank 0 runs unbound: {call}: " in errors


@pytest.mark.parametrize(("program", "status"), [("missing-program", 127), ("./no_program", 126)])
def test_a_program_that_cannot_start_has_the_status_of_shells(program: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "no_program").write_text("no program")
    variables = environment(**SLURM)
    done = subprocess.run(rank(program), env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert f"accel-launch: {program}: " in done.stderr


def test_a_killed_rank_ends_its_program() -> None:
    code = "import time; print('up', flush=True); time.sleep(600)"
    command = rank(sys.executable, "-S", "-c", code)
    with subprocess.Popen(command, env=environment(**SLURM), stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.kill()
        assert process.stdout.read() == b""  # the program has ended, too


def test_variables_are_received_from_the_first_line_of_standard_input(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the user has a module of that name')")
    code = "import os, sys; print([os.fsencode(os.environ[n]) for n in ('TOKEN', 'ODD')], sys.path, sys.stdin.read())"
    command = helper_process("receive", sys.executable, "-S", "-c", code)
    given = b'{"TOKEN": "a \'b\\n$c", "PYTHONPATH": "/first", "ODD": "\\udcff"}\nSIGINT\n'
    done = subprocess.run(command, input=given, env=environment(), cwd=tmp_path, capture_output=True, check=False)
    written = done.stdout.decode()
    assert written.startswith(str([b"a 'b\n$c", b"\xff"])), done.stderr
    assert "'/first'" in written
    assert written.endswith(" SIGINT\n\n")


def test_a_command_does_not_start_if_its_sender_has_ended(tmp_path: Path) -> None:
    command = helper_process("receive", "touch", "started")
    done = subprocess.run(command, input=b'{"A": "b"', cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"accel-launch: standard input ended before the environment variables arrived" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_messages_may_contain_any_bytes(capfd: pytest.CaptureFixture[str]) -> None:
    log(b"\xff\xfe\x80".decode(errors="surrogateescape"))
    assert capfd.readouterr().err == "accel-launch: \\udcff\\udcfe\\udc80\n"


def test_left_processes_of_a_launch_are_ended() -> None:
    def start(rank: int, **variables: str) -> subprocess.Popen[bytes]:
        """A process that ignores SIGTERM, and executes no other program, during which it would have no variables."""
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
        command = [sys.executable, "-S", "-c", code]
        process = subprocess.Popen(
            command, env=environment(RANK=str(rank), **variables), stdout=subprocess.PIPE, start_new_session=True
        )
        process.stdout.readline()
        return process

    launch = uuid.uuid4().hex
    first, second, other = start(0, ACCEL_LAUNCH_ID=launch), start(1, ACCEL_LAUNCH_ID=launch), start(0)
    try:
        assert sorted(processes_of(launch)) == sorted([first.pid, second.pid])
        end_processes_of(launch, 0.2, rank=1)
        assert second.wait(timeout=60) == -signal.SIGKILL
        assert processes_of(launch) == [first.pid]
        end_processes_of(launch, 0.2)
        assert first.wait(timeout=60) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (first, second, other):
            process.kill()
            process.wait()
