"""Options in both spellings, what is refused, and what --dry_run and --show_topology print."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from accelerator.launch import command_line, plan_binding
from accelerator.launch.command_line import main
from accelerator.launch.options import parse
from accelerator.launch.rank import first_of_nodelist, read_place
from accelerator.launch.remote import commands
from op_builder import env
from tests.support.kernel_files import Made, write_files

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of the developer's decides, and the machine has two nodes of four cores."""
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("a slots=2\nb slots=2\n")
    files = write_files(tmp_path / "machine", Made(sockets=2, cores=4).files())
    monkeypatch.setattr(command_line, "HostFiles", lambda: files)
    monkeypatch.setattr("op_builder.system.cgroups.HostFiles", lambda: files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    unset = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "PYTHONPATH", "CUDA_VISIBLE_DEVICES")
    for name in (*unset, "ACCEL_TEST_CACHE", "ACCEL_CACHE_DIR", "LOCAL_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACCEL_ACCELERATOR", "cpu")
    monkeypatch.setenv("HOME", str(tmp_path))


def dry_run(capsys: Capture, *arguments: str) -> str:
    status = main(["--dry_run", *arguments])
    written = capsys.readouterr()
    assert status == 0, written.err
    return written.out


def refused(capsys: Capture, *arguments: str) -> str:
    try:
        status = main(list(arguments))
    except SystemExit as ended:
        status = ended.code
    written = capsys.readouterr()
    assert status == 2, written
    return " ".join(written.err.split())


@pytest.mark.parametrize("dash", "_-")
def test_options_have_two_spellings_and_those_of_the_program_are_kept(dash: str) -> None:
    own = f"--num{dash}accelerators 3 --bind{dash}cores{dash}to{dash}rank --master{dash}port=4000".split()
    program = ["train.py", "--num_accelerators", "7", "--", "--dry_run"]
    options = parse([*own, f"--launcher{dash}args", "-p 2222", *program])
    assert (options.num_accelerators, options.bind_cores_to_rank, options.master_port) == (3, True, 4000)
    assert options.launcher_args == ["-p", "2222"]
    assert options.program == program
    assert options.dry_run is False
    assert parse(["--no_python", "--", "-odd-program", "-x"]).program == ["-odd-program", "-x"]
    assert parse(["--num_gpus", "2", "--nnodes", "1", "x.py"]).num_accelerators == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "no script was given"),
        ("--bind_core_to_rank x.py", "unknown option --bind_core_to_rank. Did you mean --bind_cores_to_rank"),
        ("--num_accelerators 0 x.py", "expected a whole number of at least 1, or -1 for all, not '0'"),
        ("--master_port 70000 x.py", "expected a port, 1 to 65535, not '70000'"),
        ("--grace_period nan x.py", "expected a number of seconds, not 'nan'"),
        (f"{'y' * 300}.py", "Script yyy"),  # the system refuses the name
        ("y.py", "Script y.py does not exist. Remedy: Correct its path, or add --module for a module"),
        ("--log_dir hosts/logs x.py", "hosts/logs cannot be created on "),
        ("--launcher pdsh --launcher_args=-f8 x.py", "use --launcher ssh, with ssh's options in --launcher_args"),
        ("--save-pid x.py", "--save-pid is not supported: no file is written; the process that you start is"),
        ("--autotuning run x.py", "run DeepSpeed's own command"),
        ("--elastic_training x.py", "use --max_restarts"),
        ("--no_ssh --launcher ssh x.py", "--no_ssh and --launcher cannot be used together"),
        ("--no_ssh --node_rank 2 --hostfile hosts x.py", "--node_rank 2: the hostfile has 2 hosts"),
        ("--no_ssh --node_rank 1 --hostfile local x.py", "or add --master_addr"),
        ("--ssh_port 22 --launcher openmpi x.py", "Set the port in ~/.ssh/config"),
        ("--venv_script a --hostfile hosts --launcher slurm x.py", "activate the environment before you start"),
        ("--module --no_python x", "cannot be used together"),
        ("--json x.py", "--format json requires --show_topology"),
        ("--node_rank 2 --num_nodes 2 x.py", "expected at most 1"),
        ("--launcher_args ' x.py", "argument --launcher_args: invalid"),
        ("--hostfile hosts --launcher torchrun x.py", "the hostfile names others"),
        ("--num_nodes 2 x.py", "Add --master_addr"),
        ("--num_nodes 2 --master_addr=-V x.py", "--master_addr '-V' is not a host"),
        ("--bind_core_list 0- --launcher ssh x.py", "expected numbers and ranges of CPUs"),
        ("--num_nodes 2 --launcher ssh x.py", "--launcher ssh requires a hostfile"),
        ("--max_restarts 1 --launcher openmpi x.py", "only torchrun and ssh do"),
        ("--num_nodes 2 --node_rank 1 --hostfile hosts x.py", "numbers the hosts itself. Remedy: Remove --node_rank"),
        ("--dry_run --hostfile local x.py", "or add --master_addr"),
        ("--dry_run --hostfile unequal --launcher mpich x.py", "use --launcher ssh"),
    ],
)
def test_impossible_requests_are_refused_before_anything_starts(
    arguments: str, message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_a, **_k: pytest.fail("something was started"))
    Path("local").write_text("localhost slots=1\nb slots=1\n")
    Path("unequal").write_text("a slots=2\nb slots=3\n")
    Path("x.py").touch()
    assert message in refused(capsys, *arguments.split())


def test_more_accelerators_than_a_device_has_are_refused(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerator.cpu_accelerator.CPU_Accelerator.device_name", lambda _self, _index=None: "acme")
    monkeypatch.setattr("accelerator.cpu_accelerator.CPU_Accelerator.device_count", lambda _self: 2)
    assert "--num_accelerators 3: this host has 2 (acme)" in refused(capsys, "--num_accelerators", "3", "x.py")


def test_a_dry_run_prints_bindings_variables_and_the_command(capsys: Capture) -> None:
    Path(".accel_env").write_text("GLOO_SOCKET_IFNAME=eth0\n")
    written = dry_run(capsys, "--bind-cores-to-rank", "train.py", "--lr", "$1 x")
    assert f"command of each rank: {sys.executable} -u train.py --lr '$1 x'" in written
    assert "local rank 0: CPU 0-3 of NUMA node 0, memory bind 0, OMP_NUM_THREADS=4 MKL_NUM_THREADS=4" in written
    assert "local rank 1: CPU 4-7 of NUMA node 1, memory bind 1, OMP_NUM_THREADS=4 MKL_NUM_THREADS=4" in written
    assert f"started as: {sys.executable} -I -S " in written
    assert "environment of all ranks: GLOO_SOCKET_IFNAME=eth0 CUDA_VISIBLE_DEVICES=0,1 LOCAL_SIZE=2" in written
    listed = dry_run(capsys, "--bind_core_list", "1-3,5-6", "train.py")
    assert "local rank 0: CPU 1-2 of NUMA node 0" in listed
    assert "local rank 1: CPU 5-6 of NUMA node 1" in listed
    assert "-u -m train.py a" in dry_run(capsys, "--module", "train.py", "a")
    assert "rank: train.py a" in dry_run(capsys, "--no_python", "train.py", "a")


def test_a_user_without_a_home_directory_can_launch(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 0x7FFFFFF0)
    Path(".accel_env").write_text("NAME=value\n")
    written = dry_run(capsys, "train.py")
    assert "NAME=value" in written
    assert "no rank is bound" in written


def test_the_default_is_one_rank_per_numa_node_with_allowed_cores(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "for 2 of 2 ranks" in dry_run(capsys, "train.py")
    with monkeypatch.context() as masked:
        masked.setattr(os, "sched_getaffinity", lambda _pid: {5, 7})
        assert "for 1 of 1 rank " in dry_run(capsys, "train.py")
    write_files(tmp_path / "machine", Made(sockets=5, cores=2).files())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(10)))
    assert "for 5 of 5 ranks" in dry_run(capsys, "train.py")
    assert "for 2 of 2 ranks" in dry_run(capsys, "--num_accelerators", "2", "train.py")
    assert "CUDA_VISIBLE_DEVICES=1,4 LOCAL_SIZE=2" in dry_run(capsys, "--include", "localhost:1,4", "train.py")


def test_each_host_gets_a_command_by_ssh(capsys: Capture, tmp_path: Path) -> None:
    Path("hosts").write_text("a slots=4\nme@b slots=2\n")
    options = ["--hostfile", "hosts", "--exclude", "a:1,3", "--launcher_args=-p 22", "--bind_cores_to_rank"]
    written = dry_run(capsys, *options, "t.py")
    assert "launcher: ssh, 4 ranks on 2 hosts\nrendezvous: a port 29500\n" in written
    for number, name, chosen in ((0, "a", "0,2"), (1, "me@b", "0,1")):
        start = f"host {number}, {name}, slots {chosen}: ssh -p 22 -o BatchMode=yes -- {name} 'cd {tmp_path} && exec "
        assert start + f"{sys.executable} -I -S " in written
        assert f"{name}: on a host like this one, environment of all ranks: CUDA_VISIBLE_DEVICES={chosen} " in written
    assert "variables, by ssh's standard input: " in written
    assert "by ssh's standard input" not in dry_run(capsys, "--launcher", "ssh", "--num_accelerators", "1", "t.py")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("-H hosts -i a:1@b", "--hostfile hosts --include a:1@b"),
        ("-H hosts -e b:0", "--hostfile hosts --exclude b:0"),
        ("-H hosts -i a:1@a:0@b:1", "--hostfile hosts --include a:0,1@b:1"),
        ("-H hosts --launcher PDSH", "--hostfile hosts --launcher ssh"),
        ("-H hosts --launcher mvapich", "--hostfile hosts --launcher mpich"),
        ("-H hosts --ssh_port 2222", "--hostfile hosts --launcher_args='-p 2222'"),
        ("-H hosts --no_ssh_check --no_local_rank", "--hostfile hosts"),
        ("-H hosts --num_gpus -1 --num_nodes=-1", "--hostfile hosts"),
        ("--num_gpus -1 --num_nodes -1", ""),
        ("-H hosts --enable_each_rank_log logs", "--hostfile hosts --log_dir logs"),
        ("-H hosts --enable_each_rank_log None --node_rank -1", "--hostfile hosts"),
        ("--num_gpus 2 --force_multi", "--num_accelerators 2 --launcher ssh"),
        ("-H hosts --no_ssh --node_rank 1", "--num_accelerators 2 --num_nodes 2 --node_rank 1 --master_addr a"),
        ("--num_gpus 2 --venv_script x --ssh_port 2", "--num_accelerators 2"),
    ],
)
def test_options_of_deepspeeds_command_mean_the_same(theirs: str, ours: str, capsys: Capture) -> None:
    found, expected = (
        re.sub(r"[0-9a-f]{32}", "ID", dry_run(capsys, *shlex.split(options), "t.py")) for options in (theirs, ours)
    )
    assert found == expected


def test_the_help_lists_each_option_in_one_spelling(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = capsys.readouterr().out
    assert all(f"{option} " in text for option in ("--bind_cores_to_rank", "--no_local_rank", "--no_ssh_check"))
    assert not re.search("--bind-cores|--nproc", text)


@pytest.mark.parametrize(
    ("options", "levels"),
    [([], ("info", "warning")), (["--log_level", "warning"], ("warning",)), (["-q"], ()), (["--quiet"], ())],
)
def test_the_log_level_selects_messages(
    options: list[str], levels: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run: list[tuple[str, ...]] = []
    monkeypatch.setattr("accelerator.launch.torchrun.run", lambda job: run.append(job.program) or 0)
    Path(".accel_env").write_text("OMP_NUM_THREADS=64\n")
    assert main([*options, "--bind_cores_to_rank", "-"]) == 0
    assert run == [(sys.executable, "-u", "-")], "a script may be read from standard input"
    written = capfd.readouterr().err
    assert ("Read environment variables from" in written) == ("info" in levels)
    assert ("local rank 1: CPU 4-7" in written) == ("info" in levels)
    assert ("OMP_NUM_THREADS=64 is more than" in written) == ("warning" in levels)


@pytest.mark.parametrize("launcher", ["ssh", "slurm"])  # the others run in test_launch.py
def test_command_lines_contain_no_values_of_variables(launcher: str) -> None:
    Path(".accel_env").write_text("TOKEN='of the file'\n")
    with env.scope(PYTHONPATH="/of the shell", OTHER="of no concern"):
        job = command_line.make_job(parse(["--hostfile", "hosts", "--launcher", launcher, "t.py"]))
    for command in commands(job, Path.cwd()):
        assert not [word for word in command.command if "of the" in word]
        sent = command.variables if command.sent is None else command.sent
        assert sent["TOKEN"] == "of the file"
        assert sent.get("PYTHONPATH") == ("/of the shell" if launcher == "ssh" else None)
        assert "OTHER" not in str(command)


@pytest.mark.parametrize("launcher", ["mpich", "impi"])
def test_the_users_option_for_hydras_variables_replaces_ours(launcher: str, capsys: Capture) -> None:
    for own in ("-genvall", "-genvlist A,B", "-genvnone"):
        written = dry_run(capsys, "--launcher", launcher, f"--launcher_args={own}", "t.py")
        assert written.count("-genv") == 1
        assert f" {own} " in written


@pytest.mark.parametrize(
    ("launcher", "parts"),
    [
        ("openmpi", ["-np 4 --map-by ppr:2:node --bind-to none --host a:2,b:2", "-x ACCEL_ACCELERATOR"]),
        ("mpich", ["-np 4 -ppn 2 -bind-to none -hosts a,b -genvlist ACCEL_"]),
        ("impi", ["I_MPI_PIN=0", "-np 4 -ppn 2 -hosts a,b -genvlist ACCEL_", ",I_MPI_PIN"]),
        ("slurm", ["srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpu-bind=none --nodelist=a,b --export=ALL"]),
    ],
)
def test_mpi_launchers_get_one_command_with_their_binding_disabled(
    launcher: str, parts: list[str], capsys: Capture
) -> None:
    written = dry_run(capsys, "--hostfile", "hosts", "--launcher", launcher, "--launcher_args=--own 1", "t.py", "x")
    assert f"launcher: {launcher}, 4 ranks on 2 hosts" in written
    command = next(line for line in written.splitlines() if line.startswith("command: "))
    for part in [*parts, f" --own 1 {sys.executable} -I -S ", '"master_addr":"a"']:
        assert part in command
    assert command.endswith(f" 2 {sys.executable} -u t.py x")


def test_the_rank_and_the_first_host_are_read_from_the_launchers_variables() -> None:
    hydra = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    assert read_place("impi", hydra) == {"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}
    with pytest.raises(ValueError, match="OMPI_COMM_WORLD_RANK"):
        read_place("openmpi", hydra)
    lists = ("node07", "node[07-09,12],gpu1", "n[1-2]-ib", "rack[0,2]n[01,03]-ib,login[1-2]", "")
    assert [*map(first_of_nodelist, lists)] == ["node07", "node07", "n1-ib", "rack0n01-ib", ""]


def test_the_topology_and_the_bindings_as_data_and_for_other_launchers(capsys: Capture) -> None:
    def written(output: str) -> str:
        assert main(["--show-topology", "--format", output, "--num_accelerators", "2"]) == 0
        return capsys.readouterr().out

    data = json.loads(written("json"))
    assert (data["model"], data["allowed_cpus"]) == ("Some CPU", list(range(8)))
    assert [node["cpus"] for node in data["numa_nodes"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [rank["memory"] for rank in data["ranks"]] == [{"mode": "bind", "nodes": [n]} for n in (0, 1)]
    assert [rank["cpus"] for rank in data["ranks"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert main(["--show-topology", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == data
    assert written("taskset") == "taskset --cpu-list 0-3\ntaskset --cpu-list 4-7\n"
    assert written("vllm") == "VLLM_CPU_OMP_THREADS_BIND=0-3|4-7\n"


def test_a_program_gets_the_bindings() -> None:
    first, second = plan_binding(2)
    assert (first.cpus, second.cpus) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert (first.numa_nodes, first.memory.mode, first.memory.nodes) == ((0,), "bind", (0,))
    assert [binding.cpus for binding in plan_binding(2, "2-5")] == [(2, 3), (4, 5)]
    assert [binding.cpus for binding in plan_binding(1, {7, 6})] == [(6, 7)]


@pytest.mark.parametrize(
    ("ranks", "cpus", "message"),
    [
        (0, None, "plan_binding: ranks is 0"),
        (True, None, "plan_binding: ranks is True"),
        (9, None, "9 ranks cannot be bound to 8 CPUs (0-7)"),
        (1, ["0"], "plan_binding: cpus is ['0']"),
        (1, {99999}, "this process may not use: 99999"),
        (1, "3-5,7-9", "this process may not use: 8-9; it may use 0-7"),
        (1, set(), "1 ranks cannot be bound to 0 CPUs"),
        *(
            (1, text, "expected numbers and ranges of CPUs, such as 0-51,56-107")
            for text in ("", "a", "4-", "1-0", "0;1")
        ),
    ],
)
def test_bindings_that_are_impossible_are_value_errors(ranks: Any, cpus: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        plan_binding(ranks, cpus)


def test_the_drawing_of_a_machine(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(sockets=2, cores=4, threads=2, memory_only=1, model="Intel(R) Xeon(R) CPU Max 9480", cpuset="1-15")
    write_files(tmp_path / "machine", made.files())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    assert main(["--show-topology", "--num_accelerators", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Intel(R) Xeon(R) CPU Max 9480, 2 sockets, 2 NUMA nodes with cores, 8 cores, 16 CPUs",
        "  socket 0, NUMA node 0, 64 GiB: 4 cores, CPU 0-3,8-11",
        "  socket 1, NUMA node 1, 64 GiB: 4 cores, CPU 4-7,12-15",
        "  NUMA node 2, 64 GiB: high-bandwidth memory",
        "  NUMA node 3, 64 GiB: high-bandwidth memory",
        "With --bind_cores_to_rank, 2 ranks would get:",
        "  r0  CPU 1-3,8 of NUMA node 0, memory prefer 2, OMP_NUM_THREADS=4 MKL_NUM_THREADS=4",
        "  r1  CPU 4-7 of NUMA node 1, memory prefer 3, OMP_NUM_THREADS=4 MKL_NUM_THREADS=4",
        "  free: CPU 9-15",
        "  not allowed to this process: CPU 0",
    ]


def test_the_launcher_of_each_host_gets_the_whole_job(tmp_path: Path) -> None:
    Path("hosts").write_text("localhost slots=2\nb slots=2\n")
    options = ["--hostfile", "hosts", "--master_addr", "10.0.0.1", "--max_restarts", "2", "--bind_core_list", "0-5"]
    job = command_line.make_job(parse([*options, "t.py"]))
    here, there = commands(job, tmp_path)
    passed = command_line.make_job(parse(here.command[2:]))
    assert (passed.node_rank, passed.num_nodes, passed.master_addr) == (0, 2, "10.0.0.1")
    assert (passed.bind, passed.core_list, passed.max_restarts, passed.launch) == (True, "0-5", 2, job.launch)
    assert there.command[0] == "ssh"
