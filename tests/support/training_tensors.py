"""The tensors of one parameter, and what rounding costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

U = 2.0**-24
# Absolute error of an operation whose result is subnormal, for the few that a value goes through.
SUBNORMAL = 2.0**-147


@dataclass(frozen=True)
class Tensors:
    """One parameter's."""

    param: torch.Tensor
    grad: torch.Tensor
    states: tuple[torch.Tensor, ...]

    def __iter__(self):
        return iter((self.param, self.grad, *self.states))

    def clone(self) -> Tensors:
        return self.map(torch.clone)

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
        return Tensors(change(self.param), change(self.grad), tuple(change(state) for state in self.states))


def unit_roundoff(dtype: torch.dtype) -> tuple[float, float]:
    """Relative error of storing to ``dtype``, and absolute error where the result is subnormal."""
    info = torch.finfo(dtype)
    return info.eps / 2, info.smallest_normal * info.eps / 2
