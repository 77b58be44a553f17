"""The example with moments on disk: the same bits, updates during the backward pass, and when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples import swapped_moments
from op_builder.ops import TensorStore

pytestmark = pytest.mark.usefixtures("on_the_cpu", "own_threads")


def test_a_short_demo_finds_both_runs_the_same_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = swapped_moments.main(["--steps", "4", "--width", "64", "--directory", str(tmp_path / "out")])
    output = capsys.readouterr().out
    assert status == 0, output
    assert "The same to the bit: 4 losses" in output
    assert "updates waited" in output
    assert list((tmp_path / "out").iterdir()) == []


def test_a_difference_of_one_bit_is_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = swapped_moments.SwappedAdam.stored_moments

    def with_one_bit(self: swapped_moments.SwappedAdam) -> object:
        found = honest(self)
        next(iter(found.values()))["exp_avg"].view(-1).view(torch.uint8)[0] ^= 1
        return found

    monkeypatch.setattr(swapped_moments.SwappedAdam, "stored_moments", with_one_bit)
    assert swapped_moments.main(["--steps", "1", "--width", "64", "--directory", str(tmp_path)]) == 1
    assert "DIFFER in: moments." in capsys.readouterr().out


@pytest.mark.parametrize("backward_updates", [True, False])
def test_the_backward_pass_updates_the_chunks_or_step_does(tmp_path: Path, backward_updates: bool) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(9, 9) for _ in range(5)))
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def changed() -> set[bool]:
        return {not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)}

    with TensorStore(tmp_path) as store:
        swapped = swapped_moments.SwappedAdam(model.parameters(), store, lr=0.01)
        loss = model(torch.randn(3, 9)).square().sum()
        if backward_updates:
            loss.backward()
        else:  # as gradients that come from a device
            for parameter, gradient in zip(
                swapped.parameters, torch.autograd.grad(loss, swapped.parameters), strict=True
            ):
                parameter.grad = gradient
        assert changed() == {backward_updates}
        swapped.step()
    assert changed() == {True}
