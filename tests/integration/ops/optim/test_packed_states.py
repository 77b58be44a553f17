"""Moments in fewer bytes: what random rounding and 8-bit blocks keep of the values given to them.

That the op does just this on every instruction set, type and length, is in test_native_optimizers.py.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from op_builder.ops.optim import packed_states
from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.tensor_lists import QUANT_BLOCK, Pass, TensorLists
from tests.support.list_cases import LARGEST, ZERO, assert_near_8bit, scales_of, step_of
from tests.support.optimizer_reference import ADAM

LEAST_SCALE = 2.0**-126

# With these the moments become the gradient and its square, and the parameter stays.
KEEP_NOTHING = list({**ADAM.options, "lr": 0.0, "beta1": 0.0, "beta2": 0.0, "weight_decay": 0.0}.values())
# With these the moments only decay, by a tenth and by a thousandth a step.
DECAY = list({**ADAM.options, "lr": 0.0, "weight_decay": 0.0}.values())


def sigmas(probability_of_failure: float = 1e-9) -> float:
    """How many standard deviations a normal variable exceeds, either way, with this probability."""
    return -torch.special.ndtri(torch.tensor(probability_of_failure / 2, dtype=torch.float64)).item()


def zeros(numel: int, dtype: torch.dtype) -> list[list[torch.Tensor]]:
    return [[torch.zeros(numel, dtype=dtype)] for _ in range(2)]


def stored(module: HostOp, dtype: torch.dtype, values: torch.Tensor, step: int = 1, seed: int = 0) -> TensorLists:
    """``values`` and their squares as the op stores them, in bfloat16 with random rounding, or in bytes."""
    is_packed = dtype == torch.uint8
    length = packed_states.packed_length(values.numel()) if is_packed else values.numel()
    lists = TensorLists([torch.zeros_like(values)], [values], zeros(length, dtype))
    module.update_list(lists, step, KEEP_NOTHING, Pass(stochastic=not is_packed, seed=seed))
    return lists


def decoded(lists: TensorLists) -> list[torch.Tensor]:
    if lists.states[0][0].dtype != torch.uint8:
        return [state.float() for (state,) in lists.states]
    return [packed_states.decoded(lists.states[k][0], lists.params[0].shape, k == 1) for k in range(2)]


def spread(numel: int, seed: int = 0, decades: float = 6.0) -> torch.Tensor:
    """Values over several powers of ten, of both signs."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(numel, generator=generator) * 10 ** (-decades * torch.rand(numel, generator=generator))


# Random rounding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", range(2))
@pytest.mark.parametrize(
    ("dtype", "magnitude"),
    [
        (torch.bfloat16, 1 + 2.0**-19),
        (torch.bfloat16, 1 + 0.9 * 2.0**-7),
        (torch.uint8, 0.0101),
        (torch.uint8, 2.0**-18 * 1.1),
    ],
)
def test_rounding_is_unbiased(cpu_adam, dtype, state, magnitude):
    """The mean of n roundings is off by their deviation over the root of n typically.

    Of the 19 bits that an 8-bit code has not, 16 are random and 3 are zero, a bias of 2**-17 of a step; the place
    itself is rounded to the last of them.
    """
    values = torch.full((2000 * QUANT_BLOCK,), magnitude if state == 0 else magnitude**0.5)
    exact = values[1].item() if state == 0 else (values[1] * values[1]).item()
    bias = 0.0
    if dtype == torch.uint8:
        values[::QUANT_BLOCK] = LARGEST[state == 1] if state == 0 else LARGEST[True] ** 0.5  # a scale of 1
        bias = 2.0**-16 * step_of(torch.tensor(exact), state == 1).item() + 2.0**-21 * exact
    found = decoded(stored(cpu_adam, dtype, values))[state].double()
    found = found[torch.arange(len(found)) % QUANT_BLOCK != 0]
    assert found.unique().numel() == 2
    assert abs(found.mean().item() - exact) <= sigmas() * found.std().item() / math.sqrt(len(found)) + bias


def test_roundings_of_one_element_in_many_steps_are_independent(cpu_adam):
    numel, steps = 512, 400
    value = torch.full((numel,), 1 + 2.0**-8)
    ups = torch.stack(
        [stored(cpu_adam, torch.bfloat16, value, step).states[0][0] > 1 for step in range(1, steps + 1)]
    ).double()
    signs = 2 * ups - 1  # +1 or -1, of mean 0 and variance 1
    limit = sigmas(1e-9 / numel)
    assert (signs.mean(dim=0).abs() <= limit / math.sqrt(steps)).all()
    # Products of neighbours in time and in memory are +1 or -1 as often, too.
    for products in (signs[1:] * signs[:-1], signs[:, 1:] * signs[:, :-1]):
        assert products.mean().abs() <= sigmas() / math.sqrt(products.numel())


def test_states_have_random_bits_of_their_own(cpu_adam):
    """So rounding up of one is as frequent where the other is rounded up."""
    values = torch.full((100_000,), 1 + 0.375 * 2.0**-7)
    first, second = ((state > 1).double() for (state,) in stored(cpu_adam, torch.bfloat16, values).states)
    assert abs((first * second).mean() - first.mean() * second.mean()) <= sigmas() / 2 / math.sqrt(len(values))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
def test_seed_step_and_place_give_the_random_bits(cpu_adam, dtype):
    def bits(step: int = 5, seed: int = 7) -> torch.Tensor:
        return stored(cpu_adam, dtype, spread(3000), step, seed).states[0][0]

    assert torch.equal(bits(), bits())
    for other in (bits(step=6), bits(seed=8), bits(seed=-7), bits(step=7, seed=5)):
        assert not torch.equal(bits(), other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
def test_random_bits_do_not_depend_on_the_instruction_set(cpu_adam, adam_of_isa, dtype):
    """Without a fused multiply-add a place among the 8-bit codes is rounded twice, which changes few codes."""
    one, other = (stored(module, dtype, spread(3000), 5, 7).states for module in (cpu_adam, adam_of_isa))
    for (state,), (same,) in zip(one, other, strict=True):
        assert (state != same).double().mean() <= (0.01 if dtype == torch.uint8 else 0)


# 8 bits in blocks ----------------------------------------------------------------------------------


def test_8bit_values_are_within_a_step_of_what_was_stored(cpu_adam):
    for numel, decades in itertools.product((1, 7, 255, 256, 257, 5000), (1, 4, 12)):
        values = spread(numel, numel, decades)
        lists = stored(cpu_adam, torch.uint8, values)
        for k, exact in enumerate((values, values * values)):
            assert_near_8bit(lists.states[k][0], exact, k == 1)


def test_zero_stays_zero_and_a_divisor_that_is_not_never_becomes_it(adam_of_isa):
    """A second moment of zero does in a block of zeros; beside others it becomes the smallest code, as a tiny one."""
    values = spread(3000)
    values[::3] = 0
    values[1::3] = 1e-37**0.5
    values[512:1024] = 0  # whole blocks
    of_zeros = torch.arange(3000) // QUANT_BLOCK // 2 == 1
    for step in range(1, 6):
        lists = stored(adam_of_isa, torch.uint8, values, step)
        first, second = decoded(lists)
        assert (first[values == 0] == 0).all()
        assert (second[of_zeros] == 0).all()
        assert (second[~of_zeros] > 0).all()
        assert (lists.states[1][0][:3000][(values.abs() < 1e-18) & ~of_zeros] == 1).all()


@pytest.mark.parametrize("state", range(2))
def test_a_block_without_a_scale_counts_as_zero(cpu_adam, state):
    least = LEAST_SCALE * (LARGEST[state == 1] - 1)  # a subnormal number
    for magnitude, is_kept in ((least * 1.001, True), (least * 0.999, False)):
        values = torch.full((512,), magnitude if state == 0 else magnitude**0.5)
        values[:256] = 1.0
        values[1] = 0.0
        lists = stored(cpu_adam, torch.uint8, values)
        actual = decoded(lists)[state]
        assert (actual[2:256] > 0).all()
        if is_kept:
            assert torch.allclose(actual[256:], torch.tensor(magnitude), rtol=0.1, atol=0)
            if state == 1:
                lists.states[1][0][256:512] = 1  # the smallest divisor there is
                assert (decoded(lists)[1][256:] > 0).all()
        else:
            assert (actual[256:] == 0).all()
            assert lists.states[state][0][-1] == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 300, 599])
def test_a_value_that_is_not_finite_makes_its_own_block_nan(adam_of_isa, value, place):
    values = spread(600, decades=2)
    clean = decoded(stored(adam_of_isa, torch.uint8, values))
    values[place] = value
    block = torch.arange(600) // QUANT_BLOCK == place // QUANT_BLOCK
    for actual, before in zip(decoded(stored(adam_of_isa, torch.uint8, values)), clean, strict=True):
        assert actual[block].isnan().all()
        assert torch.equal(actual[~block], before[~block])


# Many steps ----------------------------------------------------------------------------------------


def decay_of(module: HostOp, lists: TensorLists, steps: int, stochastic: bool) -> None:
    for step in range(1, steps + 1):
        module.update_list(lists, step, DECAY, Pass(stochastic=stochastic))


def test_second_moments_decay_on_average_as_float32_ones_do(cpu_adam):
    """And not at all in bfloat16 rounded to nearest: a thousandth is below half of its last place."""
    numel, steps = 64 * QUANT_BLOCK, 1000
    start = 1 + torch.rand(numel, generator=torch.Generator().manual_seed(0))
    start = start.bfloat16().float()
    expected = 0.999**steps
    params, grads = [torch.zeros(numel)], [torch.zeros(numel)]

    nearest = TensorLists([params[0].bfloat16()], grads, [[torch.zeros(numel).bfloat16()], [start.bfloat16()]])
    decay_of(cpu_adam, nearest, steps, stochastic=False)
    assert torch.equal(nearest.states[1][0].float(), start)

    stochastic = TensorLists(params, grads, [[torch.zeros(numel).bfloat16()], [start.bfloat16()]])
    decay_of(cpu_adam, stochastic, steps, stochastic=True)
    packed = TensorLists(params, grads, [[packed_states.encoded(one, one is start)] for one in (grads[0], start)])
    start_8bit = decoded(packed)[1]
    decay_of(cpu_adam, packed, steps, stochastic=False)
    for values, begin in ((stochastic.states[1][0].float(), start), (decoded(packed)[1], start_8bit)):
        ratios = (values / begin).double()
        # The 16 random bits of 8-bit states lose up to 2^-17 of a step's sixteenth in each step, of float32's
        # own arithmetic each step loses 2^-24.
        bias = steps * (2.0**-17 / 16 + 2.0**-24)
        assert abs(ratios.mean() / expected - 1) <= sigmas() * ratios.std() / expected / math.sqrt(numel) + bias


# The Python side -----------------------------------------------------------------------------------


@pytest.mark.parametrize("numel", [0, 1, 255, 256, 1000])
@pytest.mark.parametrize("non_negative", [False, True])
def test_python_reads_and_writes_the_same_format(numel, non_negative):
    values = spread(numel, 3, 8)
    values = values * values if non_negative else values
    packed = packed_states.encoded(values, non_negative)
    assert_near_8bit(packed, values, non_negative)
    scale = scales_of(packed, numel)
    step = step_of(values.abs() / scale, non_negative) * scale
    error = (packed_states.decoded(packed, values.shape, non_negative).double() - values).abs()
    # Rounded to nearest, but to no code of zero where the values are non-negative.
    assert ((error <= 0.5001 * step) | (packed[:numel] == 1 if non_negative else False)).all()


def test_decoding_and_encoding_keep_the_values_that_native_code_stored(cpu_adam):
    """Also where it rounded a block's largest magnitude down to what a smaller scale would hold."""
    for numel, seed in itertools.product((300, 20_000), range(5)):
        lists = stored(cpu_adam, torch.uint8, spread(numel, seed, decades=1), seed=seed)
        for non_negative, values in enumerate(decoded(lists)):
            again = packed_states.encoded(values, bool(non_negative))
            assert torch.equal(packed_states.decoded(again, values.shape, bool(non_negative)), values)


def test_every_code_stands_for_what_the_format_says():
    """Exponents and fractions of the code, less one, times the place of zero. Zero has no sign."""
    code = torch.arange(256)
    for non_negative, zero in ZERO.items():
        magnitude = code if non_negative else code & 0x7F
        values = (torch.ldexp(1 + (magnitude & 15) / 16, magnitude >> 4) - 1) * zero
        if not non_negative:
            values = torch.where((code >= 0x80) & (magnitude != 0), -values, values)
        packed = torch.cat([code, torch.tensor([127])]).byte()  # a scale of 1
        assert torch.equal(packed_states.decoded(packed, code.shape, non_negative), values)
