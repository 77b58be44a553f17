"""Restarts, the end of ranks of MPI, and several launchers of one machine that meet, or do not."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from op_builder import env
from tests.support.launching import CPUS, PROGRAMS, SHOW, TWO, WAIT, Started, free_port, launch, left_in, shown
from tests.support.mpis import MPIS, available
from tests.support.waiting import wait_until

RESTART, FAIL = str(PROGRAMS / "restart.py"), str(PROGRAMS / "fail.py")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CPUS == 0, reason="needs Linux")]


def hosts(*options: str) -> list[str]:
    """The options of two launchers that meet here."""
    return ["--num_nodes", "2", "--master_addr", "127.0.0.1", "--master_port", str(free_port()), *options]


def test_failed_ranks_are_restarted_after_their_left_processes_have_ended(tmp_path: Path) -> None:
    """They connect to each other again, and find nothing of the ranks before."""
    done = launch([*TWO, "--max_restarts", "1", RESTART], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ended with exit status 3\nAll ranks are restarted; 0 restarts left.\n" in done.stderr
    assert launch(["--num_accelerators", "1", RESTART], tmp_path).returncode == 3


def test_a_launcher_that_waits_for_other_hosts_ends_at_a_signal(tmp_path: Path) -> None:
    options = hosts()
    port = int(options[options.index("--master_port") + 1])
    with Started([*TWO, *options, SHOW], tmp_path) as started:
        wait_until(lambda: is_open(port), lambda: started.errors)
        started.process.send_signal(signal.SIGINT)
        assert started.end() == 130, started.errors
    other = ["--num_nodes", "2", "--node_rank", "1", "--master_addr", "127.0.0.1", "--master_port", str(port)]
    with Started([*TWO, *other, SHOW], tmp_path) as started:
        wait_until(lambda: f"Waiting for the first host, 127.0.0.1 port {port}: " in started.errors)
        started.process.send_signal(signal.SIGINT)
        assert started.end() == 130, started.errors


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_hosts_do_not_wait_for_a_host_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    options = ["--num_accelerators", "1", *hosts("--max_restarts", "1")]
    with Started([*options, "--node_rank", "0", FAIL, "given_up"], tmp_path) as first:
        other = launch([*options, "--node_rank", "1", FAIL], tmp_path / "other")
        (tmp_path / "given_up").touch()
        assert other.returncode == 3, other.stderr
        assert first.end() == 1, first.errors
        assert "Ranks of other hosts have failed.\nAll ranks are restarted" in first.errors
        assert "Another host has ended the launch" in first.errors


def test_hosts_with_the_same_command_connect(tmp_path: Path) -> None:
    options = [*TWO, *hosts()]
    with Started([*options, "--node_rank", "1", SHOW], tmp_path) as other:
        done = launch([*options, "--node_rank", "0", SHOW], tmp_path)
        assert done.returncode == other.end() == 0, done.stderr + other.errors
    assert [shown(tmp_path, rank)["LOCAL_RANK"] for rank in range(4)] == ["0", "1", "0", "1"]
    assert [shown(tmp_path, rank)["CROSS_RANK"] for rank in range(4)] == ["0", "0", "1", "1"]
    assert shown(tmp_path, 3)["MASTER_PORT"] == options[options.index("--master_port") + 1]


@pytest.mark.parametrize("launcher", MPIS)
@pytest.mark.parametrize("how", ["polite", "stubborn"])
def test_ranks_of_mpi_end_with_the_driver(launcher: str, how: str, tmp_path: Path) -> None:
    options = [*TWO, "--launcher", launcher, "--grace_period", "30" if how == "polite" else "2", WAIT, how]
    with env.scope(**available(launcher)), Started(options, tmp_path) as started:
        started.wait_for("up0", "up1")
        started.process.terminate()
        assert started.end() == 143, started.errors
        if how == "polite":
            # Open MPI sends a signal of its own
            assert {(tmp_path / f"got{rank}").read_text()[:7] for rank in (0, 1)} == {"SIGTERM"}
        assert left_in(tmp_path) == [], started.errors
