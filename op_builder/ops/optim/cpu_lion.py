"""``CPULion``: Lion with parameters and optimizer state in host memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from op_builder.ops.declare import host_optimizer
from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.host_optimizer import HostOptimizer, HostSettings

if TYPE_CHECKING:
    from typing_extensions import Unpack

OP = host_optimizer("cpu_lion", "CPULionBuilder", "Lion", HostOp)


class CPULion(HostOptimizer):
    """Lion (Chen et al., 2023, arXiv:2302.06675) on CPU tensors, in one native pass.

    Its step is the sign of an average of the gradients, so it keeps one state only (``exp_avg``), and needs a
    learning rate about 3 to 10 times smaller than Adam's and a weight decay as many times larger. Parameters are dense
    contiguous CPU tensors of float32, bfloat16 or float16, with gradients of any of the three.

    Args:
        params: parameters, or dicts of parameters and options.
        lr: learning rate, a number or a tensor of one element.
        betas: weight of the average in the step, and decay rate of the average; each in [0, 1).
        weight_decay: decoupled weight decay.
        settings: :class:`~op_builder.ops.optim.host_optimizer.HostSettings`: ``maximize``, ``states``,
            ``max_grad_norm``, ``zero_grads``, ``seed``.

    Raises:
        OpArgumentError: an option is out of range or a parameter does not fit.
        IncompatibleOpError: the native op cannot be built or loaded here.
    """

    NATIVE = OP

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0,
        **settings: Unpack[HostSettings],
    ) -> None:
        super().__init__(params, settings, lr=lr, betas=betas, weight_decay=weight_decay)
