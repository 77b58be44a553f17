"""``CPULamb``: LAMB with parameters and optimizer state in host memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from op_builder.ops.declare import host_optimizer
from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.host_optimizer import HostOptimizer, HostSettings

if TYPE_CHECKING:
    from typing_extensions import Unpack

OP = host_optimizer("cpu_lamb", "CPULambBuilder", "LAMB", HostOp)


class CPULamb(HostOptimizer):
    """LAMB (You et al., 2020, arXiv:1904.00962) on CPU tensors: Adam's step, scaled for each tensor.

    Each parameter's step is scaled to the parameter's own norm (the trust ratio), so that very large
    batches can be trained with large learning rates. The state is Adam's. Parameters are dense
    contiguous CPU tensors of float32, bfloat16 or float16, with gradients of any of the three.

    Args:
        params: parameters, or dicts of parameters and options.
        lr: learning rate, a number or a tensor of one element.
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the denominator.
        weight_decay: decoupled weight decay, part of the step that is scaled.
        bias_correction: divide the moments by ``1 - beta**step``.
        settings: :class:`~op_builder.ops.optim.host_optimizer.HostSettings`: ``maximize``, ``states``,
            ``max_grad_norm``, ``zero_grads``, ``seed``.

    Raises:
        OpArgumentError: an option is out of range or a parameter does not fit.
        IncompatibleOpError: the native op cannot be built or loaded here.
    """

    NATIVE = OP
    NEEDS_NORMS = True
    STORAGES = ("float32", "param")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0,
        bias_correction: bool = True,
        **settings: Unpack[HostSettings],
    ) -> None:
        super().__init__(
            params, settings, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, bias_correction=bias_correction
        )
