"""The arguments that the functions of the fused optimizers take, checked and put into the ops' order.

What does not fit is an :class:`OpArgumentError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import finite_number, fraction, step_number
from op_builder.ops.optim.tensor_lists import TensorLists

Tensors = Sequence[torch.Tensor]


def named_lists(tensor_lists: Sequence[Tensors], states: Sequence[str]) -> TensorLists:
    """``[grads, params, *states]`` by their names."""
    names = ("grads", "params", *(f"{state}s" for state in states))
    if len(tensor_lists) != len(names):
        raise OpArgumentError(f"tensor_lists has {len(tensor_lists)} lists.", f"Pass {len(names)}: {', '.join(names)}.")
    grads, params, *rest = tensor_lists
    return TensorLists(params, grads, rest)


def checked_betas(beta1: float, beta2: float) -> tuple[float, float]:
    """Both in [0, 1)."""
    return fraction("beta1", beta1), fraction("beta2", beta2)


def adam_options(
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, mode: int, bias_correction: bool
) -> tuple[float, ...]:
    """Adam's numbers as its op takes them; ``mode`` is 0 for L2 penalty, 1 for AdamW."""
    betas = checked_betas(beta1, beta2)
    rest = finite_number("eps", eps), finite_number("weight_decay", weight_decay)
    if mode not in (0, 1):
        raise OpArgumentError(f"mode is {mode!r}.", "Pass 0 for Adam with L2 penalty, 1 for AdamW.")
    return (lr, *betas, *rest, mode, bool(bias_correction))


def checked_chunk(chunk_size: int) -> int:
    """A number of elements, at least 1."""
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or not 1 <= chunk_size < 2**63:
        raise OpArgumentError(f"chunk_size is {chunk_size!r}.", "Pass a number of elements, for example 65536.")
    return chunk_size


def one_tensor(name: str, value: Any) -> torch.Tensor:
    """A tensor, whatever is in it."""
    if not isinstance(value, torch.Tensor):
        raise OpArgumentError(
            f"{name} is of type {type(value).__name__}.",
            "Pass a float32 tensor of one element, or use the function that takes numbers.",
        )
    return value


def learning_rate(lr: float | torch.Tensor) -> tuple[float, torch.Tensor | None]:
    """The number to hand over, and the tensor that replaces it."""
    return (0.0, lr) if isinstance(lr, torch.Tensor) else (finite_number("lr", lr), None)


def step_tensors(step: torch.Tensor | Tensors) -> Tensors:
    """Counters of steps: one for all parameters, or one for each."""
    steps = step if isinstance(step, (list, tuple)) else [step]
    if not steps:
        raise OpArgumentError("step is an empty list.", "Pass one tensor for each parameter, or one for all.")
    return [one_tensor("step", one) for one in steps]


def step_or_tensors(step: int | torch.Tensor | Tensors) -> int | Tensors:
    """The number of this update, from 1, or counters of steps."""
    return step_tensors(step) if isinstance(step, (torch.Tensor, list, tuple)) else step_number(step)
