"""The ops that are plain functions, each loaded when it is first called.

They have SYCL kernels: for XPU tensors on torch's current stream, for CPU tensors on a SYCL CPU device, which
``pip install accel-ops[sycl]`` brings. ``op_builder.xpu`` has their builders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from op_builder.ops.arguments import untraced

if TYPE_CHECKING:
    from op_builder.ops.functional.block_quantize import BlockQuantizeModule
    from op_builder.ops.functional.pack_bits import PackBitsModule
    from op_builder.ops.functional.rms_norm import RMSNormModule


def packbits(x: torch.Tensor, bitorder: str = "big") -> torch.Tensor:
    """Pack uint8 or bool (..., n) to bits, uint8 (..., (n + 7) // 8): ``numpy.packbits`` along the last dimension.

    Arguments and errors: :meth:`op_builder.ops.functional.pack_bits.PackBitsModule.packbits`.
    """
    return _pack_bits().packbits(x, bitorder)


def unpackbits(packed: torch.Tensor, count: int | None = None, bitorder: str = "big") -> torch.Tensor:
    """The reverse of :func:`packbits`: bits, uint8 (..., m), to uint8 (..., ``count``) of zeros and ones.

    Arguments and errors: :meth:`op_builder.ops.functional.pack_bits.PackBitsModule.unpackbits`.
    """
    return _pack_bits().unpackbits(packed, count, bitorder)


def quantize_blocks(x: torch.Tensor, bits: int = 8, block_size: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of 8 or 4 ``bits`` of a float tensor, and a scale for each ``block_size`` elements.

    Arguments, formats and errors: :meth:`op_builder.ops.functional.block_quantize.BlockQuantizeModule.quantize_blocks`.
    """
    return _block_quantize().quantize_blocks(x, bits, block_size)


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
    return _block_quantize().dequantize_blocks(codes, scales, shape, dtype, block_size)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension, of ``x + residual`` where there is one.

    Arguments and errors: :meth:`op_builder.ops.functional.rms_norm.RMSNormModule.rms_norm`.
    """
    return _rms_norm().rms_norm(x, weight, eps, residual)


_loaded: dict[str, Any] = {}


def _module(builder: str) -> Any:
    """What a builder of ``op_builder.xpu`` loads: once, as even finding the op again takes milliseconds."""
    if builder not in _loaded:
        _load(builder)
    return _loaded[builder]


@untraced
def _load(builder: str) -> None:
    from op_builder import xpu

    _loaded[builder] = getattr(xpu, builder)().load(verbose=False)


def _pack_bits() -> PackBitsModule:
    return cast("PackBitsModule", _module("PackBitsBuilder"))


def _block_quantize() -> BlockQuantizeModule:
    return cast("BlockQuantizeModule", _module("BlockQuantizeBuilder"))


def _rms_norm() -> RMSNormModule:
    return cast("RMSNormModule", _module("RMSNormBuilder"))
