"""The module that ``CPUAdagradBuilder().load()`` returns."""

from __future__ import annotations

import torch

from op_builder.ops.arguments import checked_numbers
from op_builder.ops.optim.host_optimizer_module import HostOptimizerModule


class CPUAdagradModule(HostOptimizerModule):
    """Adagrad (Duchi, Hazan & Singer, 2011, JMLR 12:2121) on CPU tensors.

    The formula is torch.optim.Adagrad's, its state the sum of the squared gradients. For the functions
    of one tensor these are contiguous CPU tensors of equal length: a parameter of float32, bfloat16 or
    float16, a gradient of any of the three, and a state of float32 or of the parameter's type.
    """

    OPTIONS = ("lr", "eps", "weight_decay", "lr_decay")
    STATES = ("exp_avg_sq",)

    def create_adagrad(
        self,
        optimizer_id: int,
        alpha: float = 1e-2,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        should_log: bool = False,
    ) -> None:
        """Register an optimizer under an id of the caller's choice, an int.

        The values are checked here and given anew with every update.

        Raises:
            OpArgumentError: the id is no int or in use, or a value is out of range.
        """
        self._register(optimizer_id, checked_numbers(lr=alpha, eps=eps, weight_decay=weight_decay), should_log)

    def adagrad_update(
        self,
        optimizer_id: int,
        step: int,
        lr: float,
        eps: float,
        weight_decay: float,
        param: torch.Tensor,
        grad: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> None:
        """Update ``param`` and ``exp_avg_sq`` in place; ``step`` counts from 1, ``weight_decay`` is L2.

        Raises:
            OpArgumentError: an argument does not fit; no tensor was changed.
        """
        self._options_of(optimizer_id)
        options = checked_numbers(lr=lr, eps=eps, weight_decay=weight_decay, lr_decay=0.0)
        self.update_list(self._lists_of_one(param, grad, exp_avg_sq), step, list(options.values()))

    def destroy_adagrad(self, optimizer_id: int) -> None:
        """Forget an optimizer; its id is free again.

        Raises:
            OpArgumentError: there is none with that id.
        """
        self._forget(optimizer_id)
