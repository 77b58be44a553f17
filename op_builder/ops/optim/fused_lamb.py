"""``FusedLamb``: LAMB over all parameters at once, on the device where they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from op_builder.ops.declare import fused_optimizer
from op_builder.ops.optim.fused_op import FusedOp
from op_builder.ops.optim.fused_optimizer import FusedOptimizer

OP = fused_optimizer("fused_lamb", "FusedLambBuilder", "LAMB", FusedOp)


class FusedLamb(FusedOptimizer):
    """LAMB (You et al., 2020, arXiv:1904.00962) on CUDA devices and the CPU.

    The length of each parameter's step is the learning rate times the parameter's norm.
    Norms are summed in float64 in a fixed order: the same gradients give the same bits. Parameters and graph capture
    are as for :class:`op_builder.ops.FusedAdam`; the state is that of :class:`op_builder.ops.CPULamb`.

    Args:
        params: parameters, or dicts of parameters and options.
        lr: learning rate, a number or a tensor of one element; a tensor on a CUDA device is read there.
        bias_correction: divide the moments by ``1 - beta**step``.
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the denominator.
        weight_decay: added to the direction, times the parameter, before its norm is taken.
        maximize: maximise the objective.
        states: storage of the moments: ``float32`` or ``param`` (the parameter's type; float16 holds
            no second moment below 6e-8).

    Raises:
        OpArgumentError: an option is out of range or a parameter does not fit.
        IncompatibleOpError: the native op cannot be built or loaded here.
    """

    NATIVE = OP
    NEEDS_NORMS = True
    # The elements of a partial sum of squares. One block adds the partial sums of a tensor, so a long tensor should
    # have few; a tensor of ten thousand elements should have more than one.
    CHUNK_SIZE = 8192

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        states: str = "float32",
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            maximize=maximize,
            bias_correction=bias_correction,
            states=states,
        )
