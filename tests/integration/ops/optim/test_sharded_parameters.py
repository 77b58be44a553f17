"""DTensors (FSDP2, tensor parallelism) and FSDP1's shards as parameters."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from op_builder.cpu import (
    CPUAdagradBuilder,
    CPUAdamBuilder,
    CPULambBuilder,
    CPULionBuilder,
    CPUSGDBuilder,
    FusedAdamBuilder,
    FusedLambBuilder,
    FusedLionBuilder,
)
from tests.support.rank_processes import run_ranks, values

PROGRAMS = "sharded_optimizer_programs"


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """Compile the ops before ranks wait for each other."""
    on_the_cpu = (CPUAdagradBuilder(), CPUAdamBuilder(), CPULambBuilder(), CPULionBuilder(), CPUSGDBuilder())
    for builder in (*on_the_cpu, FusedAdamBuilder(), FusedLambBuilder(), FusedLionBuilder()):
        builder.load()


@pytest.mark.parametrize(
    ("size", "kinds"),
    [(2, ["fsdp2"]), pytest.param(4, ["fsdp2", "hybrid", "tensor parallel", "both", "frozen"], marks=pytest.mark.slow)],
    ids=["2", "4"],
)
def test_losses_are_those_of_one_process_with_torchs_optimizer(size: int, kinds: list[str], tmp_path: Path) -> None:
    first, *others = values(run_ranks(PROGRAMS, "losses", size, tmp_path, arguments=[kinds], by_gloo=True))
    assert first
    assert all(results == first for results in others)


@pytest.mark.parametrize(
    ("ways", "options", "tolerance"),
    [
        ({1: ["plain", "fsdp2"], 2: ["ddp", "fsdp2"]}, {"states": "8bit", "max_grad_norm": 1.0}, 5e-3),
        pytest.param({1: ["frozen"], 2: ["frozen"]}, {"states": "bfloat16"}, 2e-3, marks=pytest.mark.slow),
    ],
    ids=["8bit", "frozen"],
)
def test_every_checkpoint_loads_into_every_kind_of_model(
    ways: dict[int, list[str]], options: dict[str, Any], tolerance: float, tmp_path: Path
) -> None:
    """Flattened or not; on one rank and on two."""
    place = tmp_path / "checkpoints"
    found: dict[str, list[list[float]]] = {"save": [], "resume": []}
    for function, (size, of_size) in itertools.product(found, ways.items()):
        arguments = [of_size, options, str(place)]
        directory = tmp_path / f"{function}{size}"
        results = run_ranks(PROGRAMS, function, size, directory, arguments=arguments, by_gloo=True)
        found[function] += values(results)[0]
    count = sum(map(len, ways.values()))
    assert len(found["resume"]) == 2 * count * count
    for losses in found["resume"]:
        assert losses == pytest.approx(found["save"][0], rel=tolerance)


@pytest.mark.parametrize("program", ["fsdp1", "single"])
def test_fsdp1_and_single_dtensors(program: str, tmp_path: Path) -> None:
    values(run_ranks(PROGRAMS, program, 2, tmp_path, by_gloo=True))
