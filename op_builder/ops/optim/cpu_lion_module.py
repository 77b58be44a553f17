"""The module that ``CPULionBuilder().load()`` returns."""

from __future__ import annotations

import torch

from op_builder.ops.arguments import checked_numbers
from op_builder.ops.optim.host_optimizer_module import HostOptimizerModule


class CPULionModule(HostOptimizerModule):
    """Lion (Chen et al., 2023, arXiv:2302.06675) on CPU tensors, with decoupled weight decay.

    For the functions of one tensor these are contiguous CPU tensors of equal length: a parameter of
    float32, bfloat16 or float16, a gradient of any of the three, and a moment of float32 or of the
    parameter's type.
    """

    OPTIONS = ("lr", "beta1", "beta2", "weight_decay")
    STATES = ("exp_avg",)

    def create_lion(
        self,
        optimizer_id: int,
        alpha: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 0.0,
        should_log: bool = False,
    ) -> None:
        """Register an optimizer under an id of the caller's choice, an int.

        The values are checked here and given anew with every update.

        Raises:
            OpArgumentError: the id is no int or in use, or a value is out of range.
        """
        options = checked_numbers(lr=alpha, beta1=beta1, beta2=beta2, weight_decay=weight_decay)
        self._register(optimizer_id, options, should_log)

    def lion_update(
        self,
        optimizer_id: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        weight_decay: float,
        param: torch.Tensor,
        grad: torch.Tensor,
        exp_avg: torch.Tensor,
    ) -> None:
        """Update ``param`` and ``exp_avg`` in place; ``step`` counts from 1, the formula does not use it.

        Raises:
            OpArgumentError: an argument does not fit; no tensor was changed.
        """
        self._options_of(optimizer_id)
        options = checked_numbers(lr=lr, beta1=beta1, beta2=beta2, weight_decay=weight_decay)
        self.update_list(self._lists_of_one(param, grad, exp_avg), step, list(options.values()))

    def destroy_lion(self, optimizer_id: int) -> None:
        """Forget an optimizer; its id is free again.

        Raises:
            OpArgumentError: there is none with that id.
        """
        self._forget(optimizer_id)
