"""``FusedAdam``: Adam in one kernel over all parameters, on the device where they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from op_builder.cache.store import Cache
from op_builder.load.load import load
from op_builder.ops.declare import fused_optimizer
from op_builder.ops.optim.fused_op import FusedOp
from op_builder.ops.optim.fused_optimizer import FusedOptimizer
from op_builder.ops.optim.vendor_adam import VendorAdam

OP = fused_optimizer("fused_adam", "FusedAdamBuilder", "Adam and AdamW", FusedOp, has_sycl=True, elsewhere=VendorAdam)


class FusedAdam(FusedOptimizer):
    """Adam (Kingma & Ba, 2015) or AdamW (Loshchilov & Hutter, 2019) on CUDA devices and the CPU.

    A drop-in for :class:`torch.optim.AdamW`: the same formula, state (``step``, ``exp_avg``,
    ``exp_avg_sq``) and group options, so either loads the other's ``state_dict``. ``step`` is on
    the parameter's device. Parameters are dense contiguous tensors of float32, bfloat16 or float16, with
    gradients of any of the three; they may be on several devices. Every step except the first can be captured into
    a CUDA graph.

    Args:
        params: parameters, or dicts of parameters and options, as for every torch optimizer.
        lr: learning rate, a number or a tensor of one element; a tensor on a CUDA device is read there,
            also when a captured graph is replayed.
        bias_correction: divide the moments by ``1 - beta**step``.
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the denominator.
        adam_w_mode: decoupled weight decay (AdamW); False gives :class:`torch.optim.Adam`. It is the
            group option ``decoupled_weight_decay``.
        weight_decay: decoupled weight decay, or L2 penalty without ``adam_w_mode``.
        amsgrad: must be False. It keeps the place and the group option that torch's optimizers have.
        maximize: maximise the objective.
        capturable: kept for :class:`torch.optim.AdamW`, which may load the state; has no effect here.
        states: storage of the moments: ``float32`` or ``param`` (the parameter's type; float16 holds
            no second moment below 6e-8).

    Raises:
        OpArgumentError: an option is out of range or a parameter does not fit.
        IncompatibleOpError: the native op cannot be built or loaded here.
    """

    NATIVE = OP

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        capturable: bool = False,
        states: str = "float32",
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            capturable=capturable,
            decoupled_weight_decay=adam_w_mode,
            bias_correction=bias_correction,
            states=states,
        )


class SYCLFusedAdam(FusedAdam):
    """:class:`op_builder.ops.FusedAdam` with SYCL kernels, on any accelerator; options and state are the same.

    On an XPU device :class:`op_builder.ops.FusedAdam` already uses these kernels. This class is for parameters in host
    memory, which a SYCL CPU device updates in place: to test a GPU's kernels on a machine without one.
    """

    def _load(self) -> Any:
        return load(self.NATIVE.spec_for("xpu"), Cache())
