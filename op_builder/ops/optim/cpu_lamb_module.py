"""The module that ``CPULambBuilder().load()`` returns."""

from __future__ import annotations

import torch

from op_builder.ops.arguments import checked_numbers
from op_builder.ops.optim.host_optimizer_module import HostOptimizerModule


class CPULambModule(HostOptimizerModule):
    """LAMB (You et al., 2020, arXiv:1904.00962, algorithm 2) on CPU tensors.

    Adam's step with decoupled weight decay, scaled for each tensor by the norm of the parameter over
    the norm of the step, where both are above 0. Norms are added up in float64. States are plain: the
    update refuses bytes and stochastic rounding. For the functions of one tensor these are contiguous
    CPU tensors of equal length: a parameter of float32, bfloat16 or float16, a gradient of any of the
    three, and two moments, both of float32 or both of the parameter's type.
    """

    OPTIONS = ("lr", "beta1", "beta2", "eps", "weight_decay", "bias_correction")
    STATES = ("exp_avg", "exp_avg_sq")

    def create_lamb(
        self,
        optimizer_id: int,
        alpha: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        should_log: bool = False,
    ) -> None:
        """Register an optimizer under an id of the caller's choice, an int.

        The values are checked here and given anew with every update.

        Raises:
            OpArgumentError: the id is no int or in use, or a value is out of range.
        """
        options = checked_numbers(lr=alpha, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
        self._register(optimizer_id, options, should_log)

    def lamb_update(
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
        self._options_of(optimizer_id)
        numbers = checked_numbers(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
        options = [*numbers.values(), bool(bias_correction)]
        self.update_list(self._lists_of_one(param, grad, exp_avg, exp_avg_sq), step, options)

    def destroy_lamb(self, optimizer_id: int) -> None:
        """Forget an optimizer; its id is free again.

        Raises:
            OpArgumentError: there is none with that id.
        """
        self._forget(optimizer_id)
