"""The arithmetic of all optimizers on host tensors: against float64, on every type, length and instruction set."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from op_builder.ops.optim.tensor_lists import TensorLists
from op_builder.system.cpu_isa import supported_isas
from tests.support.list_cases import (
    AS_PARAM,
    PACKED,
    STOCHASTIC,
    Case,
    all_cases,
    assert_same_bits,
    assert_stored,
    make,
    storages_of,
    update_apart,
)
from tests.support.optimizer_reference import (
    ADAM,
    DTYPES,
    FLOATS,
    KINDS,
    LAMB,
    LION,
    SGD,
    Kind,
    Options,
    Tensors,
    assert_within,
    expected_update,
    load,
    make_tensors,
    threads,
    update,
)
from tests.support.training_tensors import assert_guards_untouched

ISAS = supported_isas()
LENGTHS = (0, 1, 3, 15, 16, 17, 31, 1000, 4097)
NORM_PIECE = 1 << 15  # csrc/bindings/optimizer_passes.h: longer tensors of LAMB wait for each other's norms

every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
every_isa = pytest.mark.parametrize("isa", ISAS)


def checked_update(kind: Kind, isa: str, tensors: Tensors, options: Options, step: int = 3) -> Tensors:
    """A copy of ``tensors`` after an update, which is within the bound of float64."""
    actual = update(load(kind, isa), tensors, options, step)
    assert_within(kind, actual, expected_update(kind, options, tensors, step, actual))
    return actual


@every_kind
@every_isa
def test_update_is_within_the_bound_of_float64(kind, isa):
    for dtypes, numel in itertools.product(DTYPES, LENGTHS):
        checked_update(kind, isa, make_tensors(kind, numel, *dtypes, seed=numel), kind.options)


@every_kind
@every_isa
def test_options_and_steps_are_applied_as_in_float64(kind, isa):
    tensors = make_tensors(kind, 257)
    for change, step in itertools.product(({}, *kind.variants), (1, 2, 100_000)):
        checked_update(kind, isa, tensors, {**kind.options, **change}, step)


@every_isa
def test_norms_reach_over_the_whole_of_a_long_tensor(isa):
    for numel, dtype in itertools.product((NORM_PIECE, NORM_PIECE + 1, 3 * NORM_PIECE - 5), FLOATS):
        checked_update(LAMB, isa, make_tensors(LAMB, numel, dtype, dtype, dtype), LAMB.options)


@every_isa
@pytest.mark.parametrize(
    ("kind", "storage"),
    [(kind, storage) for kind in KINDS for storage in storages_of(kind) if storage != AS_PARAM],
    ids=str,
)
def test_the_number_of_threads_does_not_change_a_bit(kind, isa, storage):
    lengths = (100_017, 5, 3 * NORM_PIECE + 1, 0, 20_000, 1)
    case = Case(storage=storage, copy=torch.bfloat16, lengths=lengths, kind=kind)
    results = [make(case) for _ in range(3)]
    for count, lists in enumerate(results, start=1):
        with threads(count):
            for step in (1, 2**40):
                also = case.settings(seed=11, zero_grads=step > 1)
                load(kind, isa).update_list(lists, step, list(kind.options.values()), also)
    for lists in results[1:]:
        assert_same_bits(lists, results[0])


@every_kind
@every_isa
def test_nan_and_infinity_go_where_arithmetic_sends_them(kind, isa):
    for role, dtype, value in itertools.product(kind.roles, FLOATS, (math.nan, math.inf, -math.inf)):
        tensors = make_tensors(kind, 33, dtype, dtype, dtype)
        dict(zip(kind.roles, tensors, strict=True))[role][::5] = value
        actual = update(load(kind, isa), tensors, kind.options)
        expected = expected_update(kind, kind.options, tensors, 3, actual)
        for found, rounded in zip((actual.param, *actual.states), expected, strict=True):
            assert torch.equal(found.isnan(), rounded.value.isnan())
            assert torch.equal(found.isinf(), rounded.value.isinf())


@every_kind
@every_isa
def test_subnormal_values_are_not_flushed(kind, isa):
    for magnitude in (1e-38, 1e-40, 1e-45):
        tensors = make_tensors(kind, 100)
        tensors.grad.copy_(torch.linspace(-magnitude, magnitude, 100))
        for name, state in zip(kind.states, tensors.states, strict=True):
            state.copy_(torch.linspace(magnitude, magnitude / 3, 100) * (1 if name.endswith("sq") else -1))
        actual = checked_update(kind, isa, tensors, kind.options)
        assert all((state != 0).any() for state in actual.states)


@every_isa
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_value_is_loaded_and_stored_unchanged(isa, dtype):
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    zeros = torch.zeros(bits.numel())
    tensors = Tensors(bits.view(dtype).clone(), zeros, (zeros.clone(), zeros.clone()))
    param = update(load(ADAM, isa), tensors, {**ADAM.options, "lr": 0, "weight_decay": 0}).param
    number = ~bits.view(dtype).isnan()
    assert torch.equal(param.view(torch.int16)[number], bits[number])
    assert param[~number].isnan().all()


@every_isa
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_storing_16_bits_rounds_to_nearest_even(isa, dtype):
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (200_000,), generator=generator).to(torch.int32)
    halfway = (torch.arange(2**15, dtype=torch.int32) << 16) | 0x8000  # of bfloat16, ties
    eighth = (torch.arange(0x38000000 >> 12, 0x48000000 >> 12, dtype=torch.int32)) << 12  # of float16, ties
    low = torch.arange(0x33000000 >> 10, 0x38900000 >> 10, dtype=torch.int32) << 10  # its subnormals
    values = torch.cat([patterns, halfway, eighth, low]).view(torch.float32)
    values = values[values.isfinite()]
    param, *states = (torch.zeros(values.numel(), dtype=dtype) for _ in range(3))
    # With beta1 = 0 the first moment becomes the gradient itself.
    actual = update(load(ADAM, isa), Tensors(param, values, tuple(states)), {**ADAM.options, "beta1": 0})
    assert torch.equal(actual.states[0].view(torch.int16), values.to(dtype).view(torch.int16))


@every_isa
def test_the_first_step_of_sgd_takes_the_gradient_for_the_buffer(isa):
    tensors = make_tensors(SGD, 100)
    tensors.states[0].fill_(math.nan)
    for change in ({}, {"nesterov": True}, {"dampening": 0.5}):
        actual = update(load(SGD, isa), tensors, {**SGD.options, **change, "weight_decay": 0}, step=1)
        assert torch.equal(actual.states[0], tensors.grad)
        assert actual.param.isfinite().all()


@every_isa
def test_the_sign_of_zero_is_zero_and_nan_stays(isa):
    numbers = torch.tensor([0.0, -0.0, math.nan, 1e-45, -1e-45, math.inf, -math.inf])
    tensors = Tensors(torch.zeros(7), numbers, (torch.zeros(7),))
    actual = update(load(LION, isa), tensors, {"lr": 1.0, "beta1": 0.0, "beta2": 0.0, "weight_decay": 0.0})
    assert actual.param[[0, 1, 3, 4, 5, 6]].tolist() == [0, 0, -1, 1, -1, 1]
    assert actual.param[2].isnan()


@every_isa
@pytest.mark.parametrize("zero", ["param", "direction"])
def test_without_a_norm_the_trust_ratio_is_one(isa, zero):
    tensors = make_tensors(LAMB, 50)
    for tensor in [tensors.param] if zero == "param" else [tensors.grad, *tensors.states]:
        tensor.zero_()
    options = {**LAMB.options, "weight_decay": 0}
    actual = checked_update(LAMB, isa, tensors, options)
    assert torch.equal(actual.param, tensors.param) == (zero == "direction")


@every_isa
def test_zeros_beyond_the_end_do_not_count_without_an_eps(isa):
    tensors = make_tensors(LAMB, 33)
    options = {**LAMB.options, "eps": 0.0, "beta2": 0.0}
    assert checked_update(LAMB, isa, tensors, options).param.isfinite().all()


# What is done in the same pass ---------------------------------------------------------------------


def updated(case: Case, isa: str) -> TensorLists:
    """The tensors after an update, which does what doing all apart on aligned tensors does and touches nothing else."""
    module, options = load(case.kind, isa), list(case.kind.options.values())
    also = case.settings(grad_scale=-0.37, zero_grads=True, seed=11)
    lists, expected = make(case), make(dataclasses.replace(case, offset=0))
    module.update_list(lists, 3, options, also)
    assert_guards_untouched(itertools.chain(*lists.positional()))
    new = update_apart(module, case, expected, 3, options, also)
    assert_stored(lists, new, case)
    assert_same_bits(lists._replace(states=()), expected._replace(states=()), case)
    return lists


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_everything_in_one_pass_is_what_it_is_apart_with_every_instruction_set(kind: Kind) -> None:
    """And those with a fused multiply-add give the same bits."""
    for case in all_cases(kind):
        _, *fused = [updated(case, isa) for isa in ISAS]
        for lists in fused[1:]:
            assert_same_bits(lists, fused[0], case)


PLACES = (7, 3 << 32, (3 << 32) + 1, 0, -1, 2**63 - 1)


@pytest.mark.parametrize("storage", [STOCHASTIC, PACKED])
@pytest.mark.parametrize("places", [PLACES, ()], ids=["given", "indices"])
def test_random_bits_are_those_of_the_places(adam_of_isa, storage, places):
    case = Case(torch.bfloat16, storage=storage, lengths=(300, 5000, 17, 0, 700, 1))
    also = case.settings(seed=5)
    together, alone = make(case), make(case)
    adam_of_isa.update_list(together._replace(places=places), 3, list(ADAM.options.values()), also)
    for i, place in enumerate(places or range(6)):
        states = [[each[i]] for each in alone.states]
        one = TensorLists([alone.params[i]], [alone.grads[i]], states, (), [place])
        adam_of_isa.update_list(one, 3, list(ADAM.options.values()), also)
    assert_same_bits(together, alone)
