"""The porting guide: its script before and after gives the same losses, and what its tables name is there."""

from __future__ import annotations

import json
import operator
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from tests.support.foreign_package import output_of

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "porting.md").read_text(encoding="utf-8")
SCRIPTS = ROOT / "examples" / "porting"
STEPS = 12


def run(*command: str, **variables: str | None) -> dict[str, Any]:
    unset = dict.fromkeys(("ACCEL_ACCELERATOR", "DS_ACCELERATOR", "WORLD_SIZE", "LOCAL_RANK"))
    one_order = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # of sums
    return dict(json.loads(output_of(*command, **{**unset, **one_order, **variables}).splitlines()[-1]))


def check(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert after["losses"] == before["losses"]
    assert len(after["losses"]) == STEPS
    assert after["losses"][-1] < after["losses"][0] - 0.3, "nothing was learned"
    assert after["milliseconds"] > 0
    assert after["peak_bytes"] > 10 << 20


@pytest.fixture(scope="module")
def ported() -> dict[str, Any]:
    """Of the ported script in one process."""
    return run(str(SCRIPTS / "after.py"), f"--steps={STEPS}")


def test_the_ported_script_gives_the_same_losses(ported: dict[str, Any]) -> None:
    check(run(str(SCRIPTS / "before.py"), f"--steps={STEPS}"), ported)


def test_the_ported_script_names_no_device() -> None:
    before, after = ((SCRIPTS / name).read_text(encoding="utf-8") for name in ("before.py", "after.py"))
    assert "cuda" in before
    assert not re.findall(r"cuda|cpu|nccl|gloo", after.partition('"""\n\n')[2])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_ported_script_gives_the_same_losses_on_cuda() -> None:
    visible = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
    before, after = (run(str(SCRIPTS / name), f"--steps={STEPS}", **visible) for name in ("before.py", "after.py"))
    torch.testing.assert_close(after["losses"], before["losses"], rtol=1e-3, atol=1e-3)  # reductions by atomics


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed package")
def test_the_ported_script_gives_the_same_losses_in_two_processes(ported: dict[str, Any]) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    launch = ("-m", "accelerator.launch", "--num_accelerators=2")
    before = run(*torchrun, str(SCRIPTS / "before.py"), f"--steps={STEPS}")
    check(before, run(*launch, str(SCRIPTS / "after.py"), f"--steps={STEPS}", ACCEL_ACCELERATOR="cpu"))
    assert before["losses"] != ported["losses"], "both ranks took part"


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the guide names the members of torch 2.13")
def test_the_guide_names_all_of_torch_cuda_and_nothing_else() -> None:
    names = set(re.findall(r"torch\.cuda\.([A-Za-z][\w.]*\w)", GUIDE))
    assert not set(torch.cuda.__all__) - names - {"amp", "nvtx"}  # their members are in the tables
    for name in names:
        operator.attrgetter(name)(torch.cuda)


def test_every_member_that_the_guide_names_is_part_of_the_contract() -> None:
    named = re.findall(r"(?<!torch\.)\b(?:get_accelerator\(\)|accelerator)\.([A-Za-z]\w*)", GUIDE)
    modules = {"report", "launch", "conformance", "torch_accelerator"}
    assert len(set(named)) > 40
    assert not {name for name in named if not hasattr(DeepSpeedAccelerator, name)} - modules


def test_every_method_that_stands_for_a_call_of_torch_is_in_the_guide() -> None:
    contract = {name for name in vars(DeepSpeedAccelerator) if not name.startswith("_")}
    missing = {name for name in contract if not re.search(rf"\b{name}\b", GUIDE)}
    assert not missing
