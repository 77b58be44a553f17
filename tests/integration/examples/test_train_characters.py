"""The example: both ways of training, what it says, and when it fails."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from examples import train_characters
from examples.characters import comparison
from op_builder.toolchains.sycl_runtime import find_runtime

pytestmark = pytest.mark.usefixtures("on_the_cpu", "own_threads")
needs_sycl = pytest.mark.skipif(find_runtime() is None, reason="needs the SYCL runtime: the extra sycl")


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], "CPUAdam and torch AdamW agree within rounding"),
        pytest.param(["--dtype", "bfloat16"], "float32 copies in host memory", marks=pytest.mark.slow),
        pytest.param(
            ["--kernels", "sycl"],
            "SYCLFusedAdam and CPUAdam agree within rounding",
            marks=[pytest.mark.slow, needs_sycl],
        ),
    ],
)
def test_a_short_demo_says_where_the_op_came_from_and_that_the_runs_agree(
    options: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = train_characters.main(["--steps", "12", *options])
    output = capsys.readouterr().out
    assert status == 0, output
    assert "cold load: compiled now" in output or "warm load: from the cache" in output
    assert "agree within rounding" in output
    assert shown in output
    assert "What the model writes:" in output


def test_losses_that_differ_or_are_no_numbers_do_not_agree() -> None:
    nan = float("nan")
    assert comparison.compare([1.0, 2.0], [1.0, 2.0], (1.0, 1.0)).ok
    assert not comparison.compare([1.0, 2.0], [1.0, 2.1], (1.0, 1.0)).ok
    assert not comparison.compare([1.0, nan], [1.0, nan], (1.0, 1.0)).ok
    assert not comparison.compare([1.0, 2.0], [1.0, 2.0], (nan, 1.0)).ok


def test_runs_that_differ_by_more_than_rounding_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_another_rate(parameters: object, **options: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, **{**options, "lr": 1.5 * options["lr"]})

    contest = train_characters.CONTESTS["cpu"]
    contest = dataclasses.replace(contest, makers={**contest.makers, "CPUAdam": with_another_rate})
    monkeypatch.setitem(train_characters.CONTESTS, "cpu", contest)
    assert train_characters.main(["--steps", "6"]) == 1
    assert "DO NOT AGREE" in capsys.readouterr().out
