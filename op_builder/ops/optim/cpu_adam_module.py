"""The module that ``CPUAdamBuilder().load()`` returns."""

from __future__ import annotations

import torch

from op_builder.ops.arguments import call_op, checked_numbers, step_number
from op_builder.ops.optim.host_optimizer_module import HostOptimizerModule


class CPUAdamModule(HostOptimizerModule):
    """Adam (Kingma & Ba, 2015) and AdamW (Loshchilov & Hutter, 2019) on CPU tensors.

    The formula is torch.optim.AdamW's. For the functions of one tensor these are contiguous CPU
    tensors of equal length: a parameter of float32, bfloat16 or float16, a gradient of any of the
    three, and two moments, both of float32 or both of the parameter's type.
    """

    OPTIONS = ("lr", "beta1", "beta2", "eps", "weight_decay", "adamw_mode", "bias_correction")
    STATES = ("exp_avg", "exp_avg_sq")

    def create_adam(
        self,
        optimizer_id: int,
        alpha: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adamw_mode: bool = True,
        should_log: bool = False,
    ) -> None:
        """Register an optimizer under an id of the caller's choice, an int.

        The id fixes ``adamw_mode`` (decoupled weight decay, or L2 where False); the other values
        are checked here and given anew with every update.

        Raises:
            OpArgumentError: the id is no int or in use, or a value is out of range.
        """
        numbers = checked_numbers(lr=alpha, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
        self._register(optimizer_id, {**numbers, "adamw_mode": bool(adamw_mode)}, should_log)

    def adam_update(
        self,
        optimizer_id: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        bias_correction: bool,
        param: torch.Tensor,
        grad: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> None:
        """Update ``param``, ``exp_avg`` and ``exp_avg_sq`` in place; ``step`` counts from 1.

        Raises:
            OpArgumentError: an argument does not fit; no tensor was changed.
        """
        adamw_mode = self._options_of(optimizer_id)["adamw_mode"]
        numbers = checked_numbers(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
        options = (*numbers.values(), adamw_mode, bool(bias_correction))
        self.update_list(self._lists_of_one(param, grad, exp_avg, exp_avg_sq), step, options)

    def adam_rollback(
        self,
        optimizer_id: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        bias_correction: bool,
        param: torch.Tensor,
        grad: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> None:
        """Undo the :meth:`adam_update` that had these arguments and left these tensors.

        All four tensors are float32. With p, m, v the values before the update, p', m', v' after
        it, u = 2**-24 and decay = 1 - lr * weight_decay (1 without adamw_mode), what comes back
        is, to first order in u, within

        - ``param``: u * (2|p| + (|p'| + |p' - decay * p|) / |decay|)
        - ``exp_avg``: u * (2|m| + |m'| / beta1)
        - ``exp_avg_sq``: u * (2|v| + |v'| / beta2)

        of p, m, v, where no value overflowed; subnormal values add up to 2**-148 over decay or
        beta. ``csrc/kernels/cpu/adam.h`` derives this, and says what weight decay as L2 adds.

        Raises:
            OpArgumentError: an argument does not fit, among them other dtypes, a beta of 0 and
                lr * weight_decay = 1, where the old values are lost; no tensor was changed.
        """
        adamw_mode = self._options_of(optimizer_id)["adamw_mode"]
        numbers = checked_numbers(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
        options = (*numbers.values(), adamw_mode, bool(bias_correction))
        tensors = self._lists_of_one(param, grad, exp_avg, exp_avg_sq)
        params, grads, states, _, _ = tensors.positional()
        grad_scale = 1.0  # the update of one tensor has none
        arguments = (step_number(step), [float(value) for value in options], grad_scale, self.isa)
        call_op(self.ops.rollback.default, tensors.by_role(self.STATES), (params, grads, states), *arguments)
        torch.autograd.graph.increment_version(params)

    def destroy_adam(self, optimizer_id: int) -> None:
        """Forget an optimizer; its id is free again.

        Raises:
            OpArgumentError: there is none with that id.
        """
        self._forget(optimizer_id)
