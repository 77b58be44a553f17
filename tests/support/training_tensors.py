"""The tensors of one parameter, and what rounding costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

U = 2.0**-24
# Absolute error of an operation whose result is subnormal, for the few that a value goes through.
SUBNORMAL = 2.0**-147
GUARDS, GUARD = 16, 77  # elements around a tensor, and their value


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


def guarded(tensor: torch.Tensor, offset: int = 0, device: str = "cpu") -> torch.Tensor:
    """A copy that lies that many elements behind an aligned address, between guards."""
    begin = GUARDS + offset
    storage = torch.full((begin + tensor.numel() + GUARDS,), GUARD, dtype=tensor.dtype, device=device)
    return storage[begin : begin + tensor.numel()].copy_(tensor)


def assert_guards_untouched(tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        storage = tensor.new_empty(0).set_(tensor.untyped_storage())
        begin = tensor.storage_offset()
        assert (storage[:begin] == GUARD).all()
        assert (storage[begin + tensor.numel() :] == GUARD).all()


def unit_roundoff(dtype: torch.dtype) -> tuple[float, float]:
    """Relative error of storing to ``dtype``, and absolute error where the result is subnormal."""
    info = torch.finfo(dtype)
    return info.eps / 2, info.smallest_normal * info.eps / 2
