"""8-bit states in Python, to create, load and inspect them; native code updates them.

csrc/kernels/cpu/codecs_inl.h defines the format: one byte per element, and a float32 scale for each block of 256.
A value's place is its magnitude over the scale, plus a small power of two. A code is the part of that float where
places differ: a sign and 4 bits of exponent, or 5 bits without a sign, and 3 bits of fraction. The scale
maps the block's largest magnitude to the largest code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from op_builder.ops.optim.tensor_lists import QUANT_BLOCK

_PIECE = 1 << 18  # elements, whole blocks
_DROPPED_BITS = 20  # of a float's fraction
_LARGEST_PLACE = 1.875


def _zero(non_negative: bool) -> float:
    """The place of zero."""
    return 2.0**-31 if non_negative else 2.0**-15


def _least_scale(non_negative: bool) -> float:
    """The smallest scale; a block below it counts as zero."""
    return 2.0**-115 if non_negative else 2.0**-126


def names(state: str) -> tuple[str, str]:
    """The names of a state's codes and scales; other than the state's, so that other optimizers do not accept them."""
    return f"{state}_codes", f"{state}_scale"


def are_saved(state: str, saved: Mapping[str, Any]) -> bool:
    """Whether this state was saved as codes."""
    return all(saved.get(name) is not None for name in names(state))


def saved_values(state: str, saved: Mapping[str, Any], non_negative: bool) -> torch.Tensor | None:
    """A state's values, decoded or as they were saved; None if they are missing."""
    if are_saved(state, saved):
        codes, scales = names(state)
        return decoded(saved[codes], saved[scales], non_negative)
    return saved.get(state)


def decoded(codes: torch.Tensor, scales: torch.Tensor, non_negative: bool) -> torch.Tensor:
    """The values of an 8-bit state, as float32.

    Args:
        codes: uint8, of any shape.
        scales: float32, one for each 256 elements begun.
        non_negative: whether the state has no sign.
    """
    codes, scales = codes.detach().cpu(), scales.detach().cpu()
    values = torch.empty(codes.shape, dtype=torch.float32, device="cpu")
    for at, (code, value) in _pieces(codes.reshape(-1), values.view(-1)):
        value.copy_(_decoded_piece(code, scales[at // QUANT_BLOCK :], non_negative))
    return values


def encoded(values: torch.Tensor, non_negative: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The uint8 codes, of the same shape, and float32 scales of a floating-point tensor, rounded to nearest."""
    codes = torch.empty(values.shape, dtype=torch.uint8, device="cpu")
    scales = torch.empty(-(-values.numel() // QUANT_BLOCK), dtype=torch.float32, device="cpu")
    for at, (value, code) in _pieces(values.detach().reshape(-1), codes.view(-1)):
        packed, scale = _encoded_piece(value.float(), non_negative)
        code.copy_(packed)
        scales[at // QUANT_BLOCK :][: scale.numel()] = scale
    return codes, scales


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """The start of each piece and the piece of each tensor, so that temporaries are no larger than a piece."""
    for at in range(0, tensors[0].numel(), _PIECE):
        yield at, [tensor[at : at + _PIECE] for tensor in tensors]


def _decoded_piece(codes: torch.Tensor, scales: torch.Tensor, non_negative: bool) -> torch.Tensor:
    code = codes.to(torch.int32)
    magnitude = code if non_negative else code & 0x7F
    zero = torch.tensor(_zero(non_negative), dtype=torch.float32, device="cpu")
    place = (magnitude << _DROPPED_BITS | zero.view(torch.int32)).view(torch.float32)
    blocks = -(-codes.numel() // QUANT_BLOCK)
    values = (place - zero) * scales[:blocks].repeat_interleave(QUANT_BLOCK)[: codes.numel()]
    return values if non_negative else torch.where(code > 0x80, -values, values)  # 0x80 is zero, which has no sign


def _encoded_piece(values: torch.Tensor, non_negative: bool) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = -(-values.numel() // QUANT_BLOCK)
    padded = torch.nn.functional.pad(values, (0, blocks * QUANT_BLOCK - values.numel())).reshape(blocks, QUANT_BLOCK)
    zero = _zero(non_negative)
    top = _LARGEST_PLACE - zero
    largest = padded.abs().amax(dim=1)
    largest = torch.where(largest < _least_scale(non_negative) * top, 0.0, largest)
    largest = torch.where(largest.isfinite(), largest, torch.nan)
    factor = torch.where(largest == 0, 0.0, top / largest)[:, None]
    place = (padded.abs() * factor + zero).clamp(max=_LARGEST_PLACE)
    code = (place.view(torch.int32) + (1 << (_DROPPED_BITS - 1))) >> _DROPPED_BITS
    # Never zero: the second moment is a divisor.
    code = (code & 0xFF).clamp(min=1) if non_negative else code & 0x7F | torch.where(padded < 0, 0x80, 0)
    return code.to(torch.uint8).reshape(-1)[: values.numel()], largest / top
