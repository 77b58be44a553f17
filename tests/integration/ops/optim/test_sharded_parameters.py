"""DTensors (FSDP2, tensor parallelism) and FSDP1's shards as parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.rank_processes import run_ranks, values

PROGRAMS = "sharded_optimizer_programs"


@pytest.mark.parametrize(
    ("size", "kinds"),
    [(2, ["fsdp2"]), pytest.param(4, ["fsdp2", "hybrid", "tensor parallel", "both", "frozen"], marks=pytest.mark.slow)],
    ids=["2", "4"],
)
def test_losses_are_those_of_one_process_with_torchs_optimizer(size: int, kinds: list[str], tmp_path: Path) -> None:
    first, *others = values(run_ranks(PROGRAMS, "losses", size, tmp_path, arguments=[kinds]))
    assert first
    assert all(results == first for results in others)


@pytest.mark.parametrize(
    ("way", "options", "tolerance"),
    [
        ("fsdp2", {"states": "8bit", "max_grad_norm": 1.0}, 5e-3),
        pytest.param("frozen", {"states": "bfloat16"}, 2e-3, marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_of_two_ranks_goes_to_one_and_back(
    way: str, options: dict[str, Any], tolerance: float, tmp_path: Path
) -> None:
    def run(size: int, old: str | None, new: str | None) -> list[float]:
        arguments = [way, options, *(name and str(tmp_path / name) for name in (old, new))]
        return values(run_ranks(PROGRAMS, "resume", size, tmp_path / f"{old}{new}", arguments=arguments))[0]

    uninterrupted = run(2, None, "two")
    assert run(1, "two", None) == pytest.approx(uninterrupted[3:], rel=tolerance)
    run(1, None, "one")
    assert run(2, "one", None) == pytest.approx(uninterrupted[3:], rel=tolerance)


@pytest.mark.parametrize("program", ["fsdp1", "single"])
def test_fsdp1_and_single_dtensors(program: str, tmp_path: Path) -> None:
    values(run_ranks(PROGRAMS, program, 2, tmp_path))
