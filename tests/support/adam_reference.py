"""Tensors and options of Adam, and the bound of its rollback.

The bound follows the kernel operation by operation, to first order in u = 2**-24, the relative
error of one float32 operation. It holds with and without fused multiply-add (which rounds less).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

U = 2.0**-24
# Absolute error of an operation whose result is subnormal, for the few that a value goes through.
SUBNORMAL = 2.0**-147
SECOND_ORDER = 1.01


@dataclass(frozen=True)
class Options:
    step: int = 3
    lr: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    bias_correction: bool = True
    adamw_mode: bool = True

    def positional(self) -> tuple[float, ...]:
        """The arguments of ``adam_update`` after the optimizer id."""
        return (self.step, self.lr, self.beta1, self.beta2, self.eps, self.weight_decay, self.bias_correction)

    def listed(self) -> tuple[float, ...]:
        """The options of ``update_list``."""
        return (
            *(self.lr, self.beta1, self.beta2, self.eps, self.weight_decay),
            *(self.adamw_mode, self.bias_correction),
        )

    @property
    def decay(self) -> float:
        return 1 - self.lr * self.weight_decay if self.adamw_mode else 1.0

    @property
    def l2(self) -> float:
        return 0.0 if self.adamw_mode else self.weight_decay


@dataclass(frozen=True)
class Tensors:
    """One parameter's."""

    param: torch.Tensor
    grad: torch.Tensor
    states: tuple[torch.Tensor, ...]

    def __iter__(self):
        return iter((self.param, self.grad, *self.states))

    @property
    def exp_avg(self) -> torch.Tensor:
        return self.states[0]

    @property
    def exp_avg_sq(self) -> torch.Tensor:
        return self.states[1]

    def clone(self) -> Tensors:
        return self.map(torch.clone)

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
        return Tensors(change(self.param), change(self.grad), tuple(change(state) for state in self.states))


def random_tensors(
    numel: int,
    param: torch.dtype = torch.float32,
    grad: torch.dtype = torch.float32,
    moment: torch.dtype = torch.float32,
    seed: int = 0,
    offset: int = 0,
) -> Tensors:
    """Tensors of a training run's magnitudes, ``offset`` elements into their storage."""
    generator = torch.Generator().manual_seed(seed)

    def make(scale: float, dtype: torch.dtype) -> torch.Tensor:
        storage = torch.empty(numel + offset, dtype=dtype)
        tensor = storage[offset:]
        # Magnitudes over several powers of ten, as gradients have.
        spread = torch.rand(numel, generator=generator) * 4 - 3
        tensor.copy_(torch.randn(numel, generator=generator) * 10**spread * scale)
        return tensor

    exp_avg_sq = make(1e-2, moment)
    exp_avg_sq.abs_()
    return Tensors(make(1.0, param), make(0.1, grad), (make(0.1, moment), exp_avg_sq))


def unit_roundoff(dtype: torch.dtype) -> tuple[float, float]:
    """Relative error of storing to ``dtype``, and absolute error where the result is subnormal."""
    info = torch.finfo(dtype)
    return info.eps / 2, info.smallest_normal * info.eps / 2


def rollback_bound(before: Tensors, after: Tensors, options: Options) -> Tensors:
    """How far ``adam_rollback`` may stay from ``before``: csrc/kernels/cpu/adam.h derives it."""
    p, grad, m, v = before.map(torch.Tensor.double)
    new_p, _, new_m, new_v = after.map(torch.Tensor.double)
    decay = abs(options.decay)
    p_error = U * (2 * p.abs() + (new_p.abs() + (new_p - options.decay * p).abs()) / decay) + SUBNORMAL / decay
    g = grad + options.l2 * p
    roundings = 2 * U * ((options.l2 * p).abs() + 2 * g.abs())
    g_error = options.l2 * p_error + roundings if options.l2 else torch.zeros_like(g)
    m_error = U * (2 * m.abs() + new_m.abs() / options.beta1) + (1 - options.beta1) / options.beta1 * g_error
    v_share = (1 - options.beta2) / options.beta2 * 2 * g.abs() * g_error
    v_error = U * (2 * v.abs() + new_v.abs() / options.beta2) + v_share
    return Tensors(
        SECOND_ORDER * p_error,
        torch.zeros_like(grad),
        (
            SECOND_ORDER * m_error + SUBNORMAL / options.beta1,
            SECOND_ORDER * v_error + SUBNORMAL / options.beta2,
        ),
    )


def assert_within(actual: Tensors, expected: Tensors, bound: Tensors) -> None:
    for name, found, wanted, most in zip(
        ("param", "grad", "exp_avg", "exp_avg_sq"), actual, expected, bound, strict=True
    ):
        error = (found.double() - wanted).abs()
        over = error > most
        assert not over.any(), (
            f"{name}: {int(over.sum())} of {over.numel()} elements beyond the bound, "
            f"the worst by a factor of {(error / most).max():.3g}"
        )
