"""The ops that are plain functions, each loaded at its first call.

They have SYCL kernels: XPU tensors use torch's current stream, CPU tensors a SYCL CPU device, which
the extra ``sycl`` installs. ``op_builder.xpu`` has their builders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from op_builder import xpu
from op_builder.ops.arguments import untraced


def packbits(x: torch.Tensor, bitorder: str = "big") -> torch.Tensor:
    """Pack uint8 or bool (..., n) to bits, uint8 (..., (n + 7) // 8): ``numpy.packbits`` along the last dimension.

    Arguments and errors: :meth:`op_builder.ops.functional.pack_bits.PackBitsModule.packbits`.
    """
    packed: torch.Tensor = _module("PackBitsBuilder").packbits(x, bitorder)
    return packed


def unpackbits(packed: torch.Tensor, count: int | None = None, bitorder: str = "big") -> torch.Tensor:
    """The reverse of :func:`packbits`: bits, uint8 (..., m), to uint8 (..., ``count``) of zeros and ones.

    Arguments and errors: :meth:`op_builder.ops.functional.pack_bits.PackBitsModule.unpackbits`.
    """
    bits: torch.Tensor = _module("PackBitsBuilder").unpackbits(packed, count, bitorder)
    return bits


def quantize_blocks(x: torch.Tensor, bits: int = 8, block_size: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of 8 or 4 ``bits`` of a float tensor, and a scale for each ``block_size`` elements.

    Arguments, formats and errors: :meth:`op_builder.ops.functional.block_quantize.BlockQuantizeModule.quantize_blocks`.
    """
    codes, scales = _module("BlockQuantizeBuilder").quantize_blocks(x, bits, block_size)
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
    x: torch.Tensor = _module("BlockQuantizeBuilder").dequantize_blocks(codes, scales, shape, dtype, block_size)
    return x


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension, of ``x + residual`` if a residual is given.

    Arguments and errors: :meth:`op_builder.ops.functional.rms_norm.RMSNormModule.rms_norm`.
    """
    normalised: torch.Tensor = _module("RMSNormBuilder").rms_norm(x, weight, eps, residual)
    return normalised


_loaded: dict[str, Any] = {}  # by builder, because finding a loaded op takes milliseconds


def _module(builder: str) -> Any:
    """The op that a builder of ``op_builder.xpu`` loads."""
    if builder not in _loaded:
        _load(builder)
    return _loaded[builder]


@untraced
def _load(builder: str) -> None:
    _loaded[builder] = getattr(xpu, builder)().load(verbose=False)
