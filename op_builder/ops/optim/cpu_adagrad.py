"""``CPUAdagrad``: Adagrad with parameters and optimizer state in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from op_builder.ops.arguments import finite_number
from op_builder.ops.optim.host_optimizer import HostOptimizer


class CPUAdagrad(HostOptimizer):
    """Adagrad (Duchi, Hazan & Singer, 2011) on CPU tensors, in one native pass.

    A drop-in for :class:`torch.optim.Adagrad`: the same formula, state (``step``, ``sum``) and group
    options, so that either loads the other's ``state_dict``. Parameters are dense contiguous CPU
    tensors of float32, bfloat16 or float16, with gradients of any of the three.

    Args:
        params: parameters, or dicts of parameters and options.
        lr: learning rate, a number or a tensor of one element.
        lr_decay: the learning rate is divided by ``1 + (step - 1) * lr_decay``.
        weight_decay: L2 penalty.
        initial_accumulator_value: what the sums of squares begin with.
        eps: added to the denominator.
        maximize: climb instead of descend.
        states: how the sums are kept: ``float32``, ``param`` (the parameter's type), ``bfloat16``
            (rounded at random) or ``8bit``.
        max_grad_norm: gradients are scaled down so that the Euclidean norm of all together is at
            most this.
        zero_grads: leave zeros in the gradients after a step.
        seed: of the random rounding.

    Raises:
        OpArgumentError: an option is out of range or a parameter does not fit.
        IncompatibleOpError: the native op cannot be built or loaded here.
    """

    NATIVE = "CPUAdagradBuilder"
    STATES = ("sum",)
    NON_NEGATIVE = frozenset({"sum"})

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        states: str = "float32",
        max_grad_norm: float | None = None,
        zero_grads: bool = False,
        seed: int = 0,
    ) -> None:
        options = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "maximize": maximize,
            "states": states,
        }
        super().__init__(params, options, max_grad_norm=max_grad_norm, zero_grads=zero_grads, seed=seed)
        # As torch.optim.Adagrad, which expects the sums of a state that it loads.
        for group in self.param_groups:
            for param in group["params"]:
                self.state_of(param, group)

    def _check_options(self, group: Mapping[str, Any]) -> None:
        for name in ("lr_decay", "initial_accumulator_value", "eps"):
            finite_number(name, group[name])

    def _first_value(self, _name: str, group: Mapping[str, Any]) -> float:
        return float(group["initial_accumulator_value"])
