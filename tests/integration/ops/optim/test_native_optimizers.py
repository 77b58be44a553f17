"""The arithmetic of all optimizers on host tensors: against float64, on every type, length and instruction set."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from op_builder.errors import OpArgumentError
from op_builder.ops.optim.tensor_lists import Pass
from op_builder.system.cpu_isa import supported_isas
from tests.support.list_cases import AS_PARAM, PACKED, STOCHASTIC, Case, assert_unchanged, copy_of, make, storages_of
from tests.support.list_cases import assert_same_bits as assert_same_lists
from tests.support.optimizer_reference import (
    ADAGRAD,
    ADAM,
    AMSGRAD,
    DTYPES,
    FLOATS,
    KINDS,
    LAMB,
    LION,
    SGD,
    Kind,
    Reference,
    Rounded,
    Tensors,
    as_lists,
    assert_same_bits,
    load,
    make_tensors,
    threads,
    update,
)
from tests.support.training_tensors import U

ISAS = supported_isas()
LENGTHS = (0, 1, 3, 15, 16, 17, 31, 1000, 4097)
NORM_PIECE = 1 << 15  # csrc/bindings/optimizer_passes.h: longer tensors of LAMB wait for each other's norms

every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
every_isa = pytest.mark.parametrize("isa", ISAS)


def expect(
    kind: Kind, tensors: Tensors, options: dict, actual: Tensors, step: int = 3, scale: float = 1.0
) -> Reference:
    reference = Reference.of(kind, options, tensors)
    reference.step(tensors.grad, step, actual, scale)
    return reference


@every_kind
@every_isa
def test_update_is_within_the_bound_of_float64(kind, isa):
    for dtypes, numel in itertools.product(DTYPES, LENGTHS):
        tensors = make_tensors(kind, numel, *dtypes, seed=numel)
        actual = update(load(kind, isa), tensors, kind.options)
        expect(kind, tensors, kind.options, actual).check(actual)


@every_kind
@every_isa
def test_options_and_steps_are_applied_as_in_float64(kind, isa):
    tensors = make_tensors(kind, 257)
    for change, step in itertools.product(({}, *kind.variants), (1, 2, 100_000)):
        options = {**kind.options, **change}
        actual = update(load(kind, isa), tensors, options, step)
        expect(kind, tensors, options, actual, step).check(actual)


@every_isa
def test_norms_reach_over_the_whole_of_a_long_tensor(isa):
    for numel, dtype in itertools.product((NORM_PIECE, NORM_PIECE + 1, 3 * NORM_PIECE - 5), FLOATS):
        tensors = make_tensors(LAMB, numel, dtype, dtype, dtype)
        actual = update(load(LAMB, isa), tensors, LAMB.options)
        expect(LAMB, tensors, LAMB.options, actual).check(actual)


@every_isa
@pytest.mark.parametrize(
    ("kind", "storage"),
    [(kind, storage) for kind in KINDS for storage in storages_of(kind) if storage != AS_PARAM],
    ids=str,
)
def test_the_number_of_threads_does_not_change_a_bit(kind, isa, storage):
    case = Case(storage=storage, lengths=(100_017, 5, 3 * NORM_PIECE + 1, 0, 20_000, 1), kind=kind)
    results = [make(case).lists for _ in range(3)]
    for count, lists in enumerate(results, start=1):
        with threads(count):
            for step in (1, 2):
                load(kind, isa).update_list(lists, step, list(kind.options.values()), case.settings(seed=11))
    for lists in results[1:]:
        assert_same_lists(lists, results[0])


@every_kind
def test_a_prepared_list_gives_the_same_bits_and_counts_the_steps(kind):
    one, other = ([make_tensors(kind, numel, seed=numel) for numel in (40_000, 3, 0)] for _ in range(2))
    steps = [torch.tensor(0.0), torch.zeros(1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.int64)]
    numbers = [float(value) for value in kind.options.values()]
    prepared = load(kind).prepare(as_lists(one), steps)
    for step in (1, 2, 3):
        prepared.update(numbers, Pass())
        load(kind).update_list(as_lists(other), step, numbers)
    assert [float(step) for step in steps] == [3, 3, 3]
    for actual, expected in zip(one, other, strict=True):
        assert_same_bits(actual, expected)


@every_kind
@every_isa
def test_nan_and_infinity_go_where_arithmetic_sends_them(kind, isa):
    for role, dtype, value in itertools.product(kind.roles, FLOATS, (math.nan, math.inf, -math.inf)):
        tensors = make_tensors(kind, 33, dtype, dtype, dtype)
        dict(zip(kind.roles, tensors, strict=True))[role][::5] = value
        actual = update(load(kind, isa), tensors, kind.options)
        reference = expect(kind, tensors, kind.options, actual)
        wanted = (reference.param, Rounded.exact(tensors.grad), *reference.states)
        for found, expected in zip(actual, wanted, strict=True):
            assert torch.equal(found.isnan(), expected.value.isnan())
            assert torch.equal(found.isinf(), expected.value.isinf())


@every_kind
@every_isa
def test_subnormal_values_are_not_flushed(kind, isa):
    for magnitude in (1e-38, 1e-40, 1e-45):
        tensors = make_tensors(kind, 100)
        tensors.grad.copy_(torch.linspace(-magnitude, magnitude, 100))
        for name, state in zip(kind.states, tensors.states, strict=True):
            state.copy_(torch.linspace(magnitude, magnitude / 3, 100) * (1 if name.endswith("sq") else -1))
        actual = update(load(kind, isa), tensors, kind.options)
        expect(kind, tensors, kind.options, actual).check(actual)
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


numbers = st.floats(-1e6, 1e6, width=32)
small = st.floats(0, 1, exclude_max=True)
# A moment over less is beyond float32, where the kernels overflow and the reference in double does not.
some = st.floats(2**-60, 1, exclude_max=True)


@settings(deadline=None, max_examples=150)
@given(st.data(), st.sampled_from(KINDS), st.sampled_from(ISAS), st.sampled_from(DTYPES))
def test_any_numbers_and_options_stay_within_the_bound(data, kind, isa, dtypes):
    numel = data.draw(st.integers(1, 40))
    columns = [data.draw(st.lists(numbers, min_size=numel, max_size=numel)) for _ in kind.roles]
    param, grad, *states = (torch.tensor(column) for column in columns)
    states = [state.abs() if name.endswith("sq") else state for name, state in zip(kind.states, states, strict=True)]
    tensors = Tensors(param.to(dtypes[0]), grad.to(dtypes[1]), tuple(state.to(dtypes[2]) for state in states))
    floats = [name for name, value in kind.options.items() if isinstance(value, float)]
    drawn = {name: data.draw(some if name == "eps" else small) for name in floats}
    options = {**kind.options, **drawn}
    if kind is SGD:
        options["nesterov"] = data.draw(st.booleans())
    step = data.draw(st.integers(1, 1000))
    actual = update(load(kind, isa), tensors, options, step)
    expect(kind, tensors, options, actual, step).check(actual)


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
    actual = update(load(LAMB, isa), tensors, options)
    expect(LAMB, tensors, options, actual).check(actual)
    assert torch.equal(actual.param, tensors.param) == (zero == "direction")


@every_isa
def test_zeros_beyond_the_end_do_not_count_without_an_eps(isa):
    tensors = make_tensors(LAMB, 33)
    options = {**LAMB.options, "eps": 0.0, "beta2": 0.0}
    actual = update(load(LAMB, isa), tensors, options)
    assert actual.param.isfinite().all()
    expect(LAMB, tensors, options, actual).check(actual)


PEERS = {
    "Adam": (ADAM, {"adamw_mode": False}),
    "AdamW": (ADAM, {}),
    "Adam, amsgrad": (AMSGRAD, {"beta2": 0.9, "adamw_mode": False}),
    "AdamW, amsgrad": (AMSGRAD, {"beta2": 0.9}),
    "Adagrad": (ADAGRAD, {"lr_decay": 0.01}),
    "SGD": (SGD, {}),
    "SGD, Nesterov": (SGD, {"nesterov": True}),
    "SGD, dampening": (SGD, {"dampening": 0.3}),
    "SGD, no momentum": (SGD, {"momentum": 0}),
}


@pytest.mark.parametrize("peer", PEERS)
def test_many_steps_stay_beside_torch_in_float64(peer):
    """Within the running error bound, and that is small: ten roundings of the largest parameter in every step."""
    steps, (kind, change) = 100, PEERS[peer]
    options = {**kind.options, **change}
    tensors = make_tensors(kind, 511)
    for state in tensors.states:
        state.zero_()
    reference = Reference.of(kind, options, tensors)
    theirs = torch.nn.Parameter(tensors.param.double())
    largest = float(theirs.detach().abs().max())
    given = {name: value for name, value in options.items() if name not in ("adamw_mode", "bias_correction")}
    if "beta1" in given:
        given["betas"] = (given.pop("beta1"), given.pop("beta2"))
    if kind is AMSGRAD:
        given["amsgrad"] = True
    optimizer = getattr(torch.optim, peer.partition(",")[0])([theirs], **given)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, steps + 1):
        tensors.grad.copy_(torch.randn(511, generator=generator))
        load(kind).update_list(as_lists([tensors]), step, list(options.values()))
        reference.step(tensors.grad, step)
        theirs.grad = tensors.grad.double()
        optimizer.step()
    if kind is AMSGRAD:
        assert (tensors.states[2] > 1.5 * tensors.states[1]).double().mean() > 0.5  # the maximum matters
    torch.testing.assert_close(reference.param.value, theirs.detach(), rtol=1e-10, atol=1e-12)
    reference.check(tensors)
    bound = 10 * U * steps * largest
    assert reference.param.error.max() < bound
    assert (tensors.param.double() - theirs.detach()).abs().max() < bound


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.packs], ids=str)
@pytest.mark.parametrize("storage", [STOCHASTIC, PACKED])
def test_packed_states_are_refused_where_there_are_none_and_it_is_said_what_to_pass(kind, storage):
    case = Case(storage=storage, lengths=(300,), kind=kind)
    lists = make(case).lists
    before = copy_of(lists)
    with pytest.raises(OpArgumentError, match="does not support states in bytes") as caught:
        load(kind).update_list(lists, 1, list(kind.options.values()), case.settings())
    assert "stochastic=False" in caught.value.remedy
    assert_unchanged(lists, before)
