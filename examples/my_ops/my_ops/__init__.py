"""Native ops for PyTorch, built by accel-ops.

An op is loaded when it is first needed: importing this package compiles nothing and needs no compiler.
"""

from __future__ import annotations

from typing import Any

import torch

from my_ops import builders

__all__ = ["BUILDERS", "add_rms_norm", "load"]

BUILDERS = {
    "cpu": builders.MyOpsAddRmsNormBuilder,
    "cuda": builders.MyOpsAddRmsNormCudaBuilder,  # cuda
    "xpu": builders.MyOpsAddRmsNormSyclBuilder,  # sycl
}
_loaded: dict[str, Any] = {}


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Add ``x`` to ``residual`` in place, and return the root-mean-square norm of the sum, times ``weight``.

    For inference: it has no backward.

    Args:
        x: ``[..., columns]``, float32 or bfloat16, contiguous.
        residual: as ``x``; becomes ``x + residual``.
        weight: ``[columns]``, with the dtype and device of ``x``.
        eps: added to the mean of the squares.

    Raises:
        ValueError: a tensor does not fit or requires a gradient; nothing was changed.
        op_builder.errors.IncompatibleOpError: the op cannot be built or loaded; the message says why and what to do.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, residual, weight)):
        raise ValueError("add_rms_norm has no backward: call it under torch.no_grad().")
    # torch picks the kernel by the devices, so the binding does not see every mixture.
    if not x.device == residual.device == weight.device:
        raise ValueError(f"add_rms_norm: the devices differ: {x.device}, {residual.device}, {weight.device}.")
    if x.device.type not in _loaded:
        load(x.device.type)
    out = torch.empty_like(x)
    _loaded[x.device.type].add_rms_norm(out, residual, x, weight, eps)
    return out


def load(device_type: str) -> None:
    """Load the op for tensors of a device: prebuilt, from the cache, or compiled now.

    The first call of the op does this, too. Call it yourself before ``torch.compile``, which cannot trace it.
    """
    if device_type not in BUILDERS:
        raise ValueError(f"add_rms_norm has no kernels for {device_type!r} tensors, only for {', '.join(BUILDERS)}.")
    _loaded[device_type] = BUILDERS[device_type]().load()
