"""A template of a package with a native op of its own, for CPU, CUDA and XPU tensors.

What to change: the functions here are what your users call. An op is loaded when it is first needed: importing the
package compiles nothing and needs no compiler.
"""

from __future__ import annotations

from typing import Any

import torch

from my_ops import builders

__all__ = ["add_rms_norm", "load"]

_BUILDERS = {
    "cpu": builders.MyAddRmsNormBuilder,
    "cuda": builders.MyAddRmsNormCudaBuilder,
    "xpu": builders.MyAddRmsNormSyclBuilder,
}
_loaded: dict[str, Any] = {}


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Add ``x`` to ``residual`` in place, and return the root-mean-square norm of the sum, times ``weight``.

    For inference: it has no backward.

    Args:
        x: ``[..., columns]``, float32 or bfloat16, contiguous, on the CPU, a CUDA device or an XPU.
        residual: as ``x``; becomes ``x + residual``.
        weight: ``[columns]``, of the same dtype and device.
        eps: added to the mean of the squares.

    Raises:
        ValueError: a tensor does not fit, or wants a gradient; nothing was changed.
        op_builder.errors.IncompatibleOpError: the op cannot be built or loaded here; says why and what to do.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, residual, weight)):
        raise ValueError("add_rms_norm has no backward: call it under torch.no_grad().")
    # The devices decide which kernel torch takes, so the binding sees only some of the mixtures.
    if not x.device == residual.device == weight.device:
        raise ValueError(f"add_rms_norm: the devices differ: {x.device}, {residual.device}, {weight.device}.")
    if x.device.type not in _loaded:
        load(x.device.type)
    out = torch.empty_like(x)
    _loaded[x.device.type].add_rms_norm(out, residual, x, weight, eps)
    return out


def load(device_type: str) -> None:
    """Have the op for tensors of a device loaded: prebuilt, from the cache, or compiled now.

    The first call of the op does it, too. Call this before ``torch.compile``, which cannot trace it.
    """
    if device_type not in _BUILDERS:
        raise ValueError(f"add_rms_norm has no kernels for {device_type!r} tensors, only for {', '.join(_BUILDERS)}.")
    _loaded[device_type] = _BUILDERS[device_type]().load()
