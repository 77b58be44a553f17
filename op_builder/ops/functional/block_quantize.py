"""The object that ``BlockQuantizeBuilder().load()`` returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import bounded_int, checked_shape
from op_builder.ops.declare import sycl_spec
from op_builder.ops.functional.device_tensors import call, load_sycl, require_plain
from op_builder.spec import OpFamily

_LARGEST_BLOCK = 2**62  # the kernels add it to a tensor's number of elements
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class BlockQuantizeModule:
    """Symmetric quantization of a tensor by blocks, to codes of eight or four bits and a scale for each block.

    A tensor's elements, in memory order, are divided into blocks of ``block_size``; the last may be shorter. A
    block's scale is its largest magnitude divided by the largest code, 127 or 7; its codes are its elements divided
    by the scale, rounded to nearest even. The error of an element is at most half a scale, plus rounding. A block whose
    scale would be below the smallest normal float32 becomes zeros; one with a NaN or an infinity becomes NaN.
    """

    def __init__(self, ops: Any) -> None:
        self.ops = ops

    def quantize_blocks(
        self, x: torch.Tensor, bits: int = 8, block_size: int = 256
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales of ``x``; an OpArgumentError if an argument does not fit.

        Args:
            x: float32, bfloat16 or float16, of any shape.
            bits: 8 or 4.
            block_size: even, at least 2.

        Returns:
            Codes and scales on x's device. Codes are one int8 for each element, or one uint8 for two, the first
            in the low half and each as a two's complement; scales one float32 for each block.
        """
        # The op refuses 5 to 7 bits and an odd size.
        bits, block_size = bounded_int("bits", bits, 4, 8, "Pass 8 or 4."), _block_size(block_size)
        require_plain("x", x)
        numel = x.numel()
        dtype, length = (torch.int8, numel) if bits == 8 else (torch.uint8, (numel + 1) // 2)
        codes = torch.empty(length, dtype=dtype, device=x.device)
        scales = torch.empty((numel + block_size - 1) // block_size, dtype=torch.float32, device=x.device)
        call(self.ops.quantize, x.contiguous(), codes, scales, block_size, bits)
        return codes, scales

    def dequantize_blocks(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        block_size: int = 256,
    ) -> torch.Tensor:
        """The tensor that the codes represent: each times its block's scale, rounded once to ``dtype``.

        Args:
            codes, scales: the results of :meth:`quantize_blocks`; the codes' type determines the number of bits.
            shape: the shape of the quantized tensor.
            dtype: float32, bfloat16 or float16.
            block_size: the block size of the quantization.
        """
        require_plain("codes", codes)
        require_plain("scales", scales)
        bits, block_size = 4 if codes.dtype == torch.uint8 else 8, _block_size(block_size)
        if dtype not in _FLOATS:
            raise OpArgumentError(f"dtype is {dtype}.", "Pass torch.float32, torch.bfloat16 or torch.float16.")
        lengths = checked_shape(shape, "Pass the shape of the tensor that was quantized.")
        numel = math.prod(lengths)
        if codes.numel() != (numel if bits == 8 else (numel + 1) // 2):  # before allocating a wrong shape
            raise OpArgumentError(
                f"codes has {codes.numel()} elements, which does not match {bits} bits per element of shape {lengths}.",
                "Pass the shape of the tensor that was quantized.",
            )
        x = torch.empty(lengths, dtype=dtype, device=codes.device)
        call(self.ops.dequantize, codes.contiguous(), scales.contiguous(), x, block_size, bits)
        return x


def _block_size(block_size: int) -> int:
    return bounded_int("block_size", block_size, 2, _LARGEST_BLOCK, "Pass an even number, for example 256.")


OP = OpFamily(
    "block_quantize",
    "BlockQuantizeBuilder",
    "block quantization to 8 or 4 bits, and dequantization",
    xpu=sycl_spec("block_quantize", BlockQuantizeModule),
)


def quantize_blocks(x: torch.Tensor, bits: int = 8, block_size: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of 8 or 4 ``bits`` of a float tensor, and a scale for each ``block_size`` elements.

    Arguments, formats and errors: :meth:`op_builder.ops.functional.block_quantize.BlockQuantizeModule.quantize_blocks`.
    """
    codes, scales = load_sycl(OP).quantize_blocks(x, bits, block_size)
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
    x: torch.Tensor = load_sycl(OP).dequantize_blocks(codes, scales, shape, dtype, block_size)
    return x
