"""The example with moments on disk: the same bits, and when they differ."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from examples import swapped_moments
from examples.characters import swapping
from op_builder.ops import CPUAdam, TensorStore

torch_threads = torch.get_num_threads()
QUICK = ["--steps", "4", "--width", "64"]


@pytest.fixture(autouse=True)
def _cpu(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("ACCEL_ACCELERATOR", "cpu")
    yield
    torch.set_num_threads(torch_threads)


def test_a_short_demo_finds_both_runs_the_same_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = swapped_moments.main([*QUICK, "--out", str(tmp_path / "out")])
    output = capsys.readouterr().out
    assert status == 0, output
    assert "The same to the bit: 4 losses" in output
    assert "overlapped with training" in output
    assert list((tmp_path / "out").iterdir()) == []


def test_a_difference_of_one_bit_is_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = swapping.SwappedAdam.stored_moments

    def with_one_bit(self: swapping.SwappedAdam) -> object:
        found = honest(self)
        next(iter(found.values()))["exp_avg"].view(-1).view(torch.uint8)[0] ^= 1
        return found

    monkeypatch.setattr(swapping.SwappedAdam, "stored_moments", with_one_bit)
    assert swapped_moments.main([*QUICK, "--out", str(tmp_path)]) == 1
    assert "DIFFER in: moments." in capsys.readouterr().out


@pytest.mark.parametrize("backward_updates", [True, False])
def test_chunks_are_updated_as_by_one_optimizer_in_the_backward_pass_or_after_it(
    tmp_path: Path, backward_updates: bool
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(9, 9) for _ in range(5)))
    twin = nn.Sequential(*(nn.Linear(9, 9) for _ in range(5)))
    twin.load_state_dict(model.state_dict())
    reference = CPUAdam(model.parameters(), lr=0.01)
    with TensorStore(tmp_path) as store:
        swapped = swapping.SwappedAdam(twin.parameters(), store, chunks=6, new_buffer=torch.empty, lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(swapped, 0.5)
        expected_scheduler = torch.optim.lr_scheduler.ExponentialLR(reference, 0.5)
        for _ in range(4):
            inputs = torch.randn(3, 9)
            model(inputs).square().sum().backward()
            reference.step()
            reference.zero_grad()
            expected_scheduler.step()
            before = [parameter.detach().clone() for parameter in twin.parameters()]
            if backward_updates:
                twin(inputs).square().sum().backward()
            else:  # as gradients that come from a device
                gradients = torch.autograd.grad(twin(inputs).square().sum(), list(twin.parameters()))
                for parameter, gradient in zip(twin.parameters(), gradients, strict=True):
                    parameter.grad = gradient
            changed = [not torch.equal(old, new) for old, new in zip(before, twin.parameters(), strict=True)]
            assert all(changed) if backward_updates else not any(changed)
            swapped.step()
            swapped.zero_grad()
            scheduler.step()
        stored = swapped.stored_moments()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)
        for state in swapping.STATES:
            assert torch.equal(reference.state[one][state], stored[other][state])
