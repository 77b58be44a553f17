"""``FusedLion``: Lion in one kernel over all parameters, on the device where they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from op_builder.cache.store import Cache
from op_builder.load.load import load
from op_builder.ops.declare import fused_optimizer
from op_builder.ops.optim.fused_op import FusedOp
from op_builder.ops.optim.fused_optimizer import FusedOptimizer

OP = fused_optimizer("fused_lion", "FusedLionBuilder", "Lion", FusedOp, has_sycl=True)


class FusedLion(FusedOptimizer):
    """Lion (Chen et al., 2023, arXiv:2302.06675) on CUDA devices and the CPU.

    Its state (``exp_avg``, and ``step``, which only counts) is that of :class:`op_builder.ops.CPULion`. Parameters and
    graph capture are as for :class:`op_builder.ops.FusedAdam`.

    Args:
        params: parameters, or dicts of parameters and options.
        lr: learning rate, a number or a tensor of one element; a tensor on a CUDA device is read there.
        betas: weight of the average in the step, and decay rate of the average; each in [0, 1).
        weight_decay: decoupled weight decay.
        maximize: maximise the objective.
        states: storage of the average: ``float32`` or ``param`` (the parameter's type).

    Raises:
        OpArgumentError: an option is out of range or a parameter does not fit.
        IncompatibleOpError: the native op cannot be built or loaded here.
    """

    NATIVE = OP

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        states: str = "float32",
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize, states=states)


class SYCLFusedLion(FusedLion):
    """:class:`op_builder.ops.FusedLion` with SYCL kernels, as :class:`op_builder.ops.SYCLFusedAdam`."""

    def _load(self) -> Any:
        return load(self.NATIVE.spec_for("xpu"), Cache())
