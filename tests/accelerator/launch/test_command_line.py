"""Options in both spellings, what is refused, and what --dry_run and --show_topology tell."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launching import ROOT
from rich.console import Console
from trees import Made

from accelerator.launch import command_line, picture
from accelerator.launch.cluster import cluster_command
from accelerator.launch.command_line import main
from accelerator.launch.hostfile import Host
from accelerator.launch.options import parse
from accelerator.launch.ranks import BindingRequest, plan_host
from accelerator.launch.ssh import ssh_commands
from accelerator.launch.topology import read_caches, read_topology
from op_builder import env
from op_builder.system.cgroups import HostFiles


def write_machine(directory: Path, made: Made) -> None:
    for name, text in made.files().items():
        (directory / "machine" / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / "machine" / name).write_text(text)


@pytest.fixture(autouse=True)
def _quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """No file of the developer's decides, and the machine is known to have two nodes of four cores."""
    monkeypatch.chdir(tmp_path)
    write_machine(tmp_path, Made(sockets=2, cores=4))
    files = HostFiles(tmp_path / "machine" / "sys", tmp_path / "machine" / "proc")
    monkeypatch.setattr(command_line, "HostFiles", lambda: files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    unset = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "PYTHONPATH", "ACCEL_TEST_CACHE"))
    with env.scope(ACCEL_ACCELERATOR="cpu", ACCEL_CACHE_DIR=None, HOME=str(tmp_path), **unset):
        yield


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = main(["--dry_run", *arguments])
    told = capsys.readouterr()
    assert status == 0, told.err
    return told.out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    try:
        status = main(list(arguments))
    except SystemExit as ended:
        status = ended.code
    told = capsys.readouterr()
    assert status == 2, told
    return told.err


@pytest.mark.parametrize("dash", ["_", "-"])
@pytest.mark.parametrize("equals", [True, False])
def test_options_have_both_spellings_and_the_programs_own_are_left_alone(dash: str, equals: bool) -> None:
    def given(name: str, value: str) -> list[str]:
        return [f"--{name.replace('_', dash)}={value}"] if equals else [f"--{name.replace('_', dash)}", value]

    options = parse(
        [
            *given("num_accelerators", "3"),
            f"--bind{dash}cores{dash}to{dash}rank",
            *given("launcher_args", "-p 2222"),
            *given("master_port", "4000"),
            "train.py",
            "--num_accelerators",
            "7",
            "--",
            "--dry_run",
        ]
    )
    assert (options.num_accelerators, options.bind_cores_to_rank, options.master_port) == (3, True, 4000)
    assert options.launcher_args == ("-p", "2222")
    assert options.program == ["train.py", "--num_accelerators", "7", "--", "--dry_run"]
    assert options.dry_run is False


def test_the_console_script_is_there() -> None:
    declared = (ROOT / "pyproject.toml").read_text()
    (target,) = re.findall(r'^accel-launch = "([\w.]+):(\w+)"$', declared, re.MULTILINE)
    assert getattr(importlib.import_module(target[0]), target[1]) is command_line.run


def test_two_dashes_end_the_options() -> None:
    assert parse(["--no_python", "--", "-odd-program", "-x"]).program == ["-odd-program", "-x"]
    assert parse(["--num_gpus", "2", "--nnodes", "1", "x.py"]).num_accelerators == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which script?"),
        (["--bind_core_to_rank", "x.py"], "there is no option --bind_core_to_rank; did you mean --bind_cores_to_rank?"),
        (["--num-accelerator=2", "x.py"], "there is no option --num-accelerator; did you mean --num_accelerators?"),
        (["--num_accelerators", "0", "x.py"], "expected a whole number of at least 1, not '0'"),
        (["--num_nodes", "two", "x.py"], "argument --num_nodes: expected a whole number of at least 1, not 'two'"),
        (["--master_port", "70000", "x.py"], "expected a port, 1 to 65535, not '70000'"),
        (["--grace_period", "nan", "x.py"], "expected a number of seconds, not 'nan'"),
        (["y.py"], "There is no script y.py. Remedy: Correct its path. For a module give --module"),
        (["--log_dir", "two/logs", "x.py"], "two/logs cannot be made on "),
        (["--launcher", "pdsh", "x.py"], "invalid choice: 'pdsh'"),
        (["--module", "--no_python", "x"], "exclude each other"),
        (["--json", "x.py"], "--json goes with --show_topology"),
        (["--node_rank", "2", "--num_nodes", "2", "x.py"], "the last is 1"),
        (["--launcher_args", "'", "x.py"], "No closing quotation"),
        (["--hostfile", "missing", "x.py"], "Hostfile missing cannot be read"),
        (["--num_nodes", "2", "x.py"], "Give --master_addr"),
        (["--include", "other", "x.py"], "there is no host 'other'"),
        (["--bind_core_list", "0-9", "x.py"], "may not use: 8-9"),
        (["--bind_core_list", "0-", "--launcher", "ssh", "x.py"], "expected numbers and ranges of CPUs"),
        *[
            (["--num_nodes", "2", "--launcher", launcher, "x.py"], f"--launcher {launcher}: which hosts?")
            for launcher in ("ssh", "openmpi", "mpich", "impi")
        ],
        *[
            (["--max_restarts", "1", "--launcher", launcher, "x.py"], "only torch's agent starts ranks again")
            for launcher in ("openmpi", "mpich", "impi", "slurm")
        ],
        *[
            (["--num_nodes", "2", "--node_rank", "1", *options, "x.py"], "numbers the hosts. Remedy: Leave --node_rank")
            for options in (["--hostfile", "two"], ["--launcher", "slurm"])
        ],
        (["--num_accelerators", "9", "--bind_cores_to_rank", "x.py"], "9 ranks cannot be bound to 8 CPUs"),
    ],
)
def test_what_cannot_be_done_is_told_and_nothing_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_a, **_k: pytest.fail("something was started"))
    Path("two").write_text("a slots=1\nb slots=1\n")
    Path("x.py").touch()
    assert message in " ".join(refused(capsys, *arguments).split())


def test_a_script_may_come_by_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[tuple[str, ...]] = []
    monkeypatch.setattr("accelerator.launch.torchrun.run", lambda job, _plan: run.append(job.program) or 0)
    assert main(["-"]) == 0
    assert run == [(sys.executable, "-u", "-")]


def test_a_dry_run_tells_bindings_variables_and_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    Path(".accel_env").write_text("GLOO_SOCKET_IFNAME=eth0\n")
    told = dry_run(capsys, "--bind-cores-to-rank", "train.py", "--lr", "$1 x")
    assert f"command of each rank: {sys.executable} -u train.py --lr '$1 x'" in told
    assert "local rank 0: CPU 0-3 of NUMA node 0, memory bind 0, OMP_NUM_THREADS=4 MKL_NUM_THREADS=4" in told
    assert "local rank 1: CPU 4-7 of NUMA node 1, memory bind 1, OMP_NUM_THREADS=4 MKL_NUM_THREADS=4" in told
    assert f"started by the agent: {sys.executable} -I -S " in told
    assert "environment of all ranks: GLOO_SOCKET_IFNAME=eth0 CUDA_VISIBLE_DEVICES=0,1 LOCAL_SIZE=2" in told


def test_the_default_is_a_rank_for_each_numa_node_with_cores_that_may_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "for 2 of 2 ranks" in dry_run(capsys, "train.py")
    with monkeypatch.context() as masked:
        masked.setattr(os, "sched_getaffinity", lambda _pid: {5, 7})
        assert "for 1 of 1 rank " in dry_run(capsys, "train.py")
    write_machine(tmp_path, Made(sockets=5, cores=2))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(10)))
    assert "for 5 of 5 ranks" in dry_run(capsys, "train.py")
    assert "for 2 of 2 ranks" in dry_run(capsys, "--num_accelerators", "2", "train.py")
    assert "CUDA_VISIBLE_DEVICES=1,4 LOCAL_SIZE=2" in dry_run(capsys, "--include", "localhost:1,4", "train.py")


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ([], "-u train.py a"),
        (["--module"], "-u -m train.py a"),
        (["--no_python"], "rank: train.py a"),
    ],
)
def test_the_program_is_a_script_a_module_or_anything(
    options: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command in dry_run(capsys, *options, "train.py", "a")


def test_more_accelerators_than_there_are_is_refused_on_a_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelerator.cpu_accelerator.CPU_Accelerator.device_name", lambda _self, _index=None: "acme")
    monkeypatch.setattr("accelerator.cpu_accelerator.CPU_Accelerator.device_count", lambda _self: 2)
    assert "--num_accelerators 3: this host has 2 (acme)" in refused(capsys, "--num_accelerators", "3", "x.py")


def test_each_host_gets_a_command_by_ssh(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Path("hosts").write_text("a slots=4\nme@b slots=2\n")
    with env.scope(PYTHONPATH="/code", OMP_SCHEDULE="static"):
        told = dry_run(
            capsys, "--hostfile", "hosts", "--exclude", "a:1,3", "--launcher_args=-p 22", "--bind_cores_to_rank", "t.py"
        )
    assert "launcher: ssh, 4 ranks on 2 hosts" in told
    first, second = (line for line in told.splitlines() if line.startswith("host "))
    assert first.startswith("host 0, a, slots 0,2: ssh -p 22 -o BatchMode=yes a 'cd ")
    assert f"cd {tmp_path} && exec {sys.executable} -I -S " in first
    assert "--num_nodes=2 --node_rank=0 --master_addr=a --master_port=29500 --host_slots=4 --host_chosen=0,2" in first
    assert "--bind_cores_to_rank" in first
    assert "BatchMode=yes me@b 'cd " in second
    assert "--node_rank=1 --master_addr=a --master_port=29500 --host_slots=2 --host_chosen=0,1" in second
    assert "a: on a host like this one, environment of all ranks: CUDA_VISIBLE_DEVICES=0,2 " in told
    assert "me@b: on a host like this one, environment of all ranks: CUDA_VISIBLE_DEVICES=0,1 " in told
    assert "variables, by ssh's standard input: " in told
    assert "by ssh's standard input" not in dry_run(capsys, "--launcher", "ssh", "--num_accelerators", "1", "t.py")


@pytest.mark.parametrize("launcher", ["ssh", "openmpi", "mpich", "impi", "slurm"])
def test_values_of_variables_stand_on_no_command_line(launcher: str) -> None:
    """Everybody on a host can read those."""
    Path(".accel_env").write_text("TOKEN='of the file'\n")
    Path("hosts").write_text("a slots=1\nb slots=1\n")
    arguments = ["--hostfile", "hosts", "--launcher", launcher, "t.py"]
    with env.scope(PYTHONPATH="/of the shell", OTHER="of no concern"):
        job = command_line.make_job(parse(arguments))
    commands = ssh_commands(job, Path.cwd()) if launcher == "ssh" else [cluster_command(job)]
    assert not [word for command in commands for word in command.command if "of the" in word]
    for command in commands:
        sent = command.variables if command.sent is None else command.sent
        assert sent["TOKEN"] == "of the file"
        assert "OTHER" not in str(command)
        if command.sent is not None:
            assert sent["PYTHONPATH"] == "/of the shell"
        elif launcher != "slurm":
            words = command.command
            names = words[words.index("-genvlist") + 1].split(",") if "-genvlist" in words else words
            assert {"TOKEN", "PYTHONPATH", "ACCEL_ACCELERATOR"} <= set(names)


def test_a_worker_of_this_host_is_told_no_values_either() -> None:
    plan = plan_host(Host("localhost", 1, (0,)), BindingRequest(True), read_topology(command_line.HostFiles(), {0}), {})
    plan = replace(plan, variables={"TOKEN": "secret"})
    assert "secret" not in str(plan.spec())
    assert plan.variables_of(0) == {"TOKEN": "secret", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@pytest.mark.parametrize("own", ["-genvall", "-genvlist A,B", "-genvnone"])
def test_what_the_user_says_of_hydras_variables_stands_alone(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    for launcher in ("mpich", "impi"):
        told = dry_run(capsys, "--launcher", launcher, f"--launcher_args={own}", "t.py")
        assert told.count("-genv") == 1
        assert f" {own} " in told


def test_each_host_chooses_its_devices_from_its_own_variable(capsys: pytest.CaptureFixture[str]) -> None:
    """This host shows other devices than that one, whose own are left to it."""
    Path("hosts").write_text("a slots=2\nb slots=2\n")
    with env.scope(CUDA_VISIBLE_DEVICES="6,7"):
        told = dry_run(capsys, "--hostfile", "hosts", "--include", "a:1@b:1", "t.py")
        for line in (line for line in told.splitlines() if line.startswith("host ")):
            assert "--host_devices=CUDA_VISIBLE_DEVICES " in line
            assert "CUDA_VISIBLE_DEVICES=" not in line.replace("--host_devices=CUDA_VISIBLE_DEVICES ", "")
        command = dry_run(capsys, "--hostfile", "hosts", "--launcher", "openmpi", "t.py").splitlines()[1]
        assert '"devices":["CUDA_VISIBLE_DEVICES"]' in command
        assert "CUDA_VISIBLE_DEVICES=" not in command
        assert "-x CUDA" not in command
    by_driver = ["--host_slots=2", "--host_chosen=1", "--host_launch=x", "--host_devices=CUDA_VISIBLE_DEVICES"]
    with env.scope(CUDA_VISIBLE_DEVICES="4,5"):
        assert "all ranks: CUDA_VISIBLE_DEVICES=5 " in dry_run(capsys, *by_driver, "t.py")


def test_a_dry_run_tells_where_this_host_is_smaller_than_those_meant(capsys: pytest.CaptureFixture[str]) -> None:
    Path("hosts").write_text("a slots=16\nb slots=16\n")
    for launcher in ("ssh", "slurm"):
        told = dry_run(capsys, "--hostfile", "hosts", "--launcher", launcher, "--bind_cores_to_rank", "t.py")
        assert f"launcher: {launcher}, 32 ranks on 2 hosts" in told
        assert "this host could not hold it: 16 ranks cannot be bound to 8 CPUs" in told


def test_hosts_must_be_able_to_find_rank_0(capsys: pytest.CaptureFixture[str]) -> None:
    Path("hosts").write_text("localhost slots=1\nb slots=1\n")
    assert "give --master_addr" in refused(capsys, "--dry_run", "--hostfile", "hosts", "t.py")
    assert "--master_addr=10.0.0.1" in dry_run(capsys, "--hostfile", "hosts", "--master_addr", "10.0.0.1", "t.py")


@pytest.mark.parametrize(
    ("launcher", "parts"),
    [
        ("openmpi", ["-np 4 --map-by ppr:2:node --bind-to none --host a:2,b:2", "-x ACCEL_ACCELERATOR"]),
        ("mpich", ["-np 4 -ppn 2 -bind-to none -hosts a,b -genvlist ACCEL_"]),
        ("impi", ["I_MPI_PIN=0", "-np 4 -ppn 2 -hosts a,b -genvlist ACCEL_", ",I_MPI_PIN"]),
        ("slurm", ["srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpu-bind=none --nodelist=a,b --export=ALL"]),
    ],
)
def test_mpi_launchers_get_one_command_with_their_own_binding_switched_off(
    launcher: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("hosts").write_text("a slots=2\nb slots=2\n")
    told = dry_run(capsys, "--hostfile", "hosts", "--launcher", launcher, "--launcher_args=--own 1", "t.py", "x")
    assert f"launcher: {launcher}, 4 ranks on 2 hosts" in told
    command = next(line for line in told.splitlines() if line.startswith("command: "))
    for part in parts:
        assert part in command
    assert f" --own 1 {sys.executable} -I -S " in command
    assert '"MASTER_ADDR":"a","MASTER_PORT":"29500"' in command
    assert command.endswith(f"-- {sys.executable} -u t.py x")


def test_mpi_launchers_refuse_hosts_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    Path("hosts").write_text("a slots=2\nb slots=3\n")
    assert "use --launcher ssh" in refused(capsys, "--dry_run", "--hostfile", "hosts", "--launcher", "mpich", "t.py")
    dry_run(capsys, "--hostfile", "hosts", "--launcher", "mpich", "--num_accelerators", "2", "t.py")


def test_the_topology_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--show-topology", "--json", "--num_accelerators", "2"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["model"] == "Some CPU"
    assert [node["cpus"] for node in data["numa_nodes"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [rank["memory"] for rank in data["ranks"]] == [{"mode": "bind", "nodes": [n]} for n in (0, 1)]
    assert [rank["cpus"] for rank in data["ranks"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_topology_is_still_shown_where_the_ranks_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--show-topology", "--num_accelerators", "9"]) == 2
    told = capsys.readouterr()
    assert "socket 1" in told.out
    assert "9 ranks cannot be bound to 8 CPUs" in told.err


def test_the_picture_of_a_machine(host_files: object, capsys: pytest.CaptureFixture[str]) -> None:
    made = Made(sockets=2, cores=4, threads=2, beside=1, model="Intel(R) Xeon(R) CPU Max 9480", cpuset="1-15")
    files = host_files(made.files())  # type: ignore[operator]
    topology = read_topology(files, None)
    plan = plan_host(Host("localhost", 2, (0, 1)), BindingRequest(True), topology, {})
    picture.draw(topology, read_caches(files, topology), plan, Console(width=100, color_system=None))
    told = capsys.readouterr().out
    for part in (
        "2 sockets, 2 NUMA nodes with cores, 8 cores, 16 CPUs",
        "socket 1",
        "NUMA node 0, 64 GiB",
        "0/8 r0",
        "7/15 r1",
        "NUMA node 2, 64 GiB: high-bandwidth memory",
        "r0  CPU 1-3,8 of NUMA node 0, memory prefer 2, OMP_NUM_THREADS=4",
        "not allowed to this process (x): CPU 0",
    ):
        assert part in told, told
