"""The front ends of the fused optimizers with SYCL kernels; test_fused_update.py compares these with the CPU's."""

from __future__ import annotations

import pytest
import torch

from op_builder.errors import AccelError, OpArgumentError
from op_builder.ops import FusedLion, SYCLFusedAdam, SYCLFusedLion
from op_builder.xpu import FusedAdamBuilder
from tests.support.fused_cases import apply
from tests.support.optimizer_reference import ADAM, make_tensors
from tests.support.sycl_ops import needs_runtime
from tests.support.training_tensors import Tensors

pytestmark = needs_runtime


def test_bad_tensors_are_refused_and_nothing_is_changed():
    good, (param, grad, *states) = make_tensors(ADAM, 8), make_tensors(ADAM, 8)
    before = good.clone()
    for bad, message in (
        (Tensors(param, grad[:7], tuple(states)), "grad of tensor 1 has 7 elements; 8 are required"),
        (Tensors(param, grad, (param, states[1])), "exp_avg of tensor 1 shares memory with its param"),
    ):
        with pytest.raises(OpArgumentError, match=message):
            apply(FusedAdamBuilder().load(), ADAM, [good, bad])
    assert all(map(torch.equal, good, before))


def losses(optimizer_class, steps: int = 20, **options) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(9, 17), torch.nn.Tanh(), torch.nn.Linear(17, 3))
    optimizer = optimizer_class(model.parameters(), lr=1e-2, **options)
    x, y = torch.randn(64, 9), torch.randn(64, 3)
    result = []
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


def test_the_optimizer_trains_as_torchs_does():
    with_sycl, with_torch = losses(SYCLFusedAdam, weight_decay=0.1), losses(torch.optim.AdamW, weight_decay=0.1)
    assert with_sycl[-1] < 0.9 * with_sycl[0]
    torch.testing.assert_close(with_sycl, with_torch, rtol=1e-4, atol=0)


def test_the_lion_optimizer_trains_as_the_cpus_does():
    assert losses(SYCLFusedLion) == losses(FusedLion)


def test_a_group_with_amsgrad_is_refused_and_says_why():
    with pytest.raises(AccelError, match="has no 'fused_amsgrad' for this device"):
        SYCLFusedAdam([torch.nn.Parameter(torch.ones(3))], amsgrad=True)
