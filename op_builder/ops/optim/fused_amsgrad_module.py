"""The module that ``FusedAmsgradBuilder().load()`` returns."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from op_builder.ops.optim.fused_arguments import (
    Tensors,
    adam_options,
    checked_chunk,
    learning_rate,
    named_lists,
    step_or_tensors,
)
from op_builder.ops.optim.fused_module import Control, FusedOptimizerModule


class FusedAmsgradModule(FusedOptimizerModule):
    """AMSGrad (Reddi, Kale & Kumar, 2018, arXiv:1904.09237) over many tensors at once.

    The formula is that of torch.optim.Adam and AdamW with ``amsgrad``.
    """

    OPTIONS = ("lr", "beta1", "beta2", "eps", "weight_decay", "adamw_mode", "bias_correction")
    STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def multi_tensor_amsgrad(
        self,
        chunk_size: int,
        noop_flag: torch.Tensor | None,
        tensor_lists: Sequence[Tensors],
        lr: float | torch.Tensor,
        beta1: float,
        beta2: float,
        eps: float,
        step: int | torch.Tensor | Tensors,
        mode: int,
        bias_correction: bool,
        weight_decay: float,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        """Update parameters and all three states of all tensors in place.

        Args:
            chunk_size: the most elements that a block of threads works on at once.
            noop_flag: an int32 tensor of one element on the device of the parameters; if it is not 0 when
                the update runs, nothing is changed.
            tensor_lists: ``[grads, params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs]``, lists of equal length.
            lr: a number, or a float32 tensor of one element on that device, read when the update runs.
            step: the number of this update, from 1; or tensors, as for
                :meth:`~op_builder.ops.optim.fused_module.FusedAdamModule.multi_tensor_adam_capturable`.
            mode: 0 is Adam with L2 penalty, 1 is AdamW with decoupled weight decay.
            grad_scale, found_inf: as there.

        Raises:
            OpArgumentError: an argument does not fit; no tensor was changed.
        """
        number, lr_tensor = learning_rate(lr)
        options = adam_options(number, beta1, beta2, eps, weight_decay, mode, bias_correction)
        control = Control(lr_tensor, noop_flag, grad_scale, found_inf, chunk_size=checked_chunk(chunk_size))
        self.update_list(named_lists(tensor_lists, self.STATES), options, step_or_tensors(step), control)
