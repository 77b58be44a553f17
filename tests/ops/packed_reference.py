"""States in fewer bytes, written down a second time: csrc/kernels/cpu/codecs_inl.h to the last bit.

An update of packed states is one of float32 states between a decoding and an encoding. With these two,
and the op's own update of float32 states, its result is known exactly.
"""

from __future__ import annotations

import torch

from op_builder.ops.native.host_optimizer import QUANT_BLOCK

GOLDEN = 0x9E3779B97F4A7C15
U64 = 2**64 - 1
U32 = 2**32 - 1
LARGEST = 1.875  # of an 8-bit code, before its scale
SMALLEST = {False: 2.0**-15 * 1.125, True: 2.0**-31 * 1.125}  # by whether the state is non-negative
SMALLEST_NORMAL = 2.0**-126


def random_key(seed: int, step: int, place: int) -> int:
    """The 64-bit key of a tensor's random bits in one update."""
    key = seed & U64
    for number in (step, place):
        key = (key + number * GOLDEN + GOLDEN) & U64
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & U64
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & U64
        key ^= key >> 31
    return key


def random16(key: int, numel: int, state: int) -> torch.Tensor:
    """16 random bits for each of the first ``numel`` < 2**32 elements of a state, int64."""
    x = torch.arange(numel) ^ (key & U32)
    x ^= x >> 16
    x = (x * 0x7FEB352D) & U32
    x ^= (x >> 15) ^ (key >> 32)
    x = (x * 0x846CA68B) & U32  # int64 wraps round, the low half is right
    x ^= x >> 16
    return (x >> (16 * state)) & 0xFFFF


def float_bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int32).to(torch.int64) & U32


def stochastic_bfloat16(values: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    """float32 to bfloat16: the dropped bits are the probability of rounding away from zero."""
    bits = float_bits(values)
    kept = torch.where(values.isnan(), bits | 0x00400000, bits + random) >> 16
    return kept.to(torch.int16).view(torch.bfloat16)


def blocks_of(values: torch.Tensor) -> torch.Tensor:
    """A row for each block, the last one filled up with zeros."""
    count = -(-values.numel() // QUANT_BLOCK)
    return torch.nn.functional.pad(values, (0, count * QUANT_BLOCK - values.numel())).view(count, QUANT_BLOCK)


def block_scales(values: torch.Tensor) -> torch.Tensor:
    """The float32 scale of each block of float32 values."""
    blocks = blocks_of(values)
    magnitudes = blocks.abs()
    largest = torch.where(magnitudes.isnan(), 0, magnitudes).amax(dim=1) if len(blocks) else blocks.new_zeros(0)
    scales = torch.where(largest < SMALLEST_NORMAL, 0, largest / torch.tensor(LARGEST))
    return torch.where(blocks.isfinite().all(dim=1), scales, torch.nan)


def encode_8bit(values: torch.Tensor, random: torch.Tensor, non_negative: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (uint8) and scales (float32) of finite float32 values of one dimension."""
    scales = block_scales(values)
    largest = blocks_of(values).abs().amax(dim=1) if len(scales) else scales
    # Tensor over tensor: torch makes a number over a tensor a product with the reciprocal.
    factors = torch.where(scales == 0, 0, torch.tensor(LARGEST) / largest).repeat_interleave(QUANT_BLOCK)[
        : values.numel()
    ]
    scaled = values * factors
    bits = float_bits(scaled.abs()).clamp(max=float_bits(torch.tensor([LARGEST])).item())
    lowest = (127 - 31 if non_negative else 127 - 15) << 3
    codes = ((bits + (random << 4)) >> 20) - lowest
    magnitude = scaled.abs()
    least = 0.0 if non_negative else (random / 65536).float() * SMALLEST[False]
    few = magnitude > least
    codes = torch.where(magnitude < SMALLEST[non_negative], few.to(torch.int64), codes)
    if not non_negative:
        codes |= scaled.signbit().to(torch.int64) << 7
    return codes.to(torch.uint8), scales


def decode_8bit(codes: torch.Tensor, scales: torch.Tensor, non_negative: bool) -> torch.Tensor:
    """The float32 values of codes of one dimension."""
    code = codes.to(torch.int64)
    magnitude = code if non_negative else code & 0x7F
    fraction, exponent = magnitude & 7, (magnitude >> 3) - (31 if non_negative else 15)
    values = torch.where(magnitude == 0, 0.0, torch.ldexp(1 + fraction / 8, exponent)).float()
    if not non_negative:
        values = torch.where(code >= 0x80, -values, values)
    return values * scales.repeat_interleave(QUANT_BLOCK)[: codes.numel()]
