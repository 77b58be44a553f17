"""The training on several ranks: the same losses as one rank that takes the whole batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.foreign_package import output_of

ROOT = Path(__file__).resolve().parents[3]


def train(directory: Path, name: str, *launcher: str) -> list[float]:
    command = (*launcher, str(ROOT / "examples" / "train_ranks.py"), "--steps", "5", "--losses", name)
    output_of(*command, cwd=directory, ACCEL_ACCELERATOR="cpu", WORLD_SIZE=None, RANK=None)
    return list(json.loads((directory / name).read_text()))


def test_two_ranks_have_the_losses_of_one_with_twice_the_batch(tmp_path: Path) -> None:
    launcher = ["-m", "accelerator.launch", "--num_accelerators", "2", "--bind_cores_to_rank"]
    one = train(tmp_path, "one.json")
    two = train(tmp_path, "two.json", *launcher)
    assert two == pytest.approx(one, rel=1e-5)  # sums of float32 in another order
    assert one[-1] < one[0] - 0.2
