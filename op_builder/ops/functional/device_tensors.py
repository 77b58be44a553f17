"""What the ops with SYCL kernels ask of tensors before a binding sees them, which checks all else."""

from __future__ import annotations

from typing import Any

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import explained, is_dense, not_dense

_DEVICES = ("cpu", "xpu")


def require_plain(name: str, tensor: Any) -> None:
    """Refuse what is no dense tensor on the CPU or an XPU device, and what autograd would have to follow.

    Raises:
        OpArgumentError: it is one of these.
    """
    if not is_dense(tensor):
        raise not_dense(name, tensor)
    if tensor.device.type not in _DEVICES:
        raise OpArgumentError(
            f"{name} is on device {tensor.device}; this op works on the CPU and on XPU devices.",
            "Move it there, for example x.cpu().",
        )
    if tensor.requires_grad and torch.is_grad_enabled():
        raise OpArgumentError(
            f"{name} requires a gradient, and this op has no backward.", "Call it under torch.no_grad(), or detach."
        )


def call(op: Any, *arguments: object) -> None:
    """Call an op that writes into its arguments and returns nothing.

    Raises:
        OpArgumentError: the op refused an argument; nothing was written.
    """
    try:
        with explained(), torch.no_grad():
            op.default(*arguments)
    except NotImplementedError:
        raise OpArgumentError("torch has no kernel for a tensor of this kind.", "Pass plain tensors.") from None
