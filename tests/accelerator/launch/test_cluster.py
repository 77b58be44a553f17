"""Ranks below MPI's launchers, really run where they are installed; and Slurm's at its boundary."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import TELL, WAIT, Started, Watch, launch, left_of
from mpis import MPIS, available

from accelerator.launch.binding import plan_binding
from accelerator.launch.errors import LaunchError
from accelerator.launch.lists import format_list
from accelerator.launch.supervised import Place, first_of_nodelist, read_place
from accelerator.launch.topology import read_topology
from op_builder import env
from op_builder.system.cgroups import HostFiles

CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


@pytest.mark.skipif(CPUS < 2, reason="needs two CPUs to bind two ranks to")
@pytest.mark.parametrize("launcher", MPIS)
def test_ranks_below_mpi_are_bound_and_numbered(launcher: str, tmp_path: Path) -> None:
    variables = available(launcher)
    options = ["--launcher", launcher, "--num_accelerators", "2"]
    (tmp_path / "tell.py").write_text(TELL)
    secret = "a \\\"';,$x=\\n secret of the file"
    (tmp_path / ".accel_env").write_text(f"FROM_FILE={secret}\n")
    variables["CUDA_VISIBLE_DEVICES"] = "5,7"
    with Watch("secret of the file") as watch:
        done = launch([*options, "--bind_cores_to_rank", "--log_dir", "logs", "tell.py", "$x"], tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert watch.seen == set()
    assert [line for line in watch.looked_at if "worker.py" in line and "tell.py" in line]
    plan = plan_binding(read_topology(HostFiles(), os.sched_getaffinity(0)), 2)
    for rank in (0, 1):
        told = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert told["cpus"] == format_list(plan[rank].cpus)
        assert (told["LOCAL_RANK"], told["WORLD_SIZE"], told["LOCAL_WORLD_SIZE"]) == (str(rank), "2", "2")
        assert (told["LOCAL_SIZE"], told["MASTER_ADDR"], told["MASTER_PORT"]) == ("2", "127.0.0.1", "29500")
        assert (told["FROM_FILE"], told["arguments"]) == (secret, ["$x"])
        assert told["CUDA_VISIBLE_DEVICES"] == "5,7"
        assert (tmp_path / "logs" / f"rank{rank}" / "stdout.log").read_text() == f"rank {rank}\n"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", MPIS)
@pytest.mark.parametrize(("how", "status"), [("killed", 137), ("exits", 7)])
def test_a_failing_rank_below_mpi_is_told(launcher: str, how: str, status: int, tmp_path: Path) -> None:
    variables = available(launcher)
    options = ["--launcher", launcher, "--num_accelerators", "2"]
    (tmp_path / "wait.py").write_text(WAIT)
    done = launch([*options, "--grace_period", "3", "wait.py", how], tmp_path, **variables)
    assert done.returncode == status, done.stderr
    assert "accel-launch: rank 1 (local rank 1, pid " in done.stderr
    assert "  | last words of the rank" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("launcher", MPIS)
@pytest.mark.parametrize("how", ["polite", "stubborn"])
def test_signals_reach_the_ranks_below_mpi(launcher: str, how: str, tmp_path: Path) -> None:
    variables = available(launcher)
    options = ["--launcher", launcher, "--num_accelerators", "2"]
    (tmp_path / "wait.py").write_text(WAIT)
    with env.scope(**variables), Started([*options, "--grace_period", "2", "wait.py", how], tmp_path) as started:
        started.wait_for("up0", "up1")
        started.process.terminate()
        assert started.end() == 143, started.errors
        if how == "polite":
            assert {(tmp_path / f"got{rank}").read_text() for rank in (0, 1)} == {"SIGTERM"}
        assert left_of(started.mark) == []


@pytest.mark.slow
@pytest.mark.parametrize("launcher", MPIS)
def test_ranks_below_mpi_end_with_a_driver_that_is_killed(launcher: str, tmp_path: Path) -> None:
    variables = available(launcher)
    (tmp_path / "wait.py").write_text(WAIT)
    options = ["--launcher", launcher, "--num_accelerators", "2", "--grace_period", "1"]
    with env.scope(**variables), Started([*options, "wait.py", "stubborn"], tmp_path) as started:
        started.wait_for("up0", "up1")
        started.process.kill()
        started.process.wait()
        assert left_of(started.mark, patience_s=30) == [], started.errors


# srun as a program sees it: tasks with Slurm's variables. Slurm itself is not in reach of a test.
SRUN = """#!{python} -S
import os, subprocess, sys
own = [a for a in sys.argv[1:] if a.startswith("--")][:6]
given = dict(a[2:].partition("=")[::2] for a in own)
command = sys.argv[1 + len(own):]
tasks = []
for task in range(int(given["ntasks"])):
    names = {{"SLURM_PROCID": task, "SLURM_LOCALID": task, "SLURM_NTASKS": given["ntasks"],
             "SLURM_NTASKS_PER_NODE": given["ntasks-per-node"], "SLURM_STEP_NODELIST": "node[07-09]",
             "CUDA_VISIBLE_DEVICES": "5,6,7"}}  # Slurm has each host's own
    tasks.append(subprocess.Popen(command, env={{**os.environ, **{{k: str(v) for k, v in names.items()}}}}))
sys.exit(max([task.wait() for task in tasks]))
"""


def test_ranks_below_slurm_read_its_variables(tmp_path: Path) -> None:
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(SRUN.format(python=sys.executable))
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "tell.py").write_text(TELL)
    path = f"{srun.parent}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "hosts").write_text("localhost slots=3\n")
    chosen = ["--hostfile", "hosts", "--include", "localhost:0,2"]
    done = launch(["--launcher", "slurm", *chosen, "tell.py"], tmp_path, PATH=path)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads((tmp_path / "rank1.json").read_text())
    assert (told["LOCAL_RANK"], told["WORLD_SIZE"], told["MASTER_ADDR"]) == ("1", "2", "node07")
    assert told["CUDA_VISIBLE_DEVICES"] == "5,7"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("node07", "node07"),
        ("a,b", "a"),
        ("node[07-09,12],gpu1", "node07"),
        ("n[3]", "n3"),
        ("n[1-2]-ib", "n1-ib"),
        ("rack[0-3]n[01-02]", "rack0n01"),
        ("rack[0,2]n[01,03]-ib,login[1-2]", "rack0n01-ib"),
        ("", ""),
    ],
)
def test_the_first_host_of_slurms_list(text: str, first: str) -> None:
    assert first_of_nodelist(text) == first


def test_a_place_is_read_from_the_launchers_variables() -> None:
    hydra = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    assert read_place("hydra", hydra) == Place(3, 4, 1, 2)
    with pytest.raises(LaunchError, match=r"openmpi family, which sets OMPI_COMM_WORLD_RANK, [\s\S]*mpirun --version"):
        read_place("openmpi", hydra)
