"""The function ``lamb`` of ``FusedLambBuilder().load()``: LAMB of one tensor, with functions of torch."""

from __future__ import annotations

import math

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import checked_numbers, step_number, switch


@torch.no_grad()
def lamb(
    p: torch.Tensor,
    p_copy: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    max_coeff: float,
    min_coeff: float,
    eps: float,
    grad_scale: float,
    step: int,
    mode: int,
    bias_correction: bool,
    decay: float,
) -> torch.Tensor:
    """Update a parameter and its moments in place (LAMB: You et al., 2020, arXiv:1904.00962), as DeepSpeed's op does.

    The paper, and ``multi_tensor_lamb``, correct the moments before the direction's norm is taken. DeepSpeed's op
    scales the step by both corrections instead, so that the norm is that of the uncorrected direction.

    Args:
        p: the parameter.
        p_copy: gets the new values in its own type; empty for no copy.
        m: the first moment.
        v: the second moment.
        g: the gradient, ``grad_scale`` times too large.
        max_coeff: the largest trust coefficient.
        min_coeff: the smallest.
        step: the number of this update, from 1.
        mode: 0 adds ``eps`` under the square root, 1 to the root.
        bias_correction: multiply ``lr`` by ``sqrt(1 - beta2**step) / (1 - beta1**step)``.
        decay: the weight decay, added to the direction before its norm is taken.

    Returns:
        The trust coefficient, one float32 on the parameter's device: the ratio of the norms of parameter and direction
        within the limits, 1 if a norm is 0.

    Raises:
        OpArgumentError: an argument does not fit; no tensor was changed.
    """
    numbers = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": decay}
    checked_numbers(**numbers)
    step, bias_correction = step_number(step), switch("bias_correction", bias_correction)
    if mode not in (0, 1):
        raise OpArgumentError(
            f"mode is {mode!r}; 0 or 1 is required.",
            "Pass 0 to add eps under the square root, 1 to add it to the root.",
        )
    if not grad_scale > 0 or not 0 <= min_coeff <= max_coeff:
        raise OpArgumentError(
            f"grad_scale is {grad_scale}, the trust coefficient's limits are {min_coeff} and {max_coeff}.",
            "Pass a grad_scale above 0, and limits with 0 <= min_coeff <= max_coeff.",
        )
    for name, tensor in (("p", p), ("m", m), ("v", v), ("g", g), ("p_copy", p_copy)):
        if not tensor.is_floating_point():
            raise OpArgumentError(f"{name} is of type {tensor.dtype}.", "Pass tensors of floating-point numbers.")
        if tensor.numel() != p.numel() and not (name == "p_copy" and tensor.numel() == 0):
            raise OpArgumentError(f"{name} has {tensor.numel()} elements, p has {p.numel()}.", "Pass equal lengths.")
    value, gradient = p.float(), g.float().view_as(p) / grad_scale
    first = m.float().view_as(p).mul(beta1).add_(gradient, alpha=1 - beta1)
    second = v.float().view_as(p).mul(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    m.copy_(first.view_as(m))
    v.copy_(second.view_as(v))
    if bias_correction:
        lr *= math.sqrt(1 - beta2**step) / (1 - beta1**step)
    root = (second + eps).sqrt_() if mode == 0 else second.sqrt().add_(eps)
    direction = first.div(root).add_(value, alpha=decay)
    norms = value.norm(), direction.norm()
    ratio = (norms[0] / norms[1]).clamp(min_coeff, max_coeff)
    coefficient = torch.where((norms[0] > 0) & (norms[1] > 0), ratio, torch.ones_like(ratio))
    p.copy_(value - direction * (lr * coefficient))
    if p_copy.numel():
        p_copy.copy_(p.view_as(p_copy))
    return coefficient.reshape(1)
