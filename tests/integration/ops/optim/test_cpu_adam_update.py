"""CPU Adam's arithmetic: against float64, on every type, length, alignment and instruction set."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from op_builder.ops.optim.host_op import HostOp
from tests.support.adam_reference import Options, Tensors, U, as_lists, assert_within, expect_update, random_tensors

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
LENGTHS = (0, 1, 3, 15, 16, 17, 31, 1000, 4097)
DTYPES = [
    (param, grad, moment)
    for param, grad in itertools.product(FLOATS, FLOATS)
    for moment in dict.fromkeys((torch.float32, param))
]


def update(module: HostOp, tensors: Tensors, options: Options) -> Tensors:
    """A copy of ``tensors`` after one update."""
    result = tensors.clone()
    apply(module, result, options)
    return result


def apply(module: HostOp, tensors: Tensors, options: Options) -> None:
    module.create_adam(1, adamw_mode=options.adamw_mode)
    try:
        module.adam_update(1, *options.positional(), *tensors)
    finally:
        module.destroy_adam(1)


def assert_same_bits(actual: Tensors, expected: Tensors) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("dtypes", DTYPES, ids=lambda dtypes: "-".join(str(dtype)[6:] for dtype in dtypes))
@pytest.mark.parametrize("adamw_mode", [True, False])
def test_update_is_within_the_bound_of_float64(adam_of_isa, dtypes, adamw_mode):
    options = Options(adamw_mode=adamw_mode)
    for numel in LENGTHS:
        tensors = random_tensors(numel, *dtypes, seed=numel)
        expected, bound = expect_update(tensors, options)
        assert_within(update(adam_of_isa, tensors, options), expected, bound)


@pytest.mark.parametrize(
    "options",
    [
        Options(bias_correction=False),
        Options(step=1),
        Options(step=100_000),
        Options(weight_decay=0),
        Options(weight_decay=0, adamw_mode=False),
        Options(lr=0),
        Options(eps=0.1),
        Options(beta1=0, beta2=0),
        Options(beta1=0.999, beta2=0.99999),
        Options(lr=10, weight_decay=0.1),
    ],
    ids=str,
)
def test_options_are_applied_as_in_float64(adam_of_isa, options):
    tensors = random_tensors(257)
    expected, bound = expect_update(tensors, options)
    assert_within(update(adam_of_isa, tensors, options), expected, bound)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("offset", [1, 2, 3, 7])
def test_alignment_does_not_change_a_bit(adam_of_isa, dtype, offset):
    aligned = random_tensors(1000, dtype, dtype, dtype)
    shifted = random_tensors(1000, dtype, dtype, dtype, offset=offset)
    assert shifted.param.data_ptr() % 16 != 0 or offset * dtype.itemsize % 16 == 0
    apply(adam_of_isa, shifted, Options())
    assert_same_bits(shifted, update(adam_of_isa, aligned, Options()))


@pytest.mark.parametrize("numel", [1, 15, 16, 17, 63, 1000])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nothing_outside_the_tensors_is_written(adam_of_isa, numel, dtype):
    guard = 64
    storages = [torch.full((numel + 2 * guard,), 0.5, dtype=dtype) for _ in range(4)]
    views = Tensors(*(storage[guard:-guard] for storage in storages))
    apply(adam_of_isa, views, Options())
    for storage in storages:
        assert (storage[:guard] == 0.5).all()
        assert (storage[-guard:] == 0.5).all()
    assert (views.param != 0.5).all()
    assert (views.grad == 0.5).all()


def test_an_element_does_not_depend_on_its_position(adam_of_isa):
    tensors = random_tensors(100)
    whole = update(adam_of_isa, tensors, Options())
    for i in (0, 1, 15, 16, 50, 99):
        alone = update(adam_of_isa, Tensors(*(tensor[i : i + 1] for tensor in tensors)), Options())
        assert_same_bits(alone, Tensors(*(tensor[i : i + 1] for tensor in whole)))


def test_the_number_of_threads_does_not_change_a_bit(adam_of_isa):
    tensors = random_tensors(300_017)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            results.append(update(adam_of_isa, tensors, Options()))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert_same_bits(result, results[0])


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 40_000), max_size=12), st.integers(0, 2**30))
def test_a_list_gives_the_bits_of_single_updates(cpu_adam, lengths, seed):
    tensors = [random_tensors(numel, *DTYPES[i % len(DTYPES)], seed=seed + i) for i, numel in enumerate(lengths)]
    expected = [update(cpu_adam, each, Options()) for each in tensors]
    cpu_adam.update_list(as_lists(tensors), Options().step, Options().listed())
    for actual, single in zip(tensors, expected, strict=True):
        assert_same_bits(actual, single)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_value_is_loaded_and_stored_unchanged(adam_of_isa, dtype):
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    param = bits.view(dtype).clone()
    zeros = torch.zeros(param.numel())
    apply(adam_of_isa, Tensors(param, zeros.clone(), zeros.clone(), zeros), Options(lr=0, weight_decay=0))
    number = ~bits.view(dtype).isnan()
    assert torch.equal(param.view(torch.int16)[number], bits[number])
    assert param[~number].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_storing_16_bits_rounds_to_nearest_even(adam_of_isa, dtype):
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(-(2**31), 2**31, (200_000,), generator=generator).to(torch.int32)
    halfway = (torch.arange(2**15, dtype=torch.int32) << 16) | 0x8000  # of bfloat16, ties
    eighth = (torch.arange(0x38000000 >> 12, 0x48000000 >> 12, dtype=torch.int32)) << 12  # of float16, ties
    low = torch.arange(0x33000000 >> 10, 0x38900000 >> 10, dtype=torch.int32) << 10  # its subnormals
    values = torch.cat([patterns, halfway, eighth, low]).view(torch.float32)
    values = values[values.isfinite()]
    numel = values.numel()
    moments = [torch.zeros(numel, dtype=dtype) for _ in range(2)]
    # With beta1 = 0 the first moment becomes the gradient itself.
    tensors = Tensors(torch.zeros(numel, dtype=dtype), values, *moments)
    apply(adam_of_isa, tensors, Options(beta1=0))
    assert torch.equal(tensors.exp_avg.view(torch.int16), values.to(dtype).view(torch.int16))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("role", ["param", "grad", "exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_go_where_arithmetic_sends_them(adam_of_isa, dtype, role, value):
    tensors = random_tensors(33, dtype, dtype, dtype)
    getattr(tensors, role)[::5] = value
    expected, _ = expect_update(tensors, Options())
    actual = update(adam_of_isa, tensors, Options())
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        assert torch.equal(one.isinf(), other.isinf())


def test_an_infinite_parameter_leaves_the_moments_finite_without_weight_decay(adam_of_isa):
    tensors = random_tensors(16)
    tensors.param[3] = float("inf")
    actual = update(adam_of_isa, tensors, Options(weight_decay=0, adamw_mode=False))
    assert actual.exp_avg.isfinite().all()
    assert actual.param[3] == float("inf")


@pytest.mark.parametrize("magnitude", [1e-38, 1e-40, 1e-45])
def test_subnormal_values_are_not_flushed(adam_of_isa, magnitude):
    tensors = random_tensors(100)
    tensors.grad.copy_(torch.linspace(-magnitude, magnitude, 100))
    tensors.exp_avg.copy_(torch.linspace(magnitude, -magnitude / 3, 100))
    tensors.exp_avg_sq.fill_(magnitude)
    expected, bound = expect_update(tensors, Options())
    actual = update(adam_of_isa, tensors, Options())
    assert_within(actual, expected, bound)
    assert (actual.exp_avg_sq > 0).all()


def test_extreme_magnitudes_stay_within_the_bound(adam_of_isa):
    tensors = random_tensors(1000)
    tensors.grad.mul_(1e15)
    tensors.exp_avg_sq.mul_(1e20)
    expected, bound = expect_update(tensors, Options())
    assert_within(update(adam_of_isa, tensors, Options()), expected, bound)


@pytest.mark.parametrize(("adamw_mode", "peer"), [(True, torch.optim.AdamW), (False, torch.optim.Adam)])
def test_200_steps_stay_beside_torch(cpu_adam, adamw_mode, peer):
    lr, steps = 1e-2, 200
    tensors = random_tensors(4097)
    tensors.exp_avg.zero_()
    tensors.exp_avg_sq.zero_()
    theirs = torch.nn.Parameter(tensors.param.clone())
    optimizer = peer([theirs], lr=lr, weight_decay=0.01)
    generator = torch.Generator().manual_seed(1)
    largest = float(tensors.param.abs().max())
    for step in range(1, steps + 1):
        grad = torch.randn(4097, generator=generator)
        theirs.grad = grad.clone()
        optimizer.step()
        now = Tensors(tensors.param, grad, tensors.exp_avg, tensors.exp_avg_sq)
        apply(cpu_adam, now, Options(step=step, lr=lr, adamw_mode=adamw_mode))
    # Per step, the parameter is rounded a few times in either program, and the update, of size lr,
    # carries some ten roundings of each; with equal gradients the differences only add up.
    bound = steps * U * (4 * (largest + steps * lr) + 20 * lr)
    assert (tensors.param - theirs).abs().max() <= bound


@pytest.mark.parametrize(("adamw_mode", "peer"), [(True, torch.optim.AdamW), (False, torch.optim.Adam)])
def test_1000_steps_stay_as_close_to_float64_as_torch_does(adam_of_isa, adamw_mode, peer):
    """Errors of 1,000 steps, by mean and by the worst, over torch's own.

    Both programs round beta2 to float32 alike, which is most of the error. Of exp_avg torch computes
    m + (1 - beta1) (g - m), which does not feel that beta1 and 1 - beta1 are each rounded; beta1 m +
    (1 - beta1) g does, by |float32(0.9) - 0.9| / 0.1 = 4 U of a steady m.
    """
    lr, steps, numel = 1e-2, 1000, 2000
    start = random_tensors(numel)
    mine = Tensors(start.param.clone(), start.grad, torch.zeros(numel), torch.zeros(numel))
    theirs = torch.nn.Parameter(start.param.clone())
    exact = torch.nn.Parameter(start.param.double())
    optimizers = [peer([param], lr=lr, weight_decay=0.01, foreach=False) for param in (theirs, exact)]
    generator = torch.Generator().manual_seed(1)
    for step in range(1, steps + 1):
        grad = torch.randn(numel, generator=generator)
        mine.grad.copy_(grad)
        apply(adam_of_isa, mine, Options(step=step, lr=lr, adamw_mode=adamw_mode))
        theirs.grad, exact.grad = grad.clone(), grad.double()
        for optimizer in optimizers:
            optimizer.step()
    pairs = {"param": (mine.param, theirs.detach(), exact.detach())}
    for name in ("exp_avg", "exp_avg_sq"):
        states = (optimizer.state[param][name] for optimizer, param in zip(optimizers, (theirs, exact), strict=True))
        pairs[name] = (getattr(mine, name), *states)
    for name, (ours, torchs, reference) in pairs.items():
        our_errors, their_errors = (ours - reference).abs(), (torchs - reference).abs()
        factor = 4 if name == "exp_avg" else 1.25
        assert our_errors.mean() <= factor * their_errors.mean()
        assert our_errors.max() <= factor * their_errors.max()
    assert (exact - start.param).abs().mean() > 0.05
