"""The training on several ranks: the same losses as one rank that takes the whole batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from op_builder import env

ROOT = Path(__file__).resolve().parents[3]


def train(directory: Path, name: str, *launcher: str) -> list[float]:
    script = str(ROOT / "examples" / "train_ranks.py")
    arguments = [script, "--steps", "5", "--losses", name]
    variables = env.child_environment(PYTHONPATH=str(ROOT), ACCEL_ACCELERATOR="cpu", WORLD_SIZE=None, RANK=None)
    done = subprocess.run(
        [sys.executable, *launcher, *arguments],
        cwd=directory,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses: list[float] = json.loads((directory / name).read_text())
    return losses


def test_two_ranks_have_the_losses_of_one_with_twice_the_batch(tmp_path: Path) -> None:
    launcher = ["-m", "accelerator.launch", "--num_accelerators", "2", "--bind_cores_to_rank"]
    one = train(tmp_path, "one.json")
    two = train(tmp_path, "two.json", *launcher)
    assert two == pytest.approx(one, rel=1e-5)  # sums of float32 in another order
    assert one[-1] < one[0] - 0.2
