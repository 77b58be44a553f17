"""The ops that are plain functions, each loaded at its first call.

They have SYCL kernels: XPU tensors use torch's current stream, CPU tensors a SYCL CPU device, which
the extra ``sycl`` installs. ``op_builder.xpu`` has their builders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from op_builder.cache.store import Cache
from op_builder.load.load import load
from op_builder.ops.arguments import untraced
from op_builder.ops.functional import block_quantize, pack_bits
from op_builder.ops.functional import rms_norm as rms_norm_op
from op_builder.spec import OpFamily


def packbits(x: torch.Tensor, bitorder: str = "big") -> torch.Tensor:
    """Pack uint8 or bool (..., n) to bits, uint8 (..., (n + 7) // 8): ``numpy.packbits`` along the last dimension.

    Arguments and errors: :meth:`op_builder.ops.functional.pack_bits.PackBitsModule.packbits`.
    """
    packed: torch.Tensor = _module(pack_bits.OP).packbits(x, bitorder)
    return packed


def unpackbits(packed: torch.Tensor, count: int | None = None, bitorder: str = "big") -> torch.Tensor:
    """The reverse of :func:`packbits`: bits, uint8 (..., m), to uint8 (..., ``count``) of zeros and ones.

    Arguments and errors: :meth:`op_builder.ops.functional.pack_bits.PackBitsModule.unpackbits`.
    """
    bits: torch.Tensor = _module(pack_bits.OP).unpackbits(packed, count, bitorder)
    return bits


def quantize_blocks(x: torch.Tensor, bits: int = 8, block_size: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of 8 or 4 ``bits`` of a float tensor, and a scale for each ``block_size`` elements.

    Arguments, formats and errors: :meth:`op_builder.ops.functional.block_quantize.BlockQuantizeModule.quantize_blocks`.
    """
    codes, scales = _module(block_quantize.OP).quantize_blocks(x, bits, block_size)
    return codes, scales


def dequantize_blocks(
    codes: torch.Tensor,
    scales: torch.Tensor,
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    block_size: int = 256,
) -> torch.Tensor:
    """The reverse of :func:`quantize_blocks`: a tensor of ``shape`` and ``dtype``.

    Arguments and errors: :meth:`op_builder.ops.functional.block_quantize.BlockQuantizeModule.dequantize_blocks`.
    """
    x: torch.Tensor = _module(block_quantize.OP).dequantize_blocks(codes, scales, shape, dtype, block_size)
    return x


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension, of ``x + residual`` if a residual is given.

    Arguments and errors: :meth:`op_builder.ops.functional.rms_norm.RMSNormModule.rms_norm`.
    """
    normalised: torch.Tensor = _module(rms_norm_op.OP).rms_norm(x, weight, eps, residual)
    return normalised


_loaded: dict[str, Any] = {}  # by name, because finding a loaded op takes milliseconds


def _module(op: OpFamily) -> Any:
    """What an op with SYCL kernels loads."""
    if op.name not in _loaded:
        _load(op)
    return _loaded[op.name]


@untraced
def _load(op: OpFamily) -> None:
    _loaded[op.name] = load(op.spec_for("xpu"), Cache())
