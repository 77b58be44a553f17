"""The object that ``FusedAdamBuilder().load()`` returns for devices without kernels of this project."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import checked_numbers, step_number, switch

Tensors = Sequence[torch.Tensor]


class _Options(NamedTuple):
    """The numbers of an update, in the order of the vendors' functions."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    step: int
    mode: int
    bias_correction: bool
    weight_decay: float


class VendorAdam:
    """Adam and AdamW by the function of the device's vendor (NPU, MLU, SDAA), on other devices by functions of torch.

    The vendors' functions were never run on their devices by this project.
    """

    def multi_tensor_adam(
        self,
        chunk_size: int,  # noqa: ARG002
        noop_flag: torch.Tensor | None,
        tensor_lists: Sequence[Tensors],
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        step: int,
        mode: int,
        bias_correction: bool,
        weight_decay: float,
    ) -> None:
        """Update all parameters and their moments in place.

        Args:
            chunk_size: ignored.
            noop_flag: None, or a tensor of one element; another value than 0 skips the update.
            tensor_lists: ``[grads, params, exp_avgs, exp_avg_sqs]``, of equal length.
            step: the number of this update, from 1.
            mode: 0 is Adam with L2 penalty, 1 is AdamW.

        Raises:
            OpArgumentError: the lists or a number do not fit; no tensor was changed.
        """
        if len(tensor_lists) != 4 or len({len(tensors) for tensors in tensor_lists}) != 1:
            raise OpArgumentError(
                "tensor_lists does not have four lists of equal length.", "Pass [grads, params, exp_avgs, exp_avg_sqs]."
            )
        if mode not in (0, 1):
            raise OpArgumentError(
                f"mode is {mode!r}; 0 or 1 is required.", "Pass 0 for Adam with L2 penalty, 1 for AdamW."
            )
        numbers = checked_numbers(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
        bias_correction = switch("bias_correction", bias_correction)
        grads, params, exp_avgs, exp_avg_sqs = tensor_lists
        if not len(params):
            return
        options = _Options(**numbers, step=step_number(step), mode=mode, bias_correction=bias_correction)
        device = params[0].device.type
        if device == "mlu":
            torch.ops.torch_mlu.fused_adam(noop_flag, grads, params, exp_avgs, exp_avg_sqs, *options)
            return
        if device == "sdaa":
            torch.ops.sdaa.fused_adam(noop_flag, grads, params, exp_avgs, exp_avg_sqs, *options)
            return
        if noop_flag is not None and bool(noop_flag.item()):
            return
        update = _update_npu if device == "npu" else _update
        with torch.no_grad():
            for param, grad, exp_avg, exp_avg_sq in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
                update(param, grad, exp_avg, exp_avg_sq, options)


def _update_npu(param: torch.Tensor, grad: torch.Tensor, m: torch.Tensor, v: torch.Tensor, given: _Options) -> None:
    torch_npu = importlib.import_module("torch_npu")  # which made the device
    weight_decay = given.weight_decay
    if given.mode == 0 and weight_decay:  # the function decouples it
        grad, weight_decay = grad.add(param, alpha=weight_decay), 0.0
    beta1, beta2, earlier = given.beta1, given.beta2, given.step - 1
    # It multiplies these powers by the betas, and divides the moments by one minus the products.
    powers = (beta1**earlier, beta2**earlier) if given.bias_correction else (0.0, 0.0)
    torch_npu.npu_apply_adam_w(
        *powers, given.lr, weight_decay, beta1, beta2, given.eps, grad, None, False, False, out=(param, m, v)
    )


def _update(param: torch.Tensor, grad: torch.Tensor, m: torch.Tensor, v: torch.Tensor, given: _Options) -> None:
    # In the moments' type, which is float32 for parameters of 16 bits, as in this project's kernels.
    value, gradient = param.to(m.dtype), grad.to(m.dtype)
    if given.mode == 0:
        gradient = gradient.add(value, alpha=given.weight_decay)
    else:
        value = value.mul(1 - given.lr * given.weight_decay)
    m.lerp_(gradient, 1 - given.beta1)
    v.mul_(given.beta2).addcmul_(gradient, gradient, value=1 - given.beta2)
    corrections = [1 - beta**given.step if given.bias_correction else 1.0 for beta in (given.beta1, given.beta2)]
    denominator = (v / corrections[1]).sqrt_().add_(given.eps)
    param.copy_(value.addcdiv(m, denominator, value=-given.lr / corrections[0]))
