"""Parameters and training steps for the tests of optimizers as torch optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from op_builder.ops import CPUSGD, CPUAdagrad, CPUAdam, CPULamb, CPULion, FusedAdam, FusedLamb, FusedLion

Params = list[torch.nn.Parameter]


FRONT_ENDS = [CPUAdam, CPUAdagrad, CPULion, CPULamb, CPUSGD]
HOST = FRONT_ENDS
PACKING = [CPUAdam, CPUAdagrad, CPULion, CPUSGD]
FUSED = [FusedAdam, FusedLion, FusedLamb]


def make_params(dtype: torch.dtype = torch.float32) -> Params:
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 7), (300,), (), (1,), (16, 33)]
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def set_grads(params: Sequence[torch.nn.Parameter], seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for param in params:
        param.grad = (torch.randn(param.shape, generator=generator) * scale).to(param.dtype)


def run(optimizer: Any, params: Params, steps: int = 4, first: int = 1) -> None:
    for seed in range(first, first + steps):
        set_grads(params, seed)
        optimizer.step()


def contents(optimizer: Any, params: Params) -> list[torch.Tensor]:
    """Copies of the parameters and their states."""
    held = [value for param in params for value in optimizer.state[param].values() if isinstance(value, torch.Tensor)]
    return [tensor.detach().clone() for tensor in (*params, *held)]


def assert_equal(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine, theirs)


def assert_close(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor], tolerance: float = 2e-6) -> None:
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
