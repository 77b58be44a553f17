"""``CPUAdam``: Adam with parameters and optimizer state in host memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from op_builder.ops.arguments import switch
from op_builder.ops.declare import host_optimizer
from op_builder.ops.optim.host_optimizer import HostOptimizer, HostSettings
from op_builder.ops.optim.zenflow import ZenFlowOp

if TYPE_CHECKING:
    from typing_extensions import Unpack


class CPUAdamOp(ZenFlowOp):
    """What ``CPUAdamBuilder().load()`` returns: the functions of a host optimizer for Adam, and DeepSpeed's
    ``zenflow_adam_`` functions."""


OP = host_optimizer("cpu_adam", "CPUAdamBuilder", "Adam and AdamW", CPUAdamOp)


class CPUAdam(HostOptimizer):
    """Adam (Kingma & Ba, 2015) or AdamW (Loshchilov & Hutter, 2019) on CPU tensors, in one native pass.

    A drop-in for :class:`torch.optim.AdamW`: the same formula, state (``step``, ``exp_avg``,
    ``exp_avg_sq``) and group options, so either loads the other's ``state_dict``. Parameters
    are dense contiguous CPU tensors of float32, bfloat16 or float16, with gradients of any of the
    three. For a model on a GPU pass float32 copies in host memory, copy the gradients to the host and
    the updated parameters to the GPU.

    Args:
        model_params: parameters, or dicts of parameters and options, as for every torch optimizer.
        lr: learning rate, a number or a tensor of one element.
        bias_correction: divide the moments by ``1 - beta**step``.
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the denominator.
        weight_decay: decoupled weight decay, or L2 penalty without ``adamw_mode``.
        amsgrad: must be False. It keeps the place and the group option that torch's optimizers have.
        adamw_mode: decoupled weight decay (AdamW); False gives :class:`torch.optim.Adam`. It is the
            group option ``decoupled_weight_decay``.
        fp32_optimizer_states: keep the moments in float32 whatever the parameter's type; False keeps them in the
            parameter's type. ``states`` overrides it.
        settings: :class:`~op_builder.ops.optim.host_optimizer.HostSettings`: ``maximize``, ``states``,
            ``max_grad_norm``, ``zero_grads``, ``seed``.

    Raises:
        OpArgumentError: an option is out of range or a parameter does not fit.
        IncompatibleOpError: the native op cannot be built or loaded here.
    """

    NATIVE = OP

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
        **settings: Unpack[HostSettings],
    ) -> None:
        is_float32 = switch("fp32_optimizer_states", fp32_optimizer_states)
        settings["states"] = settings.get("states") or ("float32" if is_float32 else "param")
        super().__init__(
            model_params,
            settings,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            decoupled_weight_decay=adamw_mode,
            bias_correction=bias_correction,
        )
