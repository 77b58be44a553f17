"""DeepSpeed as a client: nothing changes while accel-ops is only installed, and one line switches it."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _peers
from tests.support import environments
from tests.support.environments import ROOT
from tests.support.launching import free_port

pytestmark = pytest.mark.slow

SUPPORT = ROOT / "tests" / "support"
# 1 also runs DeepSpeed's own op for NVMe, which compiles for minutes, and more places of memory.
IS_BROAD = os.environ.get("ACCEL_TEST_DEEPSPEED") == "1"
# Relative, of a loss after at most 25 steps of Adam. Both sides compute in float32 in another order; a parameter of
# bfloat16 that is rounded the other way moves a loss by more.
BOUNDS = {"fp32": 1e-4, "bf16": 2e-2}


@pytest.fixture(scope="session")
def python() -> Path:
    """An interpreter with DeepSpeed and without accel-ops."""
    directory = _peers.peer_directory(_peers.DEEPSPEED[0])
    if not (directory / "ready").exists():
        pytest.skip(f"{_peers.DEEPSPEED[0]} is not installed in {directory}; the benchmarks install it")
    _peers.see_packages(directory)  # another checkout may have made it
    return directory / "bin" / "python"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory of installed packages that has accel-ops."""
    site = tmp_path_factory.mktemp("site")
    for package in ("accelerator", "op_builder", "csrc", "kernels_sycl"):
        (site / package).symlink_to(ROOT / package)
    return str(site)


def printed(python: Path, *command: str | Path, **variables: str | None) -> dict[str, Any]:
    """The JSON object that a program prints."""
    lines = environments.run(python, "-W", "ignore", *command, cwd=Path("/"), **variables).splitlines()
    return dict(json.loads([line for line in lines if line.startswith("{")][-1]))


@pytest.mark.parametrize(
    ("name", "pretended", "works"),
    [
        *[("cpu", (), True), ("cuda", (), True), ("xpu", ("xpu",), True)],
        *[("xpu", (), False), ("npu", (), False), ("unknown", (), False)],
    ],
)
def test_deepspeed_behaves_as_without_accel_ops(
    python: Path, installed: str, name: str, pretended: tuple[str, ...], works: bool
) -> None:
    """Without the device, DeepSpeed's own error comes out of its import."""
    variables = {"DS_ACCELERATOR": name, "ACCEL_ACCELERATOR": None}
    alone = printed(python, SUPPORT / "deepspeed_facts.py", *pretended, **variables)
    assert ("compatible" in alone, "import" in alone) == (works, not works)
    assert printed(python, SUPPORT / "deepspeed_facts.py", *pretended, PYTHONPATH=installed, **variables) == alone


def test_the_page_lists_what_deepspeed_has(python: Path, installed: str) -> None:
    variables = {"DS_ACCELERATOR": "cpu", "ACCEL_ACCELERATOR": None, "PYTHONPATH": installed}
    accelerators, builders = printed(python, SUPPORT / "deepspeed_switched.py", "lists", **variables).values()
    page = (ROOT / "docs" / "porting_deepspeed.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+Builder)` \| ([^|]*[^| ]) \|", page, re.MULTILINE))
    others = {"FlashAttentionBuilder", "NotImplementedBuilder", "PackbitsBuilder", "SparseAttnBuilder"}  # not for CUDA
    assert set(rows) == {*builders, *others}
    for name, (package, is_compatible) in builders.items():
        assert package == ("deepspeed_on_accel_ops" if rows[name].startswith("engine: ") else "op_builder"), name
        assert is_compatible is (package == "op_builder") or name == "CCLCommBuilder", name
    table = page[page.index("| accelerator |") :].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == set(accelerators)


def test_the_reports_of_both_sides_agree(python: Path, installed: str) -> None:
    variables = {"DS_ACCELERATOR": "cpu", "ACCEL_ACCELERATOR": "cpu", "PYTHONPATH": installed}
    theirs, ours = printed(python, SUPPORT / "deepspeed_switched.py", "reports", **variables).values()
    common = theirs.keys() & ours.keys()
    assert {"cpu_adam", "async_io", "fused_adam"} <= common
    assert {name: theirs[name] for name in common} == {name: ours[name] for name in common}


def train(python: Path, how: str, ranks: int, runs: list[dict[str, Any]], site: str | None = None) -> list[Any]:
    """What each rank of tests/support/deepspeed_training.py prints."""
    variables = {
        "PYTHONPATH": site,
        "ACCEL_ACCELERATOR": None,
        "DS_ACCELERATOR": "cpu",
        "ACCEL_DEEPSPEED": "1" if how == "variable" else None,
        "TORCH_EXTENSIONS_DIR": str(_peers.peer_directory(_peers.DEEPSPEED[0]) / "ops"),
        "OMP_NUM_THREADS": "1",
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_SIZE"), str(ranks)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }

    def rank_prints(rank: str) -> dict[str, Any]:
        command = (SUPPORT / "deepspeed_training.py", how, json.dumps(runs))
        return printed(python, *command, RANK=rank, LOCAL_RANK=rank, **variables)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(rank_prints, map(str, range(ranks))))


def matrix() -> list[dict[str, Any]]:
    """ZeRO's stages, types and places of memory."""
    places: list[dict[str, Any]] = [{"stage": 0}, {"stage": 1, "optimizer": "cpu"}]
    places += [{"stage": 3, "optimizer": where, "parameters": where} for where in ("cpu", "nvme")]
    if IS_BROAD:
        places += [{"stage": 1, "optimizer": "none"}, *({"stage": 2, "optimizer": where} for where in ("none", "cpu"))]
        places += [{"stage": 3, "optimizer": where, "parameters": "none"} for where in ("none", "nvme")]
        places += [{"stage": 3, "optimizer": "cpu", "parameters": "nvme"}]
    runs = [{**place, "dtype": dtype} for place in places for dtype in ("fp32", "bf16")]
    return [*runs, {"stage": 2, "dtype": "bf16", "optimizer": "cpu", "zenflow": True}]


# Stage, type, place of optimizer states; the tests take minutes if all are loaded.
LOADED = [(0, "fp32", None), (1, "bf16", "cpu"), (3, "fp32", "cpu")]


def with_files(runs: list[dict[str, Any]], directory: Path) -> list[dict[str, Any]]:
    """The runs with a directory for NVMe memory, or with one for a checkpoint."""
    directory.mkdir()
    named = [(run, str(directory / str(index))) for index, run in enumerate(runs)]
    return [{**run, "nvme" if uses_nvme(run) else "save": name} for run, name in named]


def uses_nvme(run: dict[str, Any]) -> bool:
    return "nvme" in (run.get("optimizer"), run.get("parameters"))


def to_universal(python: Path, checkpoint: Path) -> str:
    """Convert a checkpoint; the result's directory."""
    made = checkpoint.with_name(f"{checkpoint.name}-universal")
    tag = (checkpoint / "latest").read_text()
    places = ("--input_folder", checkpoint / tag, "--output_folder", made / tag)
    command = ("-W", "ignore", "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state", *places)
    environments.run(python, *command, cwd=Path("/"), DS_ACCELERATOR="cpu", ACCEL_ACCELERATOR=None)
    return str(made)


def loads_of(python: Path, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs that go on from the checkpoints of ``runs``, the last one from a universal checkpoint."""
    saved = [run for run in runs if "save" in run and "zenflow" not in run]
    saved = [run for run in saved if (run["stage"], run["dtype"], run.get("optimizer")) in LOADED]
    made = [{**run, "load": run["save"]} for run in saved]
    (last,) = (run for run in saved if run["dtype"] == "bf16")
    made.append({**last, "load": to_universal(python, Path(last["save"])), "universal": True})
    return [{key: value for key, value in run.items() if key != "save"} for run in made]


def check_losses(runs: list[dict[str, Any]], found: list[Any], own_runs: list[dict[str, Any]], own: list[Any]) -> None:
    """Compare the losses of each rank with those of DeepSpeed's own run of the same kind."""

    def kind(run: dict[str, Any]) -> tuple[Any, ...]:
        return (run["stage"], run["dtype"], run.get("optimizer", "none") == "none", "zenflow" in run)

    for rank, own_rank in zip(found, own, strict=True):
        expected = {kind(run): losses for run, losses in zip(own_runs, own_rank["losses"], strict=True)}
        for run, losses in zip(runs, rank["losses"], strict=True):
            right = expected[kind(run)][-len(losses) :]
            # After a second selection of columns ZenFlow's own losses depend on timing.
            compared = slice(11 if "zenflow" in run else None)
            assert losses[compared] == pytest.approx(right[compared], rel=BOUNDS[run["dtype"]]), run


def check_switched(ranks: list[Any]) -> None:
    """DeepSpeed used this library, and its all-reduce this library's kernel."""
    for rank in ranks:
        assert (rank["accelerator"], rank["adam"]) == ("accelerator.cpu_accelerator", "op_builder.cpu")
        total = len(ranks) * (len(ranks) + 1) / 2
        # One sum for each type on this library's kernel, and one after off() on torch's.
        assert (rank["sums"], rank["sum_after_off"]) == ([total] * 3, total)
        assert rank["calls"] == ([1000] * 3 if len(ranks) > 1 else [])
        assert rank["accelerator_after_off"] == "deepspeed.accelerator.cpu_accelerator"


def test_two_ranks_train_as_with_deepspeeds_own_ops(python: Path, installed: str, tmp_path: Path) -> None:
    """Every configuration, and checkpoints that one side saves and the other loads."""
    # Where memory is does not change the arithmetic, and DeepSpeed's op for NVMe compiles for minutes.
    own_runs = with_files([run for run in matrix() if IS_BROAD or not uses_nvme(run)], tmp_path / "own")
    own = train(python, "own", 2, own_runs)
    assert {rank["accelerator"] for rank in own} == {"deepspeed.accelerator.cpu_accelerator"}
    our_runs = with_files(matrix(), tmp_path / "ours")
    their_checkpoints = loads_of(python, own_runs)
    ours = train(python, "before", 2, our_runs + their_checkpoints, installed)
    check_switched(ours)
    check_losses(our_runs + their_checkpoints, ours, own_runs, own)
    our_checkpoints = loads_of(python, our_runs)
    check_losses(our_checkpoints, train(python, "own", 2, our_checkpoints), own_runs, own)


def test_one_rank_trains_as_with_deepspeeds_own_ops(python: Path, installed: str, tmp_path: Path) -> None:
    kinds = [run for run in matrix() if IS_BROAD or "zenflow" in run or (run["stage"] in (1, 3) and not uses_nvme(run))]
    own_runs = with_files(kinds, tmp_path / "own")
    own = train(python, "own", 1, own_runs)
    for how, chosen in (("variable", kinds), ("after", kinds[:1])):
        runs = with_files(chosen, tmp_path / how)
        ours = train(python, how, 1, runs, installed)
        check_switched(ours)
        check_losses(runs, ours, own_runs, own)


def test_trainer_and_accelerate_train_as_with_deepspeeds_own_ops(python: Path, installed: str, tmp_path: Path) -> None:
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    one_rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    one_rank |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    one_rank |= {"TORCH_EXTENSIONS_DIR": str(_peers.peer_directory(_peers.DEEPSPEED[0]) / "ops")}
    variables: dict[str, str | None] = {**one_rank, "ACCEL_ACCELERATOR": None}
    program = SUPPORT / "deepspeed_frameworks.py"
    own = printed(python, program, str(tmp_path / "own"), **variables)
    ours = printed(python, program, str(tmp_path / "ours"), ACCEL_DEEPSPEED="1", PYTHONPATH=installed, **variables)
    assert (own["accelerator"], own["adam"].partition(".")[0]) == ("deepspeed.accelerator.cpu_accelerator", "deepspeed")
    assert (ours["accelerator"], ours["adam"]) == ("accelerator.cpu_accelerator", "op_builder.cpu")
    for name, losses in ours["losses"].items():
        assert losses == pytest.approx(own["losses"][name], rel=BOUNDS["fp32"]), name
        assert losses[-1] < losses[0]
