"""Ranks on two hosts, which are network namespaces of this machine, and ranks that mpirun starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from op_builder import env
from op_builder.cpu import CCLCommBuilder, ShareMemCommBuilder
from op_builder.toolchains.oneccl import find_oneccl
from tests.support.ccl_programs import needs_oneccl
from tests.support.network_namespaces import two_hosts
from tests.support.rank_processes import GUARD_S, ROOT, run_ranks, values

PROGRAM = "distributed_programs"

oneccl = find_oneccl()
pytestmark = [pytest.mark.slow, needs_oneccl]


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """The ops are compiled before anybody waits for them."""
    CCLCommBuilder().load()
    ShareMemCommBuilder().load()


def test_the_backend_on_two_hosts_shares_memory_inside_each_and_goes_across(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        environments = [{"GLOO_SOCKET_IFNAME": hosts[0].interface}] * 4
        namespaces = [host.name for host in hosts for _ in range(2)]
        results = run_ranks(PROGRAM, "all_collectives", 4, tmp_path, environments=environments, namespaces=namespaces)
    for result in values(results):
        assert result["gloo"] == {}
        assert result["hosts"] == [[0, 1], [2, 3]]


def test_ranks_that_mpirun_starts(tmp_path: Path) -> None:
    assert oneccl is not None
    found = [shutil.which("mpirun", path=str(oneccl.prefix / "bin")), shutil.which("mpirun")]
    mpirun = next(filter(None, found), None)
    if mpirun is None:
        pytest.skip("there is no mpirun (pip install impi-rt)")
    code = f"""
import os
from tests.support import ccl_programs
rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
ccl_programs.everything(rank, size, {str(tmp_path)!r})
print("rank", rank, "of", size)
"""
    libraries = ":".join(filter(None, [str(oneccl.library.parent), os.environ.get("LD_LIBRARY_PATH")]))
    environment = env.child_environment(
        PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", I_MPI_ROOT=str(oneccl.prefix), LD_LIBRARY_PATH=libraries
    )
    command = [mpirun, "-n", "2", sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=GUARD_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"rank 0 of 2", "rank 1 of 2"} <= set(done.stdout.splitlines())
