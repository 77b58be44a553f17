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
    ranks = values(run_ranks(PROGRAMS, "losses", size, tmp_path, arguments=[kinds]))
    assert all(results == ranks[0] for results in ranks)
    for case in ranks[0]:
        states = case["options"].get("states")
        tolerance = {"bfloat16": 2e-3, "8bit": 5e-3}.get(states, 2e-5)
        assert case["found"] == pytest.approx(case["expected"], rel=tolerance), case
        # Packed bytes belong to a shard; state_dict() decodes them.
        assert case["states"] == ["Tensor" if states == "8bit" else "DTensor"], case


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


def test_fsdp1_saves_8_bit_states_and_refuses_what_needs_all_shards(tmp_path: Path) -> None:
    for result in values(run_ranks(PROGRAMS, "fsdp1", 2, tmp_path)):
        for case in result:
            assert case["resumed"] == pytest.approx(case["uninterrupted"], rel=5e-3)


def test_single_dtensors(tmp_path: Path) -> None:
    values(run_ranks(PROGRAMS, "single", 2, tmp_path))
