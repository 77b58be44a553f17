"""The ops with SYCL kernels: loading them, and checks of tensors; their bindings check everything else.

XPU tensors use torch's current stream, CPU tensors a SYCL CPU device, which the extra ``sycl`` installs.
"""

from __future__ import annotations

from typing import Any

import torch

from op_builder.cache.store import Cache
from op_builder.errors import OpArgumentError
from op_builder.load.load import load
from op_builder.ops.arguments import explained, is_dense, not_dense, require_memory, untraced
from op_builder.spec import OpFamily

_DEVICES = ("cpu", "xpu")


def require_plain(name: str, tensor: Any) -> None:
    """Raise an OpArgumentError unless it is a dense tensor in memory of the CPU or an XPU device, without gradient."""
    if not is_dense(tensor):
        raise not_dense(name, tensor)
    if tensor.device.type not in _DEVICES:
        raise OpArgumentError(
            f"{name} is on device {tensor.device}; this op supports the CPU and XPU devices.",
            "Move it, for example by x.cpu().",
        )
    require_memory(name, tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise OpArgumentError(
            f"{name} requires a gradient, and this op has no backward.", "Call it under torch.no_grad(), or detach x."
        )


def call(op: Any, *arguments: object) -> None:
    """Call an op that writes into its arguments; raises an OpArgumentError, with nothing written, if it rejects one."""
    try:
        with explained(), torch.no_grad():
            op.default(*arguments)
    except NotImplementedError:
        raise OpArgumentError(
            "torch has no kernel for a tensor of this kind.", "Pass dense tensors of the class torch.Tensor."
        ) from None


_loaded: dict[str, Any] = {}  # by name, because finding a loaded op takes milliseconds


def load_sycl(op: OpFamily) -> Any:
    """What an op with SYCL kernels loads; the first call loads it."""
    if op.name not in _loaded:
        _load(op)
    return _loaded[op.name]


@untraced
def _load(op: OpFamily) -> None:
    _loaded[op.name] = load(op.spec_for("xpu"), Cache())
