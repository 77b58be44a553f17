"""Hugging Face's Trainer and Accelerator on the backend "accel", which they do not offer by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from op_builder.cpu import CPUAdamBuilder, ShareMemCommBuilder
from tests.support.rank_processes import run_ranks, values


@pytest.mark.slow  # starts four processes that import transformers
def test_trainer_and_accelerator_use_the_group_that_exists(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    for builder in (ShareMemCommBuilder(), CPUAdamBuilder()):
        builder.load()
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    launcher = [{**job, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} for rank in range(2)]  # as a launcher sets them
    found = {}
    for backend in ("gloo", "accel"):
        options = {"arguments": [backend], "environments": launcher, "by_gloo": backend == "gloo"}
        found[backend] = values(run_ranks("trainer_programs", "train", 2, tmp_path, **options))
    for rank in range(2):
        ours, theirs = found["accel"][rank], found["gloo"][rank]
        assert (ours["backend"], ours["ranks"], theirs["backend"]) == ("accel", 2, "gloo")
        assert ours["shared_memory"] > 0
        assert ours["parameters"] == theirs["parameters"] == found["accel"][0]["parameters"]
