"""The module that ``CPUAmsgradBuilder().load()`` returns."""

from __future__ import annotations

import torch

from op_builder.ops.arguments import checked_numbers
from op_builder.ops.optim.host_optimizer_module import HostOptimizerModule


class CPUAmsgradModule(HostOptimizerModule):
    """AMSGrad (Reddi, Kale & Kumar, 2018, arXiv:1904.09237) on CPU tensors.

    The formula is that of torch.optim.Adam and AdamW with ``amsgrad``. States are plain: the update
    refuses bytes and stochastic rounding. For the functions of one tensor these are contiguous CPU
    tensors of equal length: a parameter of float32, bfloat16 or float16, a gradient of any of the
    three, and three states, all of float32 or all of the parameter's type.
    """

    OPTIONS = ("lr", "beta1", "beta2", "eps", "weight_decay", "adamw_mode", "bias_correction")
    STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def create_amsgrad(
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

    def amsgrad_update(
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
        max_exp_avg_sq: torch.Tensor,
    ) -> None:
        """Update ``param`` and the three states in place; ``step`` counts from 1.

        Raises:
            OpArgumentError: an argument does not fit; no tensor was changed.
        """
        adamw_mode = self._options_of(optimizer_id)["adamw_mode"]
        numbers = checked_numbers(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
        options = (*numbers.values(), adamw_mode, bool(bias_correction))
        tensors = self._lists_of_one(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq)
        self.update_list(tensors, step, options)

    def destroy_amsgrad(self, optimizer_id: int) -> None:
        """Forget an optimizer; its id is free again.

        Raises:
            OpArgumentError: there is none with that id.
        """
        self._forget(optimizer_id)
