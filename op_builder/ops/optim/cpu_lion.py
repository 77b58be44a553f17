"""``CPULion``: Lion with parameters and optimizer state in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from op_builder.ops.optim.host_optimizer import HostOptimizer
from op_builder.ops.optim.native_optimizer import check_betas


class CPULion(HostOptimizer):
    """Lion (Chen et al., 2023, arXiv:2302.06675) on CPU tensors, in one native pass.

    It takes the sign of an average of the gradients as its step, so it keeps one state only
    (``exp_avg``), and wants a learning rate some 3 to 10 times smaller than Adam's and a weight decay
    as many times larger. Parameters are dense contiguous CPU tensors of float32, bfloat16 or float16,
    with gradients of any of the three.

    Args:
        params: parameters, or dicts of parameters and options.
        lr: learning rate, a number or a tensor of one element.
        betas: weight of the average in the step, and decay rate of the average; each in [0, 1).
        weight_decay: decoupled weight decay.
        maximize: climb instead of descend.
        states: how the average is kept: ``float32``, ``param`` (the parameter's type), ``bfloat16``
            (rounded at random) or ``8bit``.
        max_grad_norm: gradients are scaled down so that the Euclidean norm of all together is at
            most this.
        zero_grads: leave zeros in the gradients after a step.
        seed: of the random rounding.

    Raises:
        OpArgumentError: an option is out of range or a parameter does not fit.
        IncompatibleOpError: the native op cannot be built or loaded here.
    """

    NATIVE = "CPULionBuilder"
    STATES = ("exp_avg",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0,
        *,
        maximize: bool = False,
        states: str = "float32",
        max_grad_norm: float | None = None,
        zero_grads: bool = False,
        seed: int = 0,
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "states": states,
        }
        super().__init__(params, options, max_grad_norm=max_grad_norm, zero_grads=zero_grads, seed=seed)

    def _check_options(self, group: Mapping[str, Any]) -> None:
        check_betas(group["betas"])
