"""ccl_comm: real oneCCL between real processes, also on several hosts, also when one of them is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from network_namespaces import two_hosts
from rank_processes import GUARD_S, ROOT, run_ranks, values

from op_builder import env
from op_builder.cpu import CCLCommBuilder, ShareMemCommBuilder
from op_builder.ops.comm.ccl_comm import ADDRESS_BYTES, Communicator
from op_builder.toolchains.oneccl import find_oneccl

PROGRAM = Path(__file__).with_name("ccl_programs.py")
DISTRIBUTED = Path(__file__).with_name("distributed_programs.py")

oneccl = find_oneccl()
pytestmark = pytest.mark.skipif(
    oneccl is None or not oneccl.version, reason="needs oneCCL: pip install 'accel-ops[ccl]', or CCL_ROOT"
)


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """The op is compiled once, by nobody who is waited for."""
    CCLCommBuilder().load()


def ranks(function: str, size: int, directory: Path, **options: Any) -> list[Any]:
    return values(run_ranks(PROGRAM, function, size, directory, **options))


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_every_collective_type_and_group(size: int, tmp_path: Path) -> None:
    for told in ranks("everything", size, tmp_path):
        assert set(told["collectives"]) == {
            *("broadcast", "all_reduce", "inference_all_reduce", "all_reduce_caching", "barrier"),
        }


def test_a_killed_rank_is_an_error_within_the_timeout_and_the_process_ends(tmp_path: Path) -> None:
    survivor, dead = run_ranks(PROGRAM, "a_rank_dies", 2, tmp_path)
    assert dead.status == -9
    assert survivor.status == 0, survivor.told
    first, second = survivor.value
    assert "did not finish within 4 s" in first
    assert "does not tell which rank" in first
    assert second == first  # the communicator is lost


def test_a_process_ends_while_a_call_cannot_return_and_loses_no_output(tmp_path: Path) -> None:
    _, survivor = run_ranks(PROGRAM, "a_rank_ends_first", 2, tmp_path)
    assert survivor.status == 0, survivor.told
    assert "did not finish within 2 s" in survivor.value
    assert "kept by the C library until the end" in survivor.told


def test_a_rank_that_never_comes_is_an_error_within_the_timeout(tmp_path: Path) -> None:
    told = ranks("a_rank_does_not_come", 2, tmp_path)[0]
    assert "meeting on rank 0 of 2 did not finish within 3 s" in told
    assert "CCL_KVS_IFACE" in told


def test_communicators_and_tensors_are_given_back(tmp_path: Path) -> None:
    for (closed, forgotten, _), kept in ranks("what_is_given_back", 2, tmp_path):
        assert "The communicator was closed." in closed
        assert forgotten == "the communicator is forgotten"
        assert kept == 0


class OpsThatCloseAgain:
    """Ops of oneCCL without it. While one thread is in disconnect(), another one closes the communicator."""

    def __init__(self) -> None:
        self.comm: Communicator | None = None
        self.ended: list[int] = []

    def connect(self, *_: object) -> tuple[int, int]:
        return 7, 1

    def wait(self, *_: object) -> bool:
        return True

    def disconnect(self, number: int) -> None:
        self.ended.append(number)
        if len(self.ended) > 1:
            return
        assert self.comm is not None
        closer = threading.Thread(target=self.comm.close)
        closer.start()
        closer.join()


def test_a_communicator_that_two_threads_close_is_given_back_once() -> None:
    ops = OpsThatCloseAgain()
    ops.comm = Communicator(ops, 1, 0, [1] * ADDRESS_BYTES, 1.0)
    ops.comm.close()
    assert ops.ended == [7]


def test_a_signal_ends_the_wait_of_an_inference_all_reduce(tmp_path: Path) -> None:
    assert ranks("an_interrupted_wait", 2, tmp_path) == ["KeyboardInterrupt", ""]


# Several hosts -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ranks_in_two_network_namespaces(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        environments = [{"CCL_KVS_IFACE": host.interface, "FI_TCP_IFACE": host.interface} for host in hosts]
        prefixes = [host.prefix for host in hosts]
        ranks("everything", 2, tmp_path, environments=environments, prefixes=prefixes)


@pytest.mark.slow
@pytest.mark.parametrize("across", ["gloo", "ccl"])
def test_the_backend_on_two_hosts_shares_memory_inside_each_and_goes_across(across: str, tmp_path: Path) -> None:
    ShareMemCommBuilder().load()
    with two_hosts() as hosts:
        places = [hosts[0], hosts[0], hosts[1], hosts[1]]
        environments = [
            {
                "ACCEL_DISTRIBUTED_ACROSS": across,
                "GLOO_SOCKET_IFNAME": host.interface,
                "CCL_KVS_IFACE": host.interface,
                "FI_TCP_IFACE": host.interface,
            }
            for host in places
        ]
        prefixes = [host.prefix for host in places]
        results = run_ranks(DISTRIBUTED, "all_collectives", 4, tmp_path, environments=environments, prefixes=prefixes)
    for told in values(results):
        assert told["gloo"] == {}
        assert told["hosts"] == [[0, 1], [2, 3]]


@pytest.mark.slow
def test_ranks_that_mpirun_starts(tmp_path: Path) -> None:
    assert oneccl is not None
    found = [shutil.which("mpirun", path=str(oneccl.prefix / "bin")), shutil.which("mpirun")]
    mpirun = next(filter(None, found), None)
    if mpirun is None:
        pytest.skip("there is no mpirun (pip install impi-rt)")
    code = f"""
import json, os, sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
import ccl_programs
rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
told = ccl_programs.everything(rank, size, {str(tmp_path)!r})
open({str(tmp_path)!r} + f"/value{{rank}}", "w").write(json.dumps(told))
"""
    libraries = ":".join(filter(None, [str(oneccl.library.parent), os.environ.get("LD_LIBRARY_PATH")]))
    environment = env.child_environment(
        PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", I_MPI_ROOT=str(oneccl.prefix), LD_LIBRARY_PATH=libraries
    )
    done = subprocess.run(
        [mpirun, "-n", "2", sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "value0").exists()
    assert (tmp_path / "value1").exists()
