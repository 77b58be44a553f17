"""Ranks below MPI's launchers where they are installed, and below a stand-in for Slurm's."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from accelerator.launch.binding import plan_binding
from accelerator.launch.topology import format_list, own_affinity, read_topology
from op_builder.system.cgroups import HostFiles
from tests.support.launching import CPUS, TWO, launch, shown, write_scripts
from tests.support.mpis import MPIS, available


@pytest.mark.skipif(CPUS < 2, reason="needs two CPUs to bind two ranks to")
@pytest.mark.parametrize("launcher", MPIS)
def test_ranks_of_mpi_are_bound_and_numbered(launcher: str, tmp_path: Path) -> None:
    variables = {**available(launcher), "CUDA_VISIBLE_DEVICES": "5,7"}
    write_scripts(tmp_path)
    secret = "a \\\"';,$x=\\n secret of the file"
    (tmp_path / ".accel_env").write_text(f"FROM_FILE={secret}\n")
    options = [*TWO, "--launcher", launcher, "--bind_cores_to_rank", "--log_dir", "logs"]
    done = launch([*options, "show.py", "$x"], tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    for rank, binding in enumerate(plan_binding(read_topology(HostFiles(), own_affinity()), 2)):
        got = shown(tmp_path, rank)
        assert got["cpus"] == format_list(binding.cpus)
        assert (got["LOCAL_RANK"], got["WORLD_SIZE"], got["LOCAL_WORLD_SIZE"]) == (str(rank), "2", "2")
        assert (got["CROSS_RANK"], got["CROSS_SIZE"]) == ("0", "1")
        assert (got["LOCAL_SIZE"], got["MASTER_ADDR"], got["MASTER_PORT"]) == ("2", "127.0.0.1", "29500")
        assert (got["FROM_FILE"], got["arguments"], got["CUDA_VISIBLE_DEVICES"]) == (secret, ["$x"], "5,7")
        assert "show.py" in got["command_lines"]
        assert "secret of the file" not in got["command_lines"]
        assert (tmp_path / "logs" / f"rank{rank}" / "stdout.log").read_text() == f"rank {rank}\n"


# srun as a program sees it: tasks with Slurm's variables. Tests cannot run Slurm itself.
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


def test_ranks_of_slurm_read_its_variables(tmp_path: Path) -> None:
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(SRUN.format(python=sys.executable))
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    write_scripts(tmp_path)
    path = f"{srun.parent}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "hosts").write_text("localhost slots=3\n")
    chosen = ["--hostfile", "hosts", "--include", "localhost:0,2"]
    done = launch(["--launcher", "slurm", *chosen, "show.py"], tmp_path, PATH=path)
    assert done.returncode == 0, done.stderr
    got = shown(tmp_path, 1)
    assert (got["LOCAL_RANK"], got["WORLD_SIZE"], got["MASTER_ADDR"]) == ("1", "2", "node07")
    assert got["CUDA_VISIBLE_DEVICES"] == "5,7"
