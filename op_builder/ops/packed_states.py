"""8-bit states in Python: for making, loading and looking at them. Updates work on them natively.

The format is csrc/kernels/cpu/codecs_inl.h's: one byte an element, the upper bits of an IEEE half, times
the float32 scale of its block of 256 elements. With a sign these are the sign, 4 bits of exponent and 3
of fraction, without one 5 and 3. The scale maps the block's largest magnitude to the largest code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from op_builder.ops.native.tensor_lists import QUANT_BLOCK

_PIECE = 1 << 18  # elements, whole blocks
_DROPPED_BITS = 7  # of a half's fraction
_SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


def names(state: str) -> tuple[str, str]:
    """The names of a state's bytes and scales; another than its values', so that who does not know them says so."""
    return f"{state}_codes", f"{state}_scale"


def are_saved(state: str, saved: Mapping[str, Any]) -> bool:
    """Whether a saved state has this one as bytes."""
    return all(saved.get(name) is not None for name in names(state))


def saved_values(state: str, saved: Mapping[str, Any], non_negative: bool) -> torch.Tensor | None:
    """A state's values, from saved bytes or as they were saved; None where there are none."""
    if are_saved(state, saved):
        codes, scales = names(state)
        return decoded(saved[codes], saved[scales], non_negative)
    return saved.get(state)


def decoded(codes: torch.Tensor, scales: torch.Tensor, non_negative: bool) -> torch.Tensor:
    """The values of an 8-bit state.

    Args:
        codes: uint8, of any shape.
        scales: float32, one for each 256 elements begun.
        non_negative: whether the state has no sign.

    Returns:
        float32, of the shape of ``codes``.
    """
    codes, scales = codes.detach().cpu(), scales.detach().cpu()  # may have been saved elsewhere
    values = torch.empty(codes.shape, dtype=torch.float32)
    for at, (code, value) in _pieces(codes.reshape(-1), values.view(-1)):
        value.copy_(_decoded_piece(code, scales[at // QUANT_BLOCK :], non_negative))
    return values


def encoded(values: torch.Tensor, non_negative: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A state's values as codes and scales, rounded to nearest.

    Args:
        values: of any shape and floating type.

    Returns:
        uint8 codes of the same shape, and float32 scales.
    """
    codes = torch.empty(values.shape, dtype=torch.uint8)
    scales = torch.empty(-(-values.numel() // QUANT_BLOCK))
    for at, (value, code) in _pieces(values.detach().reshape(-1), codes.view(-1)):
        packed, scale = _encoded_piece(value.float(), non_negative)
        code.copy_(packed)
        scales[at // QUANT_BLOCK :][: scale.numel()] = scale
    return codes, scales


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Where each piece begins, and the piece of each tensor: what is computed on the way is as large as a piece."""
    for at in range(0, tensors[0].numel(), _PIECE):
        yield at, [tensor[at : at + _PIECE] for tensor in tensors]


def _decoded_piece(codes: torch.Tensor, scales: torch.Tensor, non_negative: bool) -> torch.Tensor:
    code = codes.to(torch.int16)
    magnitude = code if non_negative else code & 0x7F
    values = (magnitude << _DROPPED_BITS).view(torch.float16).float()
    if not non_negative:
        values = torch.where(code >= 0x80, -values, values)
    blocks = -(-codes.numel() // QUANT_BLOCK)
    return values * scales[:blocks].repeat_interleave(QUANT_BLOCK)[: values.numel()]


def _encoded_piece(values: torch.Tensor, non_negative: bool) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = -(-values.numel() // QUANT_BLOCK)
    padded = torch.nn.functional.pad(values, (0, blocks * QUANT_BLOCK - values.numel())).reshape(blocks, QUANT_BLOCK)
    top = 61440.0 if non_negative else 1.875
    largest = padded.abs().amax(dim=1)
    largest = torch.where(largest < top * _SMALLEST_NORMAL, 0.0, largest)
    scaled = padded * torch.where(largest == 0, 0.0, top / largest)[:, None]
    half = scaled.abs().clamp(max=top).half().view(torch.int16).to(torch.int32)
    code = (half + (1 << (_DROPPED_BITS - 1))) >> _DROPPED_BITS
    # A divisor is not to be lost.
    code = code.clamp(min=1) if non_negative else code | torch.where(scaled < 0, 0x80, 0)
    return code.to(torch.uint8).reshape(-1)[: values.numel()], largest / top
