"""What ranks find in their environment: files, forwarded variables, devices, threads, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from accelerator.errors import LaunchError
from accelerator.launch.hosts import Host, host_of
from accelerator.launch.job import Job
from accelerator.launch.plan import HostPlan, forwarded, plan_host, read_environment_files, visible_devices
from accelerator.launch.topology import Core, Node, Topology
from tests.support.processes import fork, wait_for

TWO_NODES = Topology(
    cores=tuple(Core((cpu,), cpu // 4) for cpu in range(8)),
    numa_nodes=tuple(Node(n, frozenset(range(4 * n, 4 * n + 4)), 1 << 30, {n: 10, 1 - n: 21}) for n in (0, 1)),
    allowed_cpus=frozenset(range(8)),
    allowed_memory=None,
    quota_cores=None,
    model="Some CPU",
)
TWO_RANKS = host_of("localhost", 2)
VISIBLE = ["HABANA_VISIBLE_MODULES", "CUDA_VISIBLE_DEVICES"]


def plan(given: Mapping[str, str], *, bind: bool = True, host: Host = TWO_RANKS) -> HostPlan:
    return plan_host(Job((), (host,), bind=bind), host, TWO_NODES, given)


def test_later_files_override_earlier_ones_and_missing_ones_are_skipped(tmp_path: Path) -> None:
    texts = (("home", "A=1\nB=1\n"), ("here", "# ours\n\nB=2\n C='x y' \nD=a=b\nE=\nexport F = \"g\"\nH\t=  i\r\n"))
    for name, text in texts:
        (tmp_path / name).mkdir()
        (tmp_path / name / ".accel_env").write_text(text)
    found, notes = read_environment_files([tmp_path / "home", tmp_path / "nowhere", tmp_path / "here"])
    assert found == {"A": "1", "B": "2", "C": "x y", "D": "a=b", "E": "", "F": "g", "H": "i"}
    files = (tmp_path / name / ".accel_env" for name in ("home", "here"))
    assert notes == [("info", f"Read environment variables from {file}") for file in files]


def test_a_file_for_deepspeed_alone_is_named(tmp_path: Path) -> None:
    theirs = tmp_path / ".deepspeed_env"
    theirs.write_text("A=1\n")
    found, notes = read_environment_files([tmp_path])
    assert (found, notes) == ({}, [("warning", f"Warning: {theirs} is not read. Remedy: Name it .accel_env.")])
    (tmp_path / ".accel_env").write_text("B=1\n")
    found, notes = read_environment_files([tmp_path])
    assert (found, [level for level, _ in notes]) == ({"B": "1"}, ["info"])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda file: file.parent.chmod(0o1777), "other users may write {directory}"),
        (lambda file: file.chmod(0o664), "other users may write {file}"),
        (lambda file: os.chown(file, 12345, -1), "{file} belongs to another user"),
        (lambda file: os.chown(file.parent, 12345, -1), "{directory} belongs to another user"),
    ],
)
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_file_that_another_user_can_have_written_is_ignored(
    spoil: Callable[[Path], object], reason: str, is_linked: bool, tmp_path: Path
) -> None:
    (tmp_path / "place").mkdir()
    file = tmp_path / "place" / ".accel_env"
    file.write_text("PYTHONPATH=/theirs\nnot an assignment")
    try:
        spoil(file)
    except PermissionError:
        pytest.skip("only root can give files to other users")
    directory, named = file.parent, file
    if is_linked:
        directory, named = tmp_path, tmp_path / ".accel_env"
        named.symlink_to(file)
    variables, notes = read_environment_files([directory])
    ((_, note),) = notes
    assert variables == {}
    assert note.startswith(f"Warning: ignored {named} (")
    assert reason.format(directory=file.parent, file=named) in note
    assert "chmod go-w" in note


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".accel_env")
    variables, notes = read_environment_files([tmp_path])
    assert variables == {}
    assert "it is not a regular file). Remedy: Replace" in notes[0][1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_home_that_cannot_be_searched_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the directories above cannot be searched, either
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / ".accel_env").write_text("A=1\n")

    def become() -> None:
        os.setuid(54321)
        assert read_environment_files([Path("home")]) == ({}, [])

    assert wait_for([fork(become)]) == [0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NAME=Zoë\n".encode("utf-8-sig"), {"NAME": "Zoë".encode()}),
        (b"# Zo\xeb's\nNAME=Zo\xeb\n", {"NAME": b"Zo\xeb"}),
        (b"SEPARATOR=a\x1cb\xe2\x80\xa8c\n", {"SEPARATOR": b"a\x1cb\xe2\x80\xa8c"}),  # only newlines end a line
    ],
)
def test_a_file_may_have_any_encoding_and_bytes_reach_the_ranks_unchanged(
    text: bytes, expected: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / ".accel_env").write_bytes(text)
    found, _ = read_environment_files([tmp_path])
    assert {name: os.fsencode(value) for name, value in found.items()} == expected


@pytest.mark.parametrize("line", ["export s3cret", "s3cret", "A B = s3cret", "1A=s3cret", "=s3cret", "s3/cret=="])
def test_an_invalid_line_is_reported_without_its_text(line: str, tmp_path: Path) -> None:
    (tmp_path / ".accel_env").write_text(f"OK=1\n{line}\n")
    with pytest.raises(LaunchError, match=r"\.accel_env:2: expected NAME=VALUE") as refused:
        read_environment_files([tmp_path])
    assert "s3" not in str(refused.value).partition(".accel_env")[2]


@pytest.mark.parametrize(
    ("prefixes", "launcher", "expected"),
    [
        ([], "ssh", "ACCEL_CACHE_DIR FI_PROVIDER PYTHONPATH"),
        (["NCCL", "CUDA_"], "ssh", "ACCEL_CACHE_DIR CUDA_LAUNCH_BLOCKING FI_PROVIDER NCCL_DEBUG PYTHONPATH"),
        ([], "mpich", "ACCEL_CACHE_DIR FI_PROVIDER MPICH_X PYTHONPATH"),
        ([], "impi", "ACCEL_CACHE_DIR FI_PROVIDER I_MPI_FABRICS PYTHONPATH"),
    ],
)
def test_variables_are_forwarded_by_prefix_except_visible_devices(
    prefixes: list[str], launcher: str, expected: str
) -> None:
    names = "NCCL_DEBUG PYTHONPATH HOME ACCEL_CACHE_DIR ASCEND CUDA_LAUNCH_BLOCKING I_MPI_FABRICS MPICH_X FI_PROVIDER"
    variables = dict.fromkeys([*names.split(), "I_MPI", *VISIBLE], "1")
    assert list(forwarded(variables, prefixes, VISIBLE, launcher)) == expected.split()


@pytest.mark.parametrize(
    ("given", "slots", "expected"),
    [
        (None, (0, 1), "0,1"),
        (None, (2,), "2"),
        ("4, 5", (1,), "5"),
        ("GPU-a, GPU-b", (1,), "GPU-b"),
        ("4,5", (0, 1, 2), "4,5"),
        ("0,-1,2", (0, 2), "0"),
        *((hidden, (0,), None) for hidden in ("", " ", "-1")),
        ("4", (1,), None),
        ("4,4", (0, 1), None),
        ("4,5,4", (0,), None),
        ("4,-1,4", (0,), "4"),
        ("4gpu,5 a", (1,), "5"),
        ("4,GPU-a", (0, 1), "4"),
        ("GPU-a,GPU-b,4", (1, 2), "GPU-b"),
        ("GPU-a,GPU-a", (0,), None),
        ("GPU-a,MIG-b", (0, 1), "GPU-a"),
        ("none", (0,), None),
    ],
)
@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "HIP_VISIBLE_DEVICES"])
def test_slots_index_the_visible_devices_and_never_show_hidden_ones(
    name: str, given: str | None, slots: tuple[int, ...], expected: str | None
) -> None:
    indices = ",".join(map(str, slots))
    if given is None and name.startswith("HIP"):
        expected = None  # only ROCm reads it
    found = visible_devices(VISIBLE, {} if given is None else {name: given}, slots)
    assert found.pop(name, None) == expected
    assert found == {other: indices for other in VISIBLE if other != name}


def test_slots_index_the_devices_that_rocr_leaves() -> None:
    found = visible_devices(["CUDA_VISIBLE_DEVICES"], {"ROCR_VISIBLE_DEVICES": "4,5"}, (1,))
    assert found == {"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}


def test_slots_that_are_not_chosen_keep_their_cores() -> None:
    bound = plan({}, host=Host("localhost", 4, (1, 3)))
    assert [binding.cpus for binding in bound.bindings] == [(2, 3), (6, 7)]
    assert bound.variables["LOCAL_SIZE"] == "2"


def test_unbound_ranks_share_the_cores() -> None:
    unbound = plan({}, bind=False)
    assert unbound.bindings == ()
    assert (
        unbound.variables == plan({}).variables == {"LOCAL_SIZE": "2", "OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}
    )
    assert unbound.lines() == ["2 unbound ranks, OMP_NUM_THREADS=4 MKL_NUM_THREADS=4 for each"]


@pytest.mark.parametrize("bind", [True, False])
def test_the_users_own_threads_are_kept_with_a_note_if_too_many(bind: bool) -> None:
    kept = plan({"OMP_NUM_THREADS": "8"}, bind=bind)
    assert "OMP_NUM_THREADS" not in kept.variables
    assert kept.notes[0].startswith("OMP_NUM_THREADS=8 is more than the 4 cores of a rank")
    assert plan({"OMP_NUM_THREADS": "2"}, bind=bind).notes == ()


@pytest.mark.parametrize(
    ("name", "value", "is_refused"),
    [
        ("KMP_AFFINITY", "granularity=fine,proclist=[0-3],explicit", True),
        ("KMP_AFFINITY", "norespect,compact", True),
        ("KMP_AFFINITY", "granularity=fine,compact,1,0", False),
        ("KMP_HW_SUBSET", "1s,4c", True),
        ("GOMP_CPU_AFFINITY", "0-3", True),
        ("OMP_PLACES", "{0}:4", True),
        ("OMP_PLACES", "0:4", True),
        ("OMP_PLACES", "cores(4)", False),
        ("OMP_PLACES", "", False),
    ],
)
def test_settings_that_bind_all_ranks_to_the_same_cpus_are_refused(name: str, value: str, is_refused: bool) -> None:
    plan({name: value}, bind=False)
    message = rf"{name}=.* incompatible with --bind_cores_to_rank: it [\s\S]*Unset {name}"
    with pytest.raises(LaunchError, match=message) if is_refused else nullcontext():
        plan({name: value})
