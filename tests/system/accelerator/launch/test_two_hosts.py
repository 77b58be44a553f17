"""Two hosts, as network namespaces with an sshd each: the same launch, failures and signals across them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from op_builder import env
from tests.support import two_hosts
from tests.support.launching import CPUS, ROOT, SHOW, WAIT, Started, launch, left_in, shown
from tests.support.mpis import MPIS, available
from tests.support.network_namespaces import ADDRESSES
from tests.support.two_hosts import TwoHosts

pytestmark = [pytest.mark.slow, pytest.mark.first, pytest.mark.skipif(CPUS == 0, reason="needs Linux")]

ONE = ["--num_accelerators", "1"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    with two_hosts.two_hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


def below(launcher: str, hosts: TwoHosts, options: list[str]) -> tuple[list[str], dict[str, str]]:
    """Options and variables for these hosts and that launcher."""
    if launcher == "ssh":
        return options, {}
    variables = available(launcher)
    agent = str(hosts.agent)
    words = {
        "openmpi": f"--mca plm_rsh_agent {agent} --mca btl_tcp_if_include {hosts.interface}",
        "mpich": f"-launcher-exec {agent}",
        "impi": f"-launcher-exec {agent} -iface {hosts.interface}",  # the names of these hosts cannot be resolved
    }[launcher]
    rest = [option for option in options if not option.startswith("--launcher_args")]
    return [*rest, "--launcher", launcher, f"--launcher_args={words}"], variables


@pytest.fixture
def options(hosts: TwoHosts, tmp_path: Path) -> list[str]:
    (tmp_path / "hostfile").write_text("".join(f"{address} slots=2\n" for address in ADDRESSES))
    variables = f"GLOO_SOCKET_IFNAME={hosts.interface}\nFROM_FILE=secret-of-the-file\nOMP_NUM_THREADS=1\n"
    (tmp_path / ".accel_env").write_text(variables)
    return ["--hostfile", "hostfile", f"--launcher_args={hosts.ssh_args}", "--grace_period", "3"]


@pytest.mark.parametrize("launcher", ["ssh", *MPIS])
def test_variables_reach_another_host_unseen(
    launcher: str, hosts: TwoHosts, options: list[str], tmp_path: Path
) -> None:
    """Not the first host's own: its PATH, and which devices it shows."""
    arguments, variables = below(launcher, hosts, options)
    path = f"/first{os.pathsep}{variables.get('PATH', os.environ['PATH'])}"
    own = {"PATH": path, "CUDA_VISIBLE_DEVICES": "7", "OF_FIRST_HOST": "yes", "PYTHONHASHSEED": "12345678"}
    arguments = [*arguments, *ONE, "--bind_cores_to_rank", SHOW, "$x 'y'"]
    done = launch(arguments, tmp_path, hosts.prefix, **{**variables, **own})
    assert done.returncode == 0, done.stderr
    got = [shown(tmp_path, rank) for rank in range(2)]
    assert {g["FROM_FILE"] for g in got} == {"secret-of-the-file"}
    command_lines = "".join(g["command_lines"] for g in got)
    assert "show.py" in command_lines
    assert not [value for value in ("secret-of-the-file", "12345678") if value in command_lines]
    assert (got[1]["host"], got[1]["CUDA_VISIBLE_DEVICES"], got[1].get("OF_FIRST_HOST")) == ("host-b", "0", None)
    assert got[1]["PYTHONHASHSEED"] == "12345678"
    assert got[1]["arguments"] == ["$x 'y'"]
    assert {(g["MASTER_ADDR"], g["WORLD_SIZE"]) for g in got} == {(ADDRESSES[0], "2")}
    assert "/first" not in got[1]["PATH"]


def test_ranks_of_two_hosts_train_together(hosts: TwoHosts, options: list[str], tmp_path: Path) -> None:
    training = [str(ROOT / "examples" / "porting" / "after.py"), "--steps", "3"]
    one_host = tmp_path / "one host"  # without the hosts' .accel_env
    one_host.mkdir()
    apart = launch([*options, *ONE, "--bind_cores_to_rank", *training], tmp_path, hosts.prefix)
    together = launch(["--num_accelerators", "2", *training], one_host)
    for done in (apart, together):
        assert done.returncode == 0, done.stderr
    losses = [json.loads(done.stdout.splitlines()[-1])["losses"] for done in (apart, together)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)  # in bfloat16


def test_a_failing_rank_of_another_host_is_reported_and_all_processes_end(
    hosts: TwoHosts, options: list[str], tmp_path: Path
) -> None:
    done = launch([*options, *ONE, WAIT, "killed"], tmp_path, hosts.prefix)
    assert done.returncode == 137, done.stderr
    assert "accel-launch: rank 1 (local rank 0, pid " in done.stderr
    assert ") on host-b ended by signal 9 (SIGKILL)" in done.stderr
    assert "  | last words of the rank" in done.stderr
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_ranks_of_all_hosts(
    number: signal.Signals, hosts: TwoHosts, options: list[str], tmp_path: Path
) -> None:
    with Started([*options, "--grace_period", "30", *ONE, WAIT, "polite"], tmp_path, hosts.prefix) as started:
        started.wait_for("up0", "up1")
        started.process.send_signal(number)
        assert started.end() == 128 + number, started.errors
        assert {(tmp_path / f"got{rank}").read_text() for rank in (0, 1)} == {number.name}
        assert left_in(tmp_path) == []


@pytest.mark.parametrize("launcher", ["ssh", *MPIS])
def test_a_killed_driver_ends_the_ranks_of_all_hosts(
    launcher: str, hosts: TwoHosts, options: list[str], tmp_path: Path
) -> None:
    arguments, variables = below(launcher, hosts, options)
    arguments = [*arguments, *ONE, WAIT, "stubborn"]
    with env.scope(**variables), Started(arguments, tmp_path, hosts.prefix) as started:
        started.wait_for("up0", "up1")
        started.process.kill()
        started.end()
        assert left_in(tmp_path) == []
