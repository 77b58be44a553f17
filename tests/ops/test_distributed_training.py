"""torch's own ways to train on several ranks run on the backend "accel" unchanged, with gloo's losses."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_processes import run_ranks, values

from op_builder.cpu import ShareMemCommBuilder

PROGRAM = Path(__file__).with_name("parallel_training_programs.py")


def test_ddp_fsdp2_and_tensor_parallel_have_gloo_s_losses_and_are_really_ours(tmp_path: Path) -> None:
    ShareMemCommBuilder().load()
    by_gloo = values(run_ranks(PROGRAM, "run", 2, tmp_path / "gloo", arguments=["gloo"]))
    ours = values(run_ranks(PROGRAM, "run", 2, tmp_path / "accel", arguments=["accel"]))
    for rank in range(2):
        for name, losses in ours[rank]["losses"].items():
            # With two ranks a sum has one order, so even the last bit is the same.
            assert losses == by_gloo[rank]["losses"][name], name
            assert losses[-1] < losses[0]
        counted = ours[rank]["ours"]
        assert counted["ddp"]["allreduce"] >= 6
        assert sum(number for key, number in counted["fsdp2"].items() if "gather" in key) >= 6
        assert sum(number for key, number in counted["fsdp2"].items() if "scatter" in key) >= 6
        assert sum(number for key, number in counted["tensor parallel"].items() if "reduce" in key) >= 6
        # Only what parallelize_module() does once, to distribute the parameters, is left to gloo.
        assert ours[rank]["gloo"] == {"ddp": {}, "fsdp2": {}, "tensor parallel": {"scatter": 6}}


@pytest.mark.slow
def test_functional_collectives_of_a_compiled_graph_are_ours(tmp_path: Path) -> None:
    ShareMemCommBuilder().load()
    for told in values(run_ranks(PROGRAM, "compiled", 2, tmp_path)):
        assert told["gloo"] == {}
        assert sum(told["ours"].values()) == 4
