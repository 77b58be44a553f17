"""``CPUAdagrad``: Adagrad with parameters and optimizer state in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from op_builder.ops.declare import host_optimizer
from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.host_optimizer import HostOptimizer, HostSettings

if TYPE_CHECKING:
    from typing_extensions import Unpack

OP = host_optimizer("cpu_adagrad", "CPUAdagradBuilder", "Adagrad", HostOp)


class CPUAdagrad(HostOptimizer):
    """Adagrad (Duchi, Hazan & Singer, 2011) on CPU tensors, in one native pass.

    A drop-in for :class:`torch.optim.Adagrad`: the same formula, state (``step``, ``sum``) and group
    options, so either loads the other's ``state_dict``. Parameters are dense contiguous CPU
    tensors of float32, bfloat16 or float16, with gradients of any of the three.

    Args:
        params: parameters, or dicts of parameters and options.
        lr: learning rate, a number or a tensor of one element.
        lr_decay: the learning rate is divided by ``1 + (step - 1) * lr_decay``.
        weight_decay: L2 penalty.
        initial_accumulator_value: initial value of the sums of squares.
        eps: added to the denominator.
        settings: :class:`~op_builder.ops.optim.host_optimizer.HostSettings`: ``maximize``, ``states``,
            ``max_grad_norm``, ``zero_grads``, ``seed``.

    Raises:
        OpArgumentError: an option is out of range or a parameter does not fit.
        IncompatibleOpError: the native op cannot be built or loaded here.
    """

    NATIVE = OP
    NON_NEGATIVE = frozenset({"sum"})
    NUMBERS = ("eps", "weight_decay", "lr_decay", "initial_accumulator_value")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        **settings: Unpack[HostSettings],
    ) -> None:
        super().__init__(
            params,
            settings,
            lr=lr,
            lr_decay=lr_decay,
            eps=eps,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
        )
        # torch.optim.Adagrad also makes its state here, and expects it in a ``state_dict``.
        for group in self.param_groups:
            for param in group["params"]:
                self.state_of(param, group)

    def states_of(self, group: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        return ("sum",)  # torch.optim.Adagrad's name for it

    def _first_value(self, _name: str, group: Mapping[str, Any]) -> float:
        return float(group["initial_accumulator_value"])
