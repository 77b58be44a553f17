"""Ranks of one host: what each launcher gives them, how they fail, how they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from accelerator.launch.binding import plan_binding
from accelerator.launch.topology import format_list, own_affinity, read_topology
from op_builder.system.cgroups import HostFiles
from tests.support.compilers import program
from tests.support.launching import (
    CPUS,
    PROGRAMS,
    ROOT,
    SHOW,
    TWO,
    WAIT,
    Started,
    command,
    environment,
    free_port,
    launch,
    left_in,
    shown,
)
from tests.support.mpis import MPIS, available

pytestmark = pytest.mark.skipif(CPUS == 0, reason="needs Linux")


@pytest.mark.parametrize("program", ["launch --num_accelerators 1 --no_python touch started", "report"])
def test_closed_standard_streams_are_accepted(program: str, tmp_path: Path) -> None:
    """As a cron job or a daemon may close them."""
    line = f'"{sys.executable}" -m accelerator.{program} <&- >&- 2>&-'
    done = subprocess.run(
        line, shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "started").exists() or program == "report"


@pytest.mark.skipif(CPUS < 2, reason="needs two CPUs to bind two ranks to")
@pytest.mark.parametrize("launcher", ["torchrun", *MPIS])
def test_ranks_are_bound_as_planned_and_command_lines_contain_no_values(launcher: str, tmp_path: Path) -> None:
    secret = "a \\\"';,$x=\\n secret of the file"
    (tmp_path / ".accel_env").write_text(f"# it overrides the shell\nFROM_FILE={secret}\nRANK=7\n")
    shell = {"FROM_FILE": "shell", "CUDA_VISIBLE_DEVICES": "5,7", **available(launcher)}
    options = [*TWO, "--launcher", launcher, "--bind-cores-to-rank", "--log_dir", "logs"]
    arguments = ["$x", "${local_rank}", "--flag"]
    done = launch([*options, SHOW, *arguments], tmp_path, **shell)
    assert done.returncode == 0, done.stderr
    topology = read_topology(HostFiles(), own_affinity())
    for rank, binding in enumerate(plan_binding(topology, 2)):
        got = shown(tmp_path, rank)
        assert got["cpus"] == format_list(binding.cpus)
        assert got["OMP_NUM_THREADS"] == str(len(binding.cpus))
        assert (got["RANK"], got["LOCAL_RANK"], got["CROSS_RANK"]) == (str(rank), str(rank), "0")
        assert (got["WORLD_SIZE"], got["LOCAL_WORLD_SIZE"], got["LOCAL_SIZE"], got["CROSS_SIZE"]) == (*"222", "1")
        assert got["MASTER_ADDR"]
        assert int(got["MASTER_PORT"]) == 29500 or launcher == "torchrun"
        mode = binding.memory.mode
        if got["policies"] is not None and "set_mempolicy" not in done.stderr:
            assert {policy.partition(":")[0] for policy in got["policies"]} == {"default" if mode == "any" else mode}
        assert (got["FROM_FILE"], got["arguments"], got["CUDA_VISIBLE_DEVICES"]) == (secret, arguments, "5,7")
        assert "show.py" in got["command_lines"]
        assert "secret of the file" not in got["command_lines"]
        assert got["name"] == "__main__"
        assert f"local rank {rank}: CPU {format_list(binding.cpus)}" in done.stderr
        for stream, name, text in ((done.stdout, "stdout", "rank"), (done.stderr, "stderr", "shown by")):
            assert f"{text} {rank}\n" in stream
            assert (tmp_path / "logs" / f"rank{rank}" / f"{name}.log").read_text() == f"{text} {rank}\n"


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": ""}),
        (
            {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "4,5"},
            {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "5"},
        ),
        ({"ROCR_VISIBLE_DEVICES": "6,7"}, {"ROCR_VISIBLE_DEVICES": "6,7", "HIP_VISIBLE_DEVICES": "1"}),
    ],
    ids=["none", "hip", "rocr"],
)
def test_a_rank_sees_no_device_that_was_hidden(given: dict[str, str], seen: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    done = launch(["--hostfile", "hosts", "--include", "localhost:1", SHOW], tmp_path, **given)
    assert done.returncode == 0, done.stderr
    got = shown(tmp_path, 0)
    assert {name: got.get(name) for name in seen} == seen


# srun as a program sees it: two tasks with Slurm's variables. Tests cannot run Slurm itself.
SRUN = """
while [ "${1#--}" != "$1" ]; do shift; done
export SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=2 SLURM_STEP_NODELIST='node[07-09]' CUDA_VISIBLE_DEVICES=5,6,7
SLURM_PROCID=0 SLURM_LOCALID=0 "$@" &
SLURM_PROCID=1 SLURM_LOCALID=1 "$@" && wait $!
"""


def test_ranks_of_slurm_read_its_variables(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "srun", SRUN)
    (tmp_path / "hosts").write_text("localhost slots=3\n")
    options = ["--launcher", "slurm", "--hostfile", "hosts", "--include", "localhost:0,2", SHOW]
    done = launch(options, tmp_path, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    got = shown(tmp_path, 1)
    assert (got["LOCAL_RANK"], got["WORLD_SIZE"], got["MASTER_ADDR"]) == ("1", "2", "node07")
    assert got["CUDA_VISIBLE_DEVICES"] == "5,7"


@pytest.mark.skipif(CPUS < 2, reason="needs two CPUs to bind two ranks to")
def test_ssh_starts_the_ranks_of_several_hosts(tmp_path: Path) -> None:
    """A program in place of ssh runs the commands of both hosts here."""
    program(tmp_path / "bin" / "ssh", f'echo "$*" >> {tmp_path}/called\nfor last; do :; done\nexec sh -c "$last"')
    (tmp_path / "my env").write_text("export ACTIVATED=yes\n")
    (tmp_path / "hosts").write_text("a slots=2\nme@b slots=2\n")
    options = ["-H", "hosts", "--exclude", "a:0", "--launcher", "pdsh", "--ssh_port", "2222", "--venv_script", "my env"]
    meeting = ["--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    rest = ["-q", "--bind_cores_to_rank", "--log_dir", "logs", SHOW]
    done = launch([*options, *meeting, *rest], tmp_path, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert "accel-launch:" not in done.stderr
    found = [shown(tmp_path, rank) for rank in range(3)]
    assert [(got["CROSS_RANK"], got["LOCAL_RANK"]) for got in found] == [("0", "0"), ("1", "0"), ("1", "1")]
    assert {(got["CROSS_SIZE"], got["WORLD_SIZE"], got["ACTIVATED"]) for got in found} == {("2", "3", "yes")}
    assert [got["CUDA_VISIBLE_DEVICES"] for got in found] == ["1", "0,1", "0,1"]
    assert found[0]["cpus"] == found[2]["cpus"] != found[1]["cpus"], "of the second slot"
    assert len({got["ACCEL_LAUNCH_ID"].partition(".")[0] for got in found}) == 1
    assert (tmp_path / "logs" / "rank2" / "stdout.log").read_text() == "rank 2\n"
    calls = sorted((tmp_path / "called").read_text().splitlines())
    for host, call in zip(("a", "me@b"), calls, strict=True):
        assert call.startswith(f"-p 2222 -o BatchMode=yes -- {host} cd ")


@pytest.mark.parametrize("is_full", [None, False, True], ids=["no logs", "logs", "full disk"])
def test_output_is_passed_on_in_whole_lines_even_if_the_disk_of_the_logs_is_full(
    is_full: bool | None, tmp_path: Path
) -> None:
    if is_full:
        for rank in (0, 1):
            (tmp_path / "logs" / f"rank{rank}").mkdir(parents=True)
            (tmp_path / "logs" / f"rank{rank}" / "stdout.log").symlink_to("/dev/full")
    options = [*TWO, *([] if is_full is None else ["--log_dir", "logs"])]
    done = launch([*options, str(PROGRAMS / "write_lines.py")], tmp_path)
    assert done.returncode == 3, done.stderr
    expected = [letter * length for letter in "ab" for length in (*[11] * 1450, *[20_001] * 50)]
    assert sorted(done.stdout.splitlines()) == sorted(expected)
    assert done.stderr.count("No space left on device. The output continues") == (2 if is_full else 0)


@pytest.mark.parametrize("options", [[], ["--launcher", "ssh"]], ids=["torchrun", "ssh"])
def test_ranks_of_one_host_meet_where_no_other_host_can_connect(options: list[str], tmp_path: Path) -> None:
    port = ["--master_port", str(free_port())] if options else []
    done = launch(["--num_accelerators", "1", *options, *port, str(PROGRAMS / "listen.py")], tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_signal_reaches_all_ranks_once_unless_nohup_ignores_it(tmp_path: Path) -> None:
    with Started([*TWO, WAIT, "polite"], tmp_path, ["nohup"]) as started:
        started.wait_for("up0", "up1")
        started.process.send_signal(signal.SIGHUP)
        started.process.send_signal(signal.SIGINT)
        assert started.end() == 130, started.errors
        assert {(tmp_path / f"got{rank}").read_text() for rank in (0, 1)} == {"SIGINT"}, "after they cleaned up"
        assert left_in(tmp_path) == []
        assert "SIGINT: the ranks of" in started.errors


def test_repeated_signals_do_not_prevent_a_launch_from_ending(tmp_path: Path) -> None:
    """Neither while it waits for ranks that ignore them nor while it ends what the ranks have started."""
    with Started([*TWO, "--grace_period", "3", WAIT, "stubborn"], tmp_path) as started:
        started.wait_for("up0", "up1")
        started.process.send_signal(signal.SIGINT)
        while "have ended" not in started.errors and started.process.poll() is None:
            started.process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        # A signal may come when Python, at its end, has taken back the handlers.
        assert started.end() in (130, -signal.SIGINT), started.errors
        assert "have ended" in started.errors
        assert left_in(tmp_path) == []
        assert "Traceback" not in started.errors


@pytest.mark.parametrize("launcher", ["torchrun", *(pytest.param(name, marks=pytest.mark.slow) for name in MPIS)])
def test_the_first_failing_rank_is_reported_and_the_others_end_after_the_grace_period(
    launcher: str, tmp_path: Path
) -> None:
    options = [*TWO, "--launcher", launcher, "--grace_period", "2"]
    done = launch([*options, WAIT, "one_fails"], tmp_path, **available(launcher))
    assert done.returncode == 7, done.stderr
    assert "accel-launch: rank 1 (local rank 1, pid " in done.stderr
    assert f") on {os.uname().nodename} ended with exit status 7" in done.stderr
    assert "accel-launch: rank 0" not in done.stderr
    assert "  | last words of the rank" in done.stderr


@pytest.mark.parametrize("options", [[], ["--launcher", "ssh"]], ids=["torchrun", "ssh"])
def test_no_process_outlives_a_killed_launcher(options: list[str], tmp_path: Path) -> None:
    options = [*options, "--master_port", str(free_port())] if options else []
    with Started([*TWO, *options, "--grace_period", "1", WAIT, "stubborn"], tmp_path) as started:
        started.wait_for("up0", "up1")
        started.process.kill()
        started.end()
        # The kernel ends the ranks, and a guard what they have started in sessions of their own.
        assert left_in(tmp_path) == []


@pytest.mark.parametrize("order", ["SIGTERM\n", ""], ids=["signal", "driver gone"])
def test_a_pending_signal_of_the_driver_ends_the_launch(order: str, tmp_path: Path) -> None:
    host = '{"name":"localhost","slots":1,"chosen":[0]}'
    job = f'--host_job={{"hosts":[{host}],"has_driver":true,"launch":"{uuid.uuid4().hex}"}}'
    done = subprocess.run(
        command(job, "--no_python", "--", sys.executable, WAIT, "stubborn"),
        cwd=tmp_path,
        env=environment(),
        input=order,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 143, done.stderr
    assert "Traceback" not in done.stderr
    assert "accel-launch: SIGTERM: " in done.stderr


def test_launchers_and_ranks_do_not_import_modules_of_the_current_directory(tmp_path: Path) -> None:
    for name in ("random.py", "types.py", "json.py", "sitecustomize.py", "accelerator.py"):
        (tmp_path / name).write_text("raise SystemExit('the user has a module of that name')")
    entry = str(ROOT / "accelerator" / "launch" / "__main__.py")
    options = ["--launcher", "ssh", "--num_accelerators", "1", "--master_port", str(free_port()), "--no_python"]
    launcher = [sys.executable, entry, *options, "sh", "-c", "echo $RANK > ran"]
    done = subprocess.run(launcher, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ran").read_text() == "0\n"


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_a_port_in_use_is_reported(restarts: str, tmp_path: Path) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = str(used.getsockname()[1])
        alone = ["--num_nodes", "2", "--master_addr", "127.0.0.1", "--master_port", port, "--max_restarts", restarts]
        done = launch([*TWO, *alone, SHOW], tmp_path)
    assert done.returncode == 1
    assert f"accel-launch: Port {port} of {os.uname().nodename}, needed for rank 0, is in use." in done.stderr
    assert "--master_port" in done.stderr
    assert "Traceback" not in done.stderr
