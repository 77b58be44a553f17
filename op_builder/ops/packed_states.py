"""8-bit states in Python: for making, loading and looking at them. Updates work on them natively.

The format is csrc/kernels/cpu/codecs_inl.h's: one byte an element, a small floating-point number times
the float32 scale of its block of 256 elements. With a sign it has 1 + 4 + 3 bits (sign, exponent,
fraction), without one 5 + 3; code 0 is zero, and 15/8 times the scale is the block's largest magnitude.
"""

from __future__ import annotations

import torch

from op_builder.ops.native.host_optimizer import QUANT_BLOCK

_LARGEST = 1.875  # of a code, before its scale
_DROPPED_BITS = 20  # of a float32's fraction
_SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


def decoded(codes: torch.Tensor, scales: torch.Tensor, non_negative: bool) -> torch.Tensor:
    """The values of an 8-bit state.

    Args:
        codes: uint8, of any shape.
        scales: float32, one for each 256 elements begun.
        non_negative: whether the state has no sign.

    Returns:
        float32, of the shape of ``codes``.
    """
    code = codes.reshape(-1).to(torch.int32)
    magnitude = code if non_negative else code & 0x7F
    bits = torch.where(magnitude == 0, 0, (magnitude + _lowest(non_negative)) << _DROPPED_BITS)
    values = bits.to(torch.int32).view(torch.float32)
    if not non_negative:
        values = torch.where(code >= 0x80, -values, values)
    return (values * scales.repeat_interleave(QUANT_BLOCK)[: values.numel()]).reshape(codes.shape)


def encoded(name: str, values: torch.Tensor, non_negative: bool) -> dict[str, torch.Tensor]:
    """A state's values as codes and scales, rounded to nearest.

    Args:
        values: float32, of any shape.

    Returns:
        ``name``: uint8 codes of the same shape; ``<name>_scale``: float32 scales.
    """
    flat = values.detach().reshape(-1).float()
    blocks = -(-flat.numel() // QUANT_BLOCK)
    padded = torch.nn.functional.pad(flat, (0, blocks * QUANT_BLOCK - flat.numel())).reshape(blocks, QUANT_BLOCK)
    largest = padded.abs().amax(dim=1) if blocks else padded.new_zeros(0)
    largest = torch.where(largest < _SMALLEST_NORMAL, 0.0, largest)
    scaled = padded * torch.where(largest == 0, 0.0, _LARGEST / largest)[:, None]
    magnitude = scaled.abs().clamp(max=_LARGEST)
    lowest = _lowest(non_negative)
    code = ((magnitude.view(torch.int32) + (1 << (_DROPPED_BITS - 1))) >> _DROPPED_BITS) - lowest
    # Below the smallest code lies zero; a divisor that is not zero stays so.
    least = (magnitude > 0) if non_negative else (magnitude >= _value_of(1, lowest) / 2)
    code = torch.where(magnitude < _value_of(1, lowest), least.to(torch.int32), code).clamp(min=0)
    if not non_negative:
        code = code | torch.where(scaled < 0, 0x80, 0)
    codes = code.to(torch.uint8).reshape(-1)[: flat.numel()].reshape(values.shape).contiguous()
    return {name: codes, f"{name}_scale": largest / _LARGEST}


def _lowest(non_negative: bool) -> int:
    """A float32's bits from the dropped ones up, at code 0."""
    return (127 - (31 if non_negative else 15)) << 3


def _value_of(code: int, lowest: int) -> float:
    return torch.tensor((code + lowest) << _DROPPED_BITS, dtype=torch.int32).view(torch.float32).item()
