"""Ranks of one host, really started: what they get, how they fail, how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launching import ROOT, TELL, WAIT, Started, Watch, command, environment, launch, left_of

from accelerator.launch.binding import plan_binding
from accelerator.launch.job import Job
from accelerator.launch.lists import format_list
from accelerator.launch.topology import read_topology
from op_builder import env
from op_builder.system.cgroups import HostFiles

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")

TWO = ["--num_accelerators", "2"]
CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
needs_two_cpus = pytest.mark.skipif(CPUS < 2, reason="needs two CPUs to bind two ranks to")


def told(directory: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / f"rank{rank}.json").read_text())
    return found


@pytest.fixture(autouse=True)
def _scripts(tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(TELL)
    (tmp_path / "wait.py").write_text(WAIT)


@needs_two_cpus
def test_the_kernel_agrees_with_the_plan(tmp_path: Path) -> None:
    (tmp_path / ".accel_env").write_text("# ours\nFROM_FILE='a $b'\n")
    done = launch([*TWO, "--bind-cores-to-rank", "tell.py", "$x", "${local_rank}", "--flag"], tmp_path)
    assert done.returncode == 0, done.stderr
    plan = plan_binding(read_topology(HostFiles(), os.sched_getaffinity(0)), 2)
    for rank in (0, 1):
        got = told(tmp_path, rank)
        assert got["cpus"] == format_list(plan[rank].cpus)
        assert got["OMP_NUM_THREADS"] == str(plan[rank].threads)
        assert (got["RANK"], got["LOCAL_RANK"]) == (str(rank), str(rank))
        assert (got["WORLD_SIZE"], got["LOCAL_WORLD_SIZE"], got["LOCAL_SIZE"]) == ("2", "2", "2")
        mode = plan[rank].memory.mode
        if got["policies"] is not None and "set_mempolicy" not in done.stderr:
            assert {policy.partition(":")[0] for policy in got["policies"]} == {"default" if mode == "any" else mode}
        assert got["MASTER_ADDR"]
        assert int(got["MASTER_PORT"]) > 0
        assert got["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert got["FROM_FILE"] == "a $b"
        assert got["arguments"] == ["$x", "${local_rank}", "--flag"]
        assert got["name"] == "__main__"
        assert f"local rank {rank}: CPU {format_list(plan[rank].cpus)}" in done.stderr


def test_values_of_the_file_of_variables_are_seen_on_no_command_line(tmp_path: Path) -> None:
    (tmp_path / ".accel_env").write_text("FROM_FILE=secret-of-the-file\nRANK=7\n")
    with Watch("secret-of-the-file") as watch:
        done = launch([*TWO, "tell.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert {told(tmp_path, rank)["FROM_FILE"] for rank in (0, 1)} == {"secret-of-the-file"}
    assert watch.seen == set()
    assert [line for line in watch.looked_at if "tell.py" in line and "accelerator.launch" not in line], "of a rank"


def test_what_is_planned_for_a_rank_stands_above_what_the_launcher_was_started_with(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    (tmp_path / ".accel_env").write_text("OMP_NUM_THREADS=2\nTORCH_NCCL_ASYNC_ERROR_HANDLING=0\nRANK=7\n")
    own = {"CUDA_VISIBLE_DEVICES": "4,5", "OMP_NUM_THREADS": "8"}
    done = launch(["--hostfile", "hosts", "--include", "localhost:1", "tell.py"], tmp_path, **own)
    assert done.returncode == 0, done.stderr
    got = told(tmp_path, 0)
    assert got["CUDA_VISIBLE_DEVICES"] == "5"
    assert got["OMP_NUM_THREADS"] == "2"
    assert got["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"


def test_a_listed_cpu_is_the_only_one(tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    done = launch(["--num_accelerators", "1", "--bind_core_list", str(last), "--module", "tell"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert told(tmp_path, 0)["cpus"] == str(last)


def test_what_is_written_arrives_and_is_kept_in_the_directory_for_logs(tmp_path: Path) -> None:
    program = "import os, sys; print('out', os.environ['RANK']); print('err', os.environ['RANK'], file=sys.stderr)"
    done = launch([*TWO, "--log_dir", "logs", "--no_python", sys.executable, "-c", program], tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["out 0", "out 1"]
    assert {"err 0", "err 1"} <= set(done.stderr.splitlines())
    for rank in (0, 1):
        for name, word in (("stdout", "out"), ("stderr", "err")):
            (log,) = tmp_path.glob(f"logs/*/attempt_0/{rank}/{name}.log")
            assert log.read_text() == f"{word} {rank}\n"


@pytest.mark.parametrize(
    ("how", "status", "cause"),
    [("killed", 137, "by signal 9 (SIGKILL)"), ("exits", 7, "with exit status 7")],
)
def test_the_first_failing_rank_is_told_and_gives_the_exit_status(
    how: str, status: int, cause: str, tmp_path: Path
) -> None:
    done = launch([*TWO, "--grace_period", "5", "wait.py", how], tmp_path)
    assert done.returncode == status, done.stderr
    assert f") on {os.uname().nodename} ended {cause}" in done.stderr
    assert "accel-launch: rank 1 (local rank 1, pid " in done.stderr
    assert "accel-launch: rank 0" not in done.stderr
    assert "torch/distributed" not in done.stderr, "torch says the same once more"
    assert "  | last words of the rank" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_all_ranks(number: signal.Signals, tmp_path: Path) -> None:
    with Started([*TWO, "wait.py", "polite"], tmp_path) as started:
        started.wait_for("up0", "up1")
        started.process.send_signal(number)
        assert started.end() == 128 + number, started.errors
        assert {(tmp_path / f"got{rank}").read_text() for rank in (0, 1)} == {number.name}
        assert left_of(started.mark) == []
        assert f"{number.name}: the ranks of" in started.errors


def test_ranks_that_ignore_the_signal_are_killed_after_the_grace_period(tmp_path: Path) -> None:
    with Started([*TWO, "--grace_period", "4", "wait.py", "stubborn"], tmp_path) as started:
        started.wait_for("up0", "up1")
        began = time.monotonic()
        started.process.terminate()
        assert started.end() == 143, started.errors
        # Of torch's own 30 s it is far away, however busy the machine.
        assert 4 <= time.monotonic() - began < 24, started.errors
        assert left_of(started.mark) == []


def test_ranks_beside_one_that_failed_have_the_grace_period(tmp_path: Path) -> None:
    """torch's agent would give them 30 s, whatever is asked."""
    with Started([*TWO, "--grace_period", "4", "wait.py", "one_fails"], tmp_path) as started:
        started.wait_for("up0", "failing")
        began = time.monotonic()
        assert started.end() == 3, started.errors
        assert 3 <= time.monotonic() - began < 24, started.errors
        assert left_of(started.mark) == []


def test_a_rank_may_clean_up_in_the_grace_period(tmp_path: Path) -> None:
    with Started([*TWO, "--grace_period", "30", "wait.py", "slow"], tmp_path) as started:
        started.wait_for("up0", "up1")
        started.process.terminate()
        assert started.end() == 143, started.errors
        assert {(tmp_path / f"cleaned{rank}").read_text() for rank in (0, 1)} == {"up"}


def test_further_signals_do_not_keep_a_launcher_from_ending_all(tmp_path: Path) -> None:
    with Started([*TWO, "--grace_period", "3", "wait.py", "stubborn"], tmp_path) as started:
        started.wait_for("up0", "up1")
        started.process.send_signal(signal.SIGINT)
        time.sleep(1)  # it waits for the ranks
        started.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 60
        while len(ranks_of(started)) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        started.process.send_signal(signal.SIGINT)  # it waits for what the ranks have started
        assert started.end() == 130, started.errors
        assert left_of(started.mark) == []
        assert "Traceback" not in started.errors


def test_a_signal_that_was_ignored_from_the_start_stays_so(tmp_path: Path) -> None:
    with Started([*TWO, "wait.py", "polite"], tmp_path, ["nohup"]) as started:
        started.wait_for("up0", "up1")
        started.process.send_signal(signal.SIGHUP)
        time.sleep(1)
        started.process.send_signal(signal.SIGTERM)
        assert started.end() == 143, started.errors


def ranks_of(started: Started) -> list[int]:
    """Processes of ranks, and the launcher."""
    return [process_id for process_id in left_of(started.mark, 0) if "wait.py" in command_line(process_id)]


@pytest.mark.parametrize("options", [[], ["--launcher", "ssh"]], ids=["torchrun", "ssh"])
def test_nothing_outlives_a_launcher_that_is_killed(options: list[str], tmp_path: Path) -> None:
    if options:
        options = [*options, "--master_port", str(free_port())]
    with Started([*TWO, *options, "--grace_period", "1", "wait.py", "stubborn"], tmp_path) as started:
        started.wait_for("up0", "up1")
        launchers = [process_id for process_id in ranks_of(started) if "accelerator" in command_line(process_id)]
        assert len(ranks_of(started)) - len(launchers) == 2
        for process_id in launchers:
            os.kill(process_id, signal.SIGKILL)
        started.end()
        # The kernel ends the ranks, and a guard what they have started in sessions of their own.
        assert left_of(started.mark, patience_s=30) == []


@pytest.mark.parametrize("order", ["SIGTERM\n", ""], ids=["told", "driver gone"])
def test_an_order_that_is_waiting_already_is_obeyed(order: str, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    by_driver = ["--host_slots=1", "--host_chosen=0", f"--host_launch={uuid.uuid4().hex}", "wait.py", "stubborn"]
    done = subprocess.run(
        command(*by_driver),
        cwd=tmp_path,
        env=environment(TMPDIR=str(temporary)),
        input=order,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 143, done.stderr
    assert "Traceback" not in done.stderr
    assert "accel-launch: SIGTERM: " in done.stderr
    assert not list(temporary.glob("accel-launch-*"))


def command_line(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.slow
def test_failed_ranks_are_started_again(tmp_path: Path) -> None:
    program = "import os, sys; sys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)"
    (tmp_path / "once.py").write_text(program)
    done = launch([*TWO, "--max_restarts", "1", "once.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ended with exit status 3\nAll ranks are started again; 0 restarts left.\n" in done.stderr
    assert launch(["--num_accelerators", "1", "once.py"], tmp_path).returncode == 3


@pytest.mark.slow
def test_a_launcher_that_waits_for_other_hosts_ends_when_told_to(tmp_path: Path) -> None:
    alone = ["--num_nodes", "2", "--master_addr", "127.0.0.1", "--master_port", str(free_port()), "tell.py"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with env.scope(TMPDIR=str(temporary)), Started([*TWO, *alone], tmp_path) as started:
        deadline = time.monotonic() + 60
        while "unbound ranks" not in started.errors and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(5)  # torch is imported, and waits
        started.process.send_signal(signal.SIGINT)
        assert started.process.wait(timeout=60) == 130, started.errors
        assert not list(temporary.glob("accel-launch-*"))


@pytest.mark.slow
def test_what_a_failed_attempt_left_behind_is_ended_before_the_next(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(
        "import os, subprocess, sys\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    sleep = [sys.executable, '-S', '-c', 'import time; time.sleep(600)']\n"
        "    child = subprocess.Popen(sleep, start_new_session=True)\n"
        "    open('child', 'w').write(str(child.pid))\n"
        "    sys.exit(3)\n"
        "try: left = open(f\"/proc/{open('child').read()}/cmdline\").read()\n"
        "except OSError: left = ''\n"
        "sys.exit(5 if left else 0)\n"
    )
    done = launch(["--num_accelerators", "1", "--max_restarts", "1", "leaves.py"], tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_launcher_by_ssh_is_not_misled_by_the_users_modules(tmp_path: Path) -> None:
    for name in ("random.py", "types.py", "accelerator.py"):
        (tmp_path / name).write_text("raise SystemExit('the user has a module of that name')")
    entry = str(ROOT / "accelerator" / "launch" / "__main__.py")
    options = ["--launcher", "ssh", "--num_accelerators", "1", "--master_port", str(free_port()), "--no_python"]
    launcher = [sys.executable, entry, *options, "sh", "-c", "echo $RANK > ran"]
    done = subprocess.run(launcher, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ran").read_text() == "0\n"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_a_port_in_use_is_told(restarts: str, tmp_path: Path) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = str(used.getsockname()[1])
        alone = ["--num_nodes", "2", "--master_addr", "127.0.0.1", "--master_port", port, "--max_restarts", restarts]
        done = launch([*TWO, *alone, "tell.py"], tmp_path)
    assert done.returncode == 1
    assert f"accel-launch: Port {port} of {os.uname().nodename}, where rank 0 is to listen, is in use." in done.stderr
    assert "--master_port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_address_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    nowhere = ["--num_nodes", "2", "--node_rank", "1", "--master_addr", "no-such-host.invalid"]
    done = launch([*TWO, *nowhere, "tell.py"], tmp_path)
    assert done.returncode == 1
    assert "accel-launch: --master_addr no-such-host.invalid leads nowhere: " in done.stderr
    assert "Traceback" not in done.stderr


def test_one_host_is_not_called_many_that_did_not_meet() -> None:
    from accelerator.launch.torchrun import _not_met

    for port in (None, 4000):
        told = str(_not_met(Job(("x",), (), master_port=port), TimeoutError("too late")))
        assert "hosts did not meet" not in told
        assert f"{socket.gethostname()} have no place to meet: too late" in told
    many = Job(("x",), (), num_nodes=2, master_addr="a", master_port=4000)
    assert "The 2 hosts did not meet at a port 4000: too late" in str(_not_met(many, TimeoutError("too late")))


def test_hosts_wait_for_each_other_equally_long_with_and_without_restarts() -> None:
    from accelerator.launch.torchrun import _RENDEZVOUS_TIMEOUT_S, _rendezvous

    job = Job(("x",), (), num_nodes=2, master_addr="127.0.0.1", master_port=free_port())
    assert _rendezvous(job)[0].timeout.total_seconds() == _RENDEZVOUS_TIMEOUT_S
    assert _rendezvous(replace(job, max_restarts=1))[0].settings.timeout.join.total_seconds() == _RENDEZVOUS_TIMEOUT_S


@pytest.mark.slow
def test_a_host_that_has_given_up_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "import os, sys, time\n"
        "if sys.argv[1] == 'later':\n"
        "    while not os.path.exists('given_up'): time.sleep(0.1)\n"
        "sys.exit(3)\n"
    )
    meet = ["--num_nodes", "2", "--master_addr", "127.0.0.1", "--master_port", str(free_port()), "--max_restarts", "1"]
    options = ["--num_accelerators", "1", *meet]
    with Started([*options, "--node_rank", "0", "fails.py", "later"], tmp_path) as first:
        other = launch([*options, "--node_rank", "1", "fails.py", "now"], tmp_path)
        (tmp_path / "given_up").touch()
        assert other.returncode == 3, other.stderr
        assert first.end() == 1, first.errors
        assert "Another host has given up" in first.errors


@pytest.mark.slow
def test_hosts_that_run_the_same_command_meet(tmp_path: Path) -> None:
    port = free_port()
    rendezvous = ["--num_nodes", "2", "--master_addr", "127.0.0.1", "--master_port", str(port)]
    with Started([*TWO, *rendezvous, "--node_rank", "1", "tell.py"], tmp_path) as other:
        done = launch([*TWO, *rendezvous, "--node_rank", "0", "tell.py"], tmp_path)
        assert done.returncode == other.end() == 0, done.stderr + other.errors
    assert [told(tmp_path, rank)["LOCAL_RANK"] for rank in range(4)] == ["0", "1", "0", "1"]
    assert told(tmp_path, 3)["MASTER_PORT"] == str(port)


@pytest.mark.parametrize(("program", "status"), [("missing-program", 127), ("./no_program", 126)])
def test_a_program_that_cannot_be_started_is_told_as_shells_do(program: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "no_program").write_text("no program")
    done = launch(["--num_accelerators", "1", "--no_python", program], tmp_path)
    assert done.returncode == status, done.stderr
    assert f"accel-launch: {program}: " in done.stderr


def test_an_error_file_tells_the_exception(tmp_path: Path) -> None:
    (tmp_path / "recorded.py").write_text(
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main(): raise RuntimeError('the cause of it')\nmain()\n"
    )
    done = launch(["--num_accelerators", "1", "recorded.py"], tmp_path)
    assert done.returncode == 1
    assert "RuntimeError: the cause of it" in done.stderr.partition("accel-launch: rank 0")[2].splitlines()[1]
