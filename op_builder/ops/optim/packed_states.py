"""8-bit states in Python, to create, save, load and inspect them; native code updates them.

csrc/kernels/cpu/codecs_inl.h defines the format: one tensor of bytes, a code for each element, then the exponent of the
scale, a power of two, for each block of 256 elements. A value's place is its magnitude over the scale, plus a small
power of two. A code is the part of that float where places differ: a sign and 3 bits of exponent, or 4 bits without a
sign, and 4 bits of fraction. The scale is the smallest with which the block's largest magnitude has a code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from op_builder.ops.arguments import require_memory
from op_builder.ops.optim.tensor_lists import QUANT_BLOCK

_PIECE = 1 << 18  # elements, whole blocks
_DROPPED_BITS = 19  # of a float's fraction
_LARGEST_PLACE = 1.9375
_NOT_FINITE = 255  # in place of an exponent


def _zero(non_negative: bool) -> float:
    """The place of zero."""
    return 2.0**-15 if non_negative else 2.0**-7


def packed_length(numel: int) -> int:
    """The bytes of an 8-bit state of ``numel`` elements."""
    return numel + -(-numel // QUANT_BLOCK)


def is_packed(state: object) -> bool:
    """Whether this is an 8-bit state."""
    return isinstance(state, torch.Tensor) and state.dtype == torch.uint8


def decoded(packed: torch.Tensor, shape: Sequence[int], non_negative: bool) -> torch.Tensor:
    """The values of an 8-bit state, as float32.

    Args:
        packed: uint8, of ``packed_length()`` bytes.
        shape: of the values.
        non_negative: whether the state has no sign.
    """
    require_memory("An 8-bit state", packed)
    packed = packed.detach().cpu()
    values = torch.empty(shape, dtype=torch.float32, device="cpu")
    codes, exponents = packed[: values.numel()], packed[values.numel() :]
    for at, (code, value) in _pieces(codes, values.view(-1)):
        value.copy_(_decoded_piece(code, exponents[at // QUANT_BLOCK :], non_negative))
    return values


def encoded(values: torch.Tensor, non_negative: bool) -> torch.Tensor:
    """The 8-bit state of floating-point values, rounded to nearest; those that :func:`decoded` returned are kept."""
    packed = torch.empty(packed_length(values.numel()), dtype=torch.uint8, device="cpu")
    codes, exponents = packed[: values.numel()], packed[values.numel() :]
    for at, (value, code) in _pieces(values.detach().reshape(-1), codes):
        code_piece, exponent_piece = _encoded_piece(value.float(), non_negative)
        code.copy_(code_piece)
        exponents[at // QUANT_BLOCK :][: exponent_piece.numel()] = exponent_piece
    return packed


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """The start of each piece and the piece of each tensor, so that temporaries are no larger than a piece."""
    for at in range(0, tensors[0].numel(), _PIECE):
        yield at, [tensor[at : at + _PIECE] for tensor in tensors]


def _bits(number: float) -> int:
    """The bits of a float32."""
    return int(torch.tensor(number, dtype=torch.float32, device="cpu").view(torch.int32))


def _decoded_piece(codes: torch.Tensor, exponents: torch.Tensor, non_negative: bool) -> torch.Tensor:
    code = codes.to(torch.int32)
    magnitude = code if non_negative else code & 0x7F
    zero = _zero(non_negative)
    place = (magnitude << _DROPPED_BITS | _bits(zero)).view(torch.float32)
    exponent = exponents[: -(-codes.numel() // QUANT_BLOCK)].to(torch.int32)
    scale = torch.where(exponent == _NOT_FINITE, torch.nan, (exponent << 23).view(torch.float32))
    values = (place - zero) * scale.repeat_interleave(QUANT_BLOCK)[: codes.numel()]
    return values if non_negative else torch.where(code > 0x80, -values, values)  # 0x80 is zero, which has no sign


def _encoded_piece(values: torch.Tensor, non_negative: bool) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = -(-values.numel() // QUANT_BLOCK)
    padded = torch.nn.functional.pad(values, (0, blocks * QUANT_BLOCK - values.numel())).reshape(blocks, QUANT_BLOCK)
    zero = _zero(non_negative)

    def places(exponent: torch.Tensor) -> torch.Tensor:
        has_values = (exponent > 0) & (exponent != _NOT_FINITE)
        factor = torch.where(has_values, (254 - exponent) << 23, 0).view(torch.float32)
        return (padded.abs() * factor[:, None] + zero).view(torch.int32)

    carry = _bits(1.0) + 0x7FFFFF - _bits(_LARGEST_PLACE - zero)
    exponent = (padded.abs().amax(dim=1).view(torch.int32) + carry) >> 23
    exponent = torch.where(exponent >= 254, _NOT_FINITE, exponent)
    # Native code may have rounded the largest magnitude down after it chose the scale, which is the next one then.
    has_next = (exponent > 0) & (exponent < 253)
    is_of_next = has_next & (places(exponent + 1) & ((1 << _DROPPED_BITS) - 1) == 0).all(dim=1)
    exponent = exponent + is_of_next.int()
    code = (places(exponent) + (1 << (_DROPPED_BITS - 1))) >> _DROPPED_BITS
    # Never zero: the second moment is a divisor.
    code = (code & 0xFF).clamp(min=1) if non_negative else code & 0x7F | torch.where(padded < 0, 0x80, 0)
    return code.to(torch.uint8).reshape(-1)[: values.numel()], exponent.to(torch.uint8)
