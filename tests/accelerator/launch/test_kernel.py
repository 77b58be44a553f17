"""The kernel's calls, in processes of their own: what they do, and what is said when they are refused."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from launching import ROOT, environment, left_of

from accelerator.launch.kernel import bind_to_cpus, set_memory_policy
from accelerator.launch.orphans import end_processes_of, processes_of
from accelerator.launch.received import receiving_command, sent_line

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="needs Linux")


def python(code: str) -> str:
    command = [sys.executable, "-c", f"from accelerator.launch.kernel import *\n{code}"]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="this kernel knows no memory policies")
@pytest.mark.parametrize(("mode", "policy"), [("bind", "bind:0"), ("prefer", "prefer:0"), ("any", "default")])
def test_a_memory_policy_outlives_exec(mode: str, policy: str) -> None:
    nodes = [] if mode == "any" else [0]
    show = "import re; print({l.split()[1] for l in open('/proc/self/numa_maps') if 'stack' in l})"
    refused = python("print(set_memory_policy('bind', [0]))")
    if refused != "None":
        pytest.skip(f"not allowed here: {refused}")
    become = f"os.execv({sys.executable!r}, [{sys.executable!r}, '-c', {show!r}])"
    assert python(f"set_memory_policy({mode!r}, {nodes}); {become}") in (f"{{'{policy}'}}", f"{{'{policy}=static'}}")


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="this kernel knows no memory policies")
def test_several_nodes_may_be_preferred() -> None:
    told = python("print(set_memory_policy('prefer', [0, 63])); print(open('/proc/self/numa_maps').readline())")
    if "not permitted" in told:
        pytest.skip(told)
    assert told.startswith("None")
    assert " prefer" in told


def test_refusals_are_reasons() -> None:
    assert (set_memory_policy("bind", [1000]) or "").startswith("set_mempolicy: ")
    assert (bind_to_cpus([100_000]) or "").startswith("sched_setaffinity: ")


def test_a_rank_that_cannot_be_bound_runs_and_tells(tmp_path: Path) -> None:
    from accelerator.launch.worker import worker_command

    spec = {"ranks": [{"cpus": [100_000], "memory": ["bind", [1000]]}]}
    program = [sys.executable, "-c", "print('ran')"]
    done = subprocess.run(
        worker_command(sys.executable, spec, program),
        env=environment(LOCAL_RANK="0"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "ran\n"
    assert done.stderr.count("local rank 0 runs unbound: ") == 2


def test_the_worker_is_not_misled_by_the_users_modules(tmp_path: Path) -> None:
    """It runs where the user's files are, and before any of them is wanted."""
    from accelerator.launch.worker import worker_command

    for name in ("json.py", "accelerator.py", "sitecustomize.py"):
        (tmp_path / name).write_text("raise SystemExit('the user has a module of that name')")
    spec = {"ranks": []}
    program = [sys.executable, "-S", "-c", "print('ran')"]
    variables = environment(LOCAL_RANK="0", PYTHONPATH=str(tmp_path))
    command = worker_command(sys.executable, spec, ["env", "-u", "PYTHONPATH", *program])
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ran\n", "")


def test_variables_are_received_before_the_command_starts_and_the_rest_is_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the user has a module of that name')")
    sent = {"TOKEN": "a 'b\n$c", "PYTHONPATH": "/first", "ODD": "\udcff"}
    program = (
        "import os, sys; print([os.fsencode(os.environ[n]) for n in ('TOKEN', 'ODD')], sys.path, sys.stdin.read())"
    )
    command = receiving_command(sys.executable, [sys.executable, "-S", "-c", program])
    given = sent_line(sent) + b"SIGINT\n"
    done = subprocess.run(command, input=given, env=environment(), cwd=tmp_path, capture_output=True, check=False)
    told = done.stdout.decode()
    assert told.startswith(str([b"a 'b\n$c", b"\xff"])), done.stderr
    assert "'/first'" in told
    assert told.endswith(" SIGINT\n\n")


def test_a_command_whose_sender_is_gone_does_not_start(tmp_path: Path) -> None:
    command = receiving_command(sys.executable, ["touch", "started"])
    assert subprocess.run(command, input=sent_line({"A": "b"})[:-3], cwd=tmp_path, check=False).returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_has_outlived_its_launcher_ends() -> None:
    """Its launcher was killed before the kernel was asked to tell of it."""
    from accelerator.launch.worker import worker_command

    for parent, status in ((os.getpid(), 0), (os.getppid(), -signal.SIGKILL)):
        spec = {"ranks": [], "parent": parent}
        command = worker_command(sys.executable, spec, ["true"])
        assert subprocess.run(command, env=environment(LOCAL_RANK="0"), check=False).returncode == status


def test_the_worker_starts_without_heavy_modules() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import accelerator.launch.worker;"
        "print({'torch', 'numpy', 'rich', 'subprocess', 'argparse', 'logging'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def sleeper(**variables: str) -> subprocess.Popen[bytes]:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_what_a_launch_left_behind_is_found_by_its_variable_and_ended() -> None:
    launch = uuid.uuid4().hex
    ranks = [sleeper(ACCEL_LAUNCH_ID=launch, RANK=str(rank)) for rank in (0, 1)]
    processes = [*ranks, sleeper(RANK="0")]
    try:
        assert sorted(processes_of(launch)) == sorted(process.pid for process in processes[:2])
        end_processes_of(launch, 0.2, rank=1)
        assert processes[1].wait(timeout=60) == -signal.SIGKILL
        assert processes_of(launch) == [processes[0].pid]
        end_processes_of(launch, 0.2)
        assert processes[0].wait(timeout=60) == -signal.SIGKILL
        assert processes[2].poll() is None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert left_of("never") == []
