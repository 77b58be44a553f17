"""States in fewer bytes, written down a second time: csrc/kernels/cpu/codecs_inl.h to the last bit.

An update of packed states is one of float32 states between a decoding and an encoding. With these two,
and the op's own update of float32 states, its result is known exactly.
"""

from __future__ import annotations

import torch

from op_builder.ops.optim.tensor_lists import QUANT_BLOCK

GOLDEN = 0x9E3779B97F4A7C15
U64 = 2**64 - 1
U32 = 2**32 - 1
# Of 8-bit codes, by whether the state is non-negative: the place of zero; what the largest stands for before its scale.
ZERO = {False: 2.0**-15, True: 2.0**-31}
LEAST_SCALE = {False: 2.0**-126, True: 2.0**-115}
LARGEST = {sign: torch.tensor(1.875 - zero).item() for sign, zero in ZERO.items()}  # as a float32


def random_key(seed: int, step: int, place: int) -> int:
    """The 64-bit key of a tensor's random bits in one update; ``place`` is the caller's number for it."""
    key = seed & U64
    for number in (step, place & U64):
        key = mixed(key + number * GOLDEN + GOLDEN)
    return key


def mixed(key: int) -> int:
    """SplitMix64's finaliser."""
    key &= U64
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & U64
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & U64
    return key ^ (key >> 31)


def random16(key: int, numel: int, state: int, packing: str = "bfloat16") -> torch.Tensor:
    """16 random bits for each of the first ``numel`` < 2**32 elements of a state, int64."""
    element = torch.arange(numel)
    block_keys = torch.tensor([_block_key(key, begin) for begin in range(0, numel, QUANT_BLOCK)], dtype=torch.int64)
    key_of = block_keys.repeat_interleave(QUANT_BLOCK)[:numel]
    x = ((element % QUANT_BLOCK) * 0x9E3779B9 + key_of) & U32
    x = x ^ (x >> 16) ^ ((key_of >> 32) & U32)
    x = (x * 0x7FEB352D) & U32  # int64 wraps round, the low half is right
    first = 16 * state if packing == "bfloat16" else 4 + 12 * state
    return (x >> first) & 0xFFFF


def _block_key(key: int, begin: int) -> int:
    """The key of the block that begins at this element, as a signed number of 64 bits."""
    key = mixed(key + begin * GOLDEN)
    return key - (1 << 64) if key >> 63 else key


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


def largest_of_blocks(values: torch.Tensor) -> torch.Tensor:
    blocks = blocks_of(values)
    return blocks.abs().amax(dim=1) if len(blocks) else values.new_zeros(0)


def multiply_add(a: torch.Tensor, b: torch.Tensor, c: float, *, fused: bool) -> torch.Tensor:
    """a * b + c in float32, rounded once, or twice as the baseline does, which has no instruction for it.

    Once by way of float64, which would have to lie between two float32 to its last bit for another result.
    """
    return (a.double() * b.double() + c).float() if fused else a * b + c


def encode_8bit(
    values: torch.Tensor, random: torch.Tensor, non_negative: bool, *, fused: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (uint8) and scales (float32) of finite float32 values of one dimension."""
    top = torch.tensor(LARGEST[non_negative])
    largest = largest_of_blocks(values)
    is_zero = largest < LEAST_SCALE[non_negative] * top
    scales = torch.where(is_zero, 0, largest / top)
    # Tensor over tensor: torch makes a number over a tensor a product with the reciprocal.
    factors = torch.where(is_zero, 0, top / largest)
    factor_of = factors.repeat_interleave(QUANT_BLOCK)[: values.numel()]
    place = multiply_add(values.abs(), factor_of, ZERO[non_negative], fused=fused)
    codes = (float_bits(place) + (random << 4)) >> 20
    signs = values.signbit().to(torch.int64) << 7
    codes = (codes & 0xFF).clamp(min=1) if non_negative else codes & 0x7F | signs
    return codes.to(torch.uint8), scales


def decode_8bit(codes: torch.Tensor, scales: torch.Tensor, non_negative: bool) -> torch.Tensor:
    """The float32 values of codes of one dimension."""
    values = code_values(codes, non_negative).float()  # exact but for this one rounding, as the kernel's subtraction
    return values * scales.repeat_interleave(QUANT_BLOCK)[: codes.numel()]


def code_values(codes: torch.Tensor, non_negative: bool) -> torch.Tensor:
    """What codes stand for before their scale, float64, by exponents and fractions. Zero has no sign."""
    code = codes.to(torch.int64)
    magnitude = code if non_negative else code & 0x7F
    fraction, exponent = magnitude & 7, magnitude >> 3
    values = (torch.ldexp(1 + fraction.double() / 8, exponent) - 1) * ZERO[non_negative]
    return values if non_negative else torch.where((code >= 0x80) & (magnitude != 0), -values, values)
