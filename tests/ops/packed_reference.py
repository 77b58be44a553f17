"""States in fewer bytes, written down a second time: csrc/kernels/cpu/codecs_inl.h to the last bit.

An update of packed states is one of float32 states between a decoding and an encoding. With these two,
and the op's own update of float32 states, its result is known exactly.
"""

from __future__ import annotations

import torch

from op_builder.ops.native.tensor_lists import QUANT_BLOCK

GOLDEN = 0x9E3779B97F4A7C15
U64 = 2**64 - 1
U32 = 2**32 - 1
LARGEST = {False: 1.875, True: 61440.0}  # 8-bit codes before their scale, by whether the state is non-negative
SMALLEST = 2.0**-17
SMALLEST_HALF = 2.0**-14  # that is normal: below it codes lie SMALLEST apart
SMALLEST_NORMAL = 2.0**-126


def random_key(seed: int, step: int, place: int) -> int:
    """The 64-bit key of a tensor's random bits in one update; ``place`` is the caller's number for it."""
    key = seed & U64
    for number in (step, place & U64):
        key = (key + number * GOLDEN + GOLDEN) & U64
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & U64
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & U64
        key ^= key >> 31
    return key


def random16(key: int, numel: int, state: int, packing: str = "bfloat16") -> torch.Tensor:
    """16 random bits for each of the first ``numel`` < 2**32 elements of a state, int64."""
    x = torch.arange(numel) ^ (key & U32)
    x ^= x >> 16
    x = (x * 0x7FEB352D) & U32
    x ^= (x >> 15) ^ (key >> 32)
    x = (x * 0x846CA68B) & U32  # int64 wraps round, the low half is right
    x ^= x >> 16
    first = 16 * state if packing == "bfloat16" else 4 + 12 * state
    return (x >> first) & 0xFFFF


def float_bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int32).to(torch.int64) & U32


def float_of_bits(bits: torch.Tensor) -> torch.Tensor:
    return bits.to(torch.int32).view(torch.float32)


def stochastic_bfloat16(values: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    """float32 to bfloat16: the dropped bits are the probability of rounding away from zero."""
    bits = float_bits(values)
    kept = torch.where(values.isnan(), bits | 0x00400000, bits + random) >> 16
    return kept.to(torch.int16).view(torch.bfloat16)


def blocks_of(values: torch.Tensor) -> torch.Tensor:
    """A row for each block, the last one filled up with zeros."""
    count = -(-values.numel() // QUANT_BLOCK)
    return torch.nn.functional.pad(values, (0, count * QUANT_BLOCK - values.numel())).view(count, QUANT_BLOCK)


def largest_of_blocks(values: torch.Tensor) -> torch.Tensor:
    blocks = blocks_of(values)
    return blocks.abs().amax(dim=1) if len(blocks) else values.new_zeros(0)


def encode_8bit(values: torch.Tensor, random: torch.Tensor, non_negative: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (uint8) and scales (float32) of finite float32 values of one dimension."""
    top = torch.tensor(LARGEST[non_negative])
    largest = largest_of_blocks(values)
    is_zero = largest < SMALLEST_NORMAL * top
    scales = torch.where(is_zero, 0, largest / top)
    # Tensor over tensor: torch makes a number over a tensor a product with the reciprocal.
    factors = torch.where(is_zero, 0, top / largest)
    scaled = values * factors.repeat_interleave(QUANT_BLOCK)[: values.numel()]
    power = float_bits(scaled.abs().clamp(min=SMALLEST_HALF)) & 0x7F800000
    total = scaled.abs() + (float_of_bits(power | random << 4) - float_of_bits(power))
    codes = torch.where(total < SMALLEST_HALF, (total / SMALLEST).long(), (float_bits(total) - (112 << 23)) >> 20)
    codes = codes.clamp(min=1) if non_negative else codes | scaled.signbit().to(torch.int64) << 7
    return codes.to(torch.uint8), scales


def decode_8bit(codes: torch.Tensor, scales: torch.Tensor, non_negative: bool) -> torch.Tensor:
    """The float32 values of codes of one dimension."""
    return code_values(codes, non_negative) * scales.repeat_interleave(QUANT_BLOCK)[: codes.numel()]


def code_values(codes: torch.Tensor, non_negative: bool) -> torch.Tensor:
    """What codes stand for before their scale, by the arithmetic of exponents and fractions."""
    code = codes.to(torch.int64)
    magnitude = code if non_negative else code & 0x7F
    fraction, exponent = magnitude & 7, magnitude >> 3
    normal = torch.ldexp(1 + fraction / 8, exponent - 15)
    values = torch.where(exponent == 0, fraction * SMALLEST, normal).float()
    return values if non_negative else torch.where(code >= 0x80, -values, values)
