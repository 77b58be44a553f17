"""8-bit states in Python: for making, loading and looking at them. Updates work on them natively.

The format is csrc/kernels/cpu/codecs_inl.h's: one byte an element, the upper bits of an IEEE half, times
the float32 scale of its block of 256 elements. With a sign these are the sign, 4 bits of exponent and 3
of fraction, without one 5 and 3. The scale maps the block's largest magnitude to the largest code.
"""

from __future__ import annotations

import torch

from op_builder.ops.native.host_optimizer import QUANT_BLOCK

_DROPPED_BITS = 7  # of a half's fraction
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
    code = codes.reshape(-1).to(torch.int16)
    magnitude = code if non_negative else code & 0x7F
    values = (magnitude << _DROPPED_BITS).view(torch.float16).float()
    if not non_negative:
        values = torch.where(code >= 0x80, -values, values)
    return (values * scales.repeat_interleave(QUANT_BLOCK)[: values.numel()]).reshape(codes.shape)


def encoded(name: str, values: torch.Tensor, non_negative: bool) -> dict[str, torch.Tensor]:
    """A state's values as codes and scales, rounded to nearest.

    Args:
        values: of any shape and floating type.

    Returns:
        ``name``: uint8 codes of the same shape; ``<name>_scale``: float32 scales.
    """
    flat = values.detach().reshape(-1).float()
    blocks = -(-flat.numel() // QUANT_BLOCK)
    padded = torch.nn.functional.pad(flat, (0, blocks * QUANT_BLOCK - flat.numel())).reshape(blocks, QUANT_BLOCK)
    top = 61440.0 if non_negative else 1.875
    largest = padded.abs().amax(dim=1) if blocks else padded.new_zeros(0)
    largest = torch.where(largest < top * _SMALLEST_NORMAL, 0.0, largest)
    scaled = padded * torch.where(largest == 0, 0.0, top / largest)[:, None]
    half = scaled.abs().clamp(max=top).half().view(torch.int16).to(torch.int32)
    code = (half + (1 << (_DROPPED_BITS - 1))) >> _DROPPED_BITS
    # A divisor is not to be lost.
    code = code.clamp(min=1) if non_negative else code | torch.where(scaled < 0, 0x80, 0)
    codes = code.to(torch.uint8).reshape(-1)[: flat.numel()].reshape(values.shape).contiguous()
    return {name: codes, f"{name}_scale": largest / top}
