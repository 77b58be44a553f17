"""Two hosts, as network namespaces with an sshd each: the same launch, failures and signals across them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import two_hosts
from launching import ROOT, TELL, WAIT, Started, Watch, launch
from mpis import MPIS, available
from two_hosts import ADDRESSES, TwoHosts

from op_builder import env

MISSING = two_hosts.what_is_missing() if os.name == "posix" else "needs Linux"
pytestmark = [pytest.mark.slow, pytest.mark.first, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]


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
        "impi": f"-launcher-exec {agent} -iface {hosts.interface}",  # names of these hosts are known to nobody
    }[launcher]
    rest = [option for option in options if not option.startswith("--launcher_args")]
    return [*rest, "--launcher", launcher, f"--launcher_args={words}"], variables


@pytest.fixture
def options(hosts: TwoHosts, tmp_path: Path) -> list[str]:
    lines = [f"{address} slots=2  # host {host}\n" for host, address in ADDRESSES.items()]
    (tmp_path / "hostfile").write_text("".join(lines))
    variables = f"GLOO_SOCKET_IFNAME={hosts.interface}\nFROM_FILE=for all\nOMP_NUM_THREADS=1\n"
    (tmp_path / ".accel_env").write_text(variables)
    (tmp_path / "tell.py").write_text(TELL)
    (tmp_path / "wait.py").write_text(WAIT)
    return ["--hostfile", "hostfile", f"--launcher_args={hosts.ssh_args}", "--grace_period", "3"]


def test_ranks_are_numbered_across_hosts(hosts: TwoHosts, options: list[str], tmp_path: Path) -> None:
    arguments = [*options, "--include", f"{ADDRESSES['a']}:1@{ADDRESSES['b']}", "tell.py", "$x 'y'"]
    done = launch(arguments, tmp_path, hosts.on("a", []))
    assert done.returncode == 0, done.stderr
    told = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(3)]
    assert [(t["host"], t["LOCAL_RANK"], t["LOCAL_SIZE"]) for t in told] == [
        ("host-a", "0", "1"),
        ("host-b", "0", "2"),
        ("host-b", "1", "2"),
    ]
    assert [t["CUDA_VISIBLE_DEVICES"] for t in told] == ["1", "0,1", "0,1"]
    assert {t["MASTER_ADDR"] for t in told} == {ADDRESSES["a"]}
    assert {t["WORLD_SIZE"] for t in told} == {"3"}
    assert {t["FROM_FILE"] for t in told} == {"for all"}
    assert told[0]["arguments"] == ["$x 'y'"]
    assert len({t["ACCEL_LAUNCH_ID"].partition(".")[0] for t in told}) == 1


@pytest.mark.parametrize("launcher", ["ssh", *MPIS])
def test_the_other_host_gets_what_it_is_to_have_and_nobody_sees_it(
    launcher: str, hosts: TwoHosts, options: list[str], tmp_path: Path
) -> None:
    """Not the first host's own: its PATH, and which devices it shows."""
    arguments, variables = below(launcher, hosts, options)
    (tmp_path / ".accel_env").write_text(f"GLOO_SOCKET_IFNAME={hosts.interface}\nFROM_FILE=secret-of-the-file\n")
    path = f"/first{os.pathsep}{variables.get('PATH', os.environ['PATH'])}"
    own = {"PATH": path, "CUDA_VISIBLE_DEVICES": "7", "OF_FIRST_HOST": "yes", "PYTHONHASHSEED": "12345678"}
    with Watch("secret-of-the-file") as watch, Watch("12345678") as watch_shell:
        arguments = [*arguments, "--num_accelerators", "1", "--bind_cores_to_rank", "tell.py"]
        done = launch(arguments, tmp_path, hosts.on("a", []), **{**variables, **own})
    assert done.returncode == 0, done.stderr
    told = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert {t["FROM_FILE"] for t in told} == {"secret-of-the-file"}
    assert watch.seen | watch_shell.seen == set()
    assert [line for line in watch.looked_at if "tell.py" in line]
    assert told[1]["host"] == "host-b"
    assert told[1]["CUDA_VISIBLE_DEVICES"] == "0"
    assert told[1]["OF_FIRST_HOST"] is None
    assert told[1]["PYTHONHASHSEED"] == "12345678"
    assert "/first" not in told[1]["PATH"]


def test_ranks_of_two_hosts_train_together(hosts: TwoHosts, options: list[str], tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "train_ranks.py")
    training = [script, "--steps", "3", "--optimizer", "AdamW", "--losses"]
    arguments = [*options, "--num_accelerators", "1", "--bind_cores_to_rank", *training, "two.json"]
    done = launch(arguments, tmp_path, hosts.on("a", []))
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2" in done.stdout
    done = launch(["--num_accelerators", "1", *training, "one.json"], tmp_path)
    assert done.returncode == 0, done.stderr
    two, one = (json.loads((tmp_path / name).read_text()) for name in ("two.json", "one.json"))
    assert two == pytest.approx(one, rel=1e-5)


def test_the_first_failing_rank_of_another_host_is_told(hosts: TwoHosts, options: list[str], tmp_path: Path) -> None:
    done = launch([*options, "--num_accelerators", "1", "wait.py", "killed"], tmp_path, hosts.on("a", []))
    assert done.returncode == 137, done.stderr
    assert "accel-launch: rank 1 (local rank 0, pid " in done.stderr
    assert ") on host-b ended by signal 9 (SIGKILL)" in done.stderr
    assert "  | last words of the rank" in done.stderr
    assert left_of_launch(tmp_path) == []


def test_all_hosts_start_again_when_one_restarts_its_ranks(hosts: TwoHosts, options: list[str], tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(
        "import os, sys, time\n"
        "host, first = os.uname().nodename, os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
        "if host == 'host-b' and first: time.sleep(1); sys.exit(5)\n"
        "if not os.path.exists('again'): open('again', 'w').close(); time.sleep(60)\n"
        "open(f'ended-{host}', 'w').write(os.environ['WORLD_SIZE'])\n"
    )
    arguments = [*options, "--num_accelerators", "1", "--max_restarts", "2", "once.py"]
    done = launch(arguments, tmp_path, hosts.on("a", []))
    assert done.returncode == 0, done.stderr
    assert {(tmp_path / f"ended-host-{host}").read_text() for host in ("a", "b")} == {"2"}


@pytest.mark.parametrize("launcher", MPIS)
@pytest.mark.parametrize(("how", "status"), [("killed", 137), ("polite", 143)])
def test_nothing_is_left_on_either_host_below_mpi(
    launcher: str, how: str, status: int, hosts: TwoHosts, options: list[str], tmp_path: Path
) -> None:
    arguments, variables = below(launcher, hosts, options)
    arguments = [*arguments, "--num_accelerators", "1", "wait.py", how]
    with env.scope(**variables), Started(arguments, tmp_path, hosts.on("a", [])) as started:
        if how == "polite":
            started.wait_for("up0", "up1")
            started.process.terminate()
        assert started.end() == status, started.errors
        if how == "killed":
            assert "accel-launch: rank 1 (local rank 0, pid " in started.errors
            assert ") on host-b ended by signal 9 (SIGKILL)" in started.errors
        assert left_of_launch(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_ranks_of_all_hosts(
    number: signal.Signals, hosts: TwoHosts, options: list[str], tmp_path: Path
) -> None:
    with Started([*options, "--num_accelerators", "1", "wait.py", "polite"], tmp_path, hosts.on("a", [])) as started:
        started.wait_for("up0", "up1")
        started.process.send_signal(number)
        assert started.end() == 128 + number, started.errors
        assert {(tmp_path / f"got{rank}").read_text() for rank in (0, 1)} == {number.name}
        assert left_of_launch(tmp_path) == []


@pytest.mark.parametrize("launcher", ["ssh", *MPIS])
def test_ranks_of_all_hosts_end_with_a_driver_that_is_killed(
    launcher: str, hosts: TwoHosts, options: list[str], tmp_path: Path
) -> None:
    arguments, variables = below(launcher, hosts, options)
    arguments = [*arguments, "--num_accelerators", "1", "wait.py", "stubborn"]
    with env.scope(**variables), Started(arguments, tmp_path, hosts.on("a", [])) as started:
        started.wait_for("up0", "up1")
        started.process.kill()
        started.end()
        assert left_of_launch(tmp_path, patience_s=60) == []


def left_of_launch(directory: Path, patience_s: float = 10) -> list[str]:
    """Command lines of ranks and launchers that run in the directory: no mark of a test travels through ssh."""
    import time

    deadline = time.monotonic() + patience_s
    while True:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "cwd").readlink() == directory:
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
