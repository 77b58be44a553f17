"""The fused optimizers' arithmetic on the CPU: against float64, on every type, length and alignment."""

from __future__ import annotations

import itertools

import pytest
import torch

from op_builder import env
from op_builder.cpu import CPUAdamBuilder, FusedAdamBuilder, FusedAmsgradBuilder, FusedLambBuilder, FusedLionBuilder
from op_builder.ops.optim.fused_op import FusedOp
from op_builder.system.cpu_isa import supported_isas
from tests.support.adam_reference import Options, assert_within, expect_update, random_tensors
from tests.support.fused_cases import CHUNK, amsgrad_lists_of, assert_same, lists_of, mixed_cases, positional
from tests.support.optimizer_reference import AMSGRAD, Reference, as_lists, load, make_tensors
from tests.support.optimizer_reference import Tensors as AnyTensors

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
DTYPES = [
    (param, grad, moment)
    for param, grad in itertools.product(FLOATS, FLOATS)
    for moment in dict.fromkeys((torch.float32, param))
]
NOOP = torch.zeros(1, dtype=torch.int32)
SKIP = torch.ones(1, dtype=torch.int32)


@pytest.fixture(scope="module")
def adam() -> FusedOp:
    return FusedAdamBuilder().load()


@pytest.fixture(scope="module")
def amsgrad() -> FusedOp:
    return FusedAmsgradBuilder().load()


@pytest.fixture(scope="module")
def lion() -> FusedOp:
    return FusedLionBuilder().load()


@pytest.fixture(scope="module")
def lamb() -> FusedOp:
    return FusedLambBuilder().load()


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("mode", [0, 1])
def test_adam_is_within_the_bound_of_float64(adam, isa, mode):
    with env.scope(ACCEL_CPU_ISA=isa):
        module = FusedOp(adam.ops)
    options = Options(adamw_mode=bool(mode))
    cases = [random_tensors(n, *types, seed=n) for n in (0, 1, 15, 17, 1000, 4097) for types in DTYPES]
    expected = [expect_update(case, options) for case in cases]
    module.multi_tensor_adam(CHUNK, NOOP, lists_of(cases), *positional(options))
    for case, (result, bound) in zip(cases, expected, strict=True):
        assert_within(case, result, bound)


@pytest.mark.parametrize("options", [Options(bias_correction=False), Options(step=1), Options(weight_decay=0, eps=0.5)])
def test_adam_with_other_options(adam, options):
    case = random_tensors(777)
    expected = expect_update(case, options)
    adam.multi_tensor_adam(CHUNK, NOOP, lists_of([case]), *positional(options))
    assert_within(case, *expected)


def test_adam_gives_the_bits_of_cpu_adam(adam):
    cases, same = mixed_cases(), mixed_cases()
    adam.multi_tensor_adam(CHUNK, NOOP, lists_of(cases), *positional(Options()))
    other = CPUAdamBuilder().load()
    other.create_adam(90, adamw_mode=True)
    for case, twin in zip(cases, same, strict=True):
        other.adam_update(90, *Options().positional(), *twin)
        assert_same(list(case), list(twin))
    other.destroy_adam(90)


def amsgrad_cases(offset: int = 0) -> list[AnyTensors]:
    """One of each length and combination of types."""
    lengths = (0, 1, 15, 17, 1000, 4097)
    return [make_tensors(AMSGRAD, n, *types, seed=n, offset=offset) for n in lengths for types in DTYPES]


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("mode", [0, 1])
def test_amsgrad_is_within_the_bound_of_float64(amsgrad, isa, mode):
    with env.scope(ACCEL_CPU_ISA=isa):
        module = FusedOp(amsgrad.ops)
    cases = amsgrad_cases()
    references = [Reference.of(AMSGRAD, {**AMSGRAD.options, "adamw_mode": bool(mode)}, case) for case in cases]
    module.multi_tensor_amsgrad(CHUNK, NOOP, amsgrad_lists_of(cases), *positional(Options(adamw_mode=bool(mode))))
    for case, reference in zip(cases, references, strict=True):
        reference.step(case.grad, 3)
        reference.check(case)


@pytest.mark.parametrize("offset", [0, 1, 3, 7])
def test_amsgrad_gives_the_bits_of_cpu_amsgrad_wherever_it_is(amsgrad, offset):
    cases, same = amsgrad_cases(offset), amsgrad_cases()
    amsgrad.multi_tensor_amsgrad(CHUNK, None, amsgrad_lists_of(cases), *positional(Options()))
    load(AMSGRAD).update_list(as_lists(same), 3, Options().listed())
    for case, twin in zip(cases, same, strict=True):
        assert_same(list(case), list(twin))


def test_amsgrad_reads_what_is_in_tensors_and_changes_nothing_when_told_so(amsgrad):
    cases, same = amsgrad_cases(), amsgrad_cases()
    steps = [torch.tensor(float(i % 3)) for i in range(len(cases))]
    lr, scale = torch.tensor(1e-2), torch.tensor(4.0)
    for case in cases:
        case.grad.mul_(4)
    before = [case.clone() for case in cases]
    numbers = (lr, 0.9, 0.999, 1e-8, steps, 1, True, 0.01, scale)
    for flag, found_inf in ((SKIP, torch.zeros(1)), (NOOP, torch.ones(1))):
        amsgrad.multi_tensor_amsgrad(CHUNK, flag, amsgrad_lists_of(cases), *numbers, found_inf)
    for case, then in zip(cases, before, strict=True):
        assert_same(list(case), list(then))
    amsgrad.multi_tensor_amsgrad(CHUNK, NOOP, amsgrad_lists_of(cases), *numbers, torch.zeros(1))
    assert [float(step) for step in steps] == [i % 3 + 1 for i in range(len(cases))]
    for i, (case, twin) in enumerate(zip(cases, same, strict=True)):
        options = Options(step=i % 3 + 1, lr=float(lr))
        amsgrad.multi_tensor_amsgrad(CHUNK, None, amsgrad_lists_of([twin]), *positional(options))
        assert_same([case.param, *case.states], [twin.param, *twin.states])


@pytest.mark.parametrize("offset", [1, 3, 7])
def test_a_place_in_memory_changes_no_bit(adam, offset):
    cases, moved = mixed_cases(), mixed_cases(offset=offset)
    for each in (cases, moved):
        adam.multi_tensor_adam(CHUNK, NOOP, lists_of(each), *positional(Options()))
    for case, twin in zip(cases, moved, strict=True):
        assert_same(list(case), list(twin))


def test_the_number_of_threads_changes_no_bit(adam, lamb):
    results = []
    threads = torch.get_num_threads()
    given = [random_tensors(n, seed=n) for n in (5, 70_000, 200_001)]
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        cases = [case.clone() for case in given]
        adam.multi_tensor_adam(CHUNK, NOOP, lists_of(cases), *positional(Options()))
        lamb.multi_tensor_lamb(CHUNK, NOOP, lists_of(cases), 1e-2, 0.9, 0.999, 1e-6, 3, True, 0.01)
        results.append([tensor for case in cases for tensor in case])
    torch.set_num_threads(threads)
    for other in results[1:]:
        assert_same(results[0], other)


def test_a_set_flag_changes_nothing(adam, lion, lamb):
    cases, same = mixed_cases(), mixed_cases()
    grads, params, moments, squares = lists_of(cases)
    adam.multi_tensor_adam(CHUNK, SKIP, [grads, params, moments, squares], *positional(Options()))
    lion.multi_tensor_lion(CHUNK, SKIP, [grads, params, moments], 1e-2, 0.9, 0.99, 0.1)
    lamb.multi_tensor_lamb(CHUNK, SKIP, [grads, params, moments, squares], 1e-2, 0.9, 0.999, 1e-6, 3, True, 0.01)
    for case, twin in zip(cases, same, strict=True):
        assert_same(list(case), list(twin))


def test_the_capturable_form_reads_learning_rate_and_steps_and_counts_them_up(adam):
    cases, same = mixed_cases(), mixed_cases()
    steps = [torch.tensor(float(i % 3)) for i in range(len(cases))]
    lr = torch.tensor(1e-2)
    numbers = (0.9, 0.999, 1e-8)
    adam.multi_tensor_adam_capturable(CHUNK, NOOP, lists_of(cases), lr, *numbers, steps, 1, True, 0.01)
    assert [float(step) for step in steps] == [i % 3 + 1 for i in range(len(cases))]
    for i, twin in enumerate(same):
        options = Options(step=i % 3 + 1, lr=float(lr))
        adam.multi_tensor_adam(CHUNK, None, lists_of([twin]), *positional(options))
    for case, twin in zip(cases, same, strict=True):
        assert_same(list(case), list(twin))


def test_a_learning_rate_of_float64_in_a_tensor_is_read_as_a_number(adam):
    cases, same = mixed_cases(), mixed_cases()
    lr = torch.tensor([1e-2], dtype=torch.float64)
    adam.multi_tensor_adam(CHUNK, NOOP, lists_of(cases), *positional(Options(lr=lr)))
    adam.multi_tensor_adam(CHUNK, NOOP, lists_of(same), *positional(Options(lr=1e-2)))
    for members, twins in zip(lists_of(cases), lists_of(same), strict=True):
        assert_same(members, twins)


def test_the_capturable_form_takes_one_step_for_all(adam):
    cases, same = mixed_cases(), mixed_cases()
    step = torch.tensor(2.0)
    numbers = (0.9, 0.999, 1e-8)
    lr = torch.tensor(1e-2)
    adam.multi_tensor_adam_capturable(CHUNK, NOOP, lists_of(cases), lr, *numbers, step, 1, True, 0.01)
    assert float(step) == 3
    adam.multi_tensor_adam(CHUNK, NOOP, lists_of(same), *positional(Options(lr=float(lr))))
    for case, twin in zip(cases, same, strict=True):
        assert_same(list(case), list(twin))


def test_scaled_gradients_are_divided_and_infinite_ones_skip_the_step_too(adam):
    case, twin = random_tensors(100), random_tensors(100)
    scaled = type(case)(case.param, case.grad * 1024, case.exp_avg, case.exp_avg_sq)
    step, lr, scale = torch.tensor(2.0), torch.tensor(1e-2), torch.tensor(1024.0)
    numbers = (0.9, 0.999, 1e-8)
    for found in (1.0, 0.0):
        before = scaled.clone()
        adam.multi_tensor_adam_capturable(
            *(CHUNK, NOOP, lists_of([scaled]), lr, *numbers, step, 1, True, 0.01),
            grad_scale=scale,
            found_inf=torch.tensor(found),
        )
        assert float(step) == (2 if found else 3)
        assert found == 0 or all(map(torch.equal, scaled, before))
    adam.multi_tensor_adam(CHUNK, NOOP, lists_of([twin]), *positional(Options(lr=float(lr))))
    assert torch.equal(scaled.param, twin.param)


def test_lion_is_its_formula(lion):
    lr, beta1, beta2, weight_decay = 1e-2, 0.9, 0.99, 0.1
    cases = mixed_cases()
    wanted = []
    for case in cases:
        p, g, m, _ = case.double()
        direction = beta1 * m + (1 - beta1) * g
        wanted.append(((1 - lr * weight_decay) * p - lr * direction.sign(), beta2 * m + (1 - beta2) * g, direction))
    grads, params, moments, _ = lists_of(cases)
    lion.multi_tensor_lion(CHUNK, NOOP, [grads, params, moments], lr, beta1, beta2, weight_decay)
    for case, (param, moment, direction) in zip(cases, wanted, strict=True):
        clear = direction.abs() > 1e-7  # where float32 sees the same sign
        for actual, expected in ((case.param[clear], param[clear]), (case.exp_avg, moment)):
            relative = torch.finfo(actual.dtype).eps
            assert ((actual.double() - expected).abs() <= relative * expected.abs() + 1e-7).all()


def test_lion_reads_its_learning_rate_from_a_tensor(lion):
    case, twin = random_tensors(100), random_tensors(100)
    for each, lr in ((case, torch.tensor(0.25)), (twin, 0.25)):
        lists = lists_of([each])[:3]
        lion.multi_tensor_lion(CHUNK, None, lists, lr, 0.9, 0.99, 0.1)
    assert_same(list(case), list(twin))


def test_lion_does_not_move_where_the_direction_is_zero_and_spreads_nan(lion):
    param, grad, moment = torch.ones(3), torch.tensor([0.0, float("nan"), 2.0]), torch.zeros(3)
    lion.multi_tensor_lion(CHUNK, None, [[grad], [param], [moment]], 0.5, 0.9, 0.99, 0.0)
    assert param[0] == 1
    assert param[1].isnan()
    assert param[2] == 0.5


def expect_lamb(param, grad, exp_avg, exp_avg_sq, lr, beta1, beta2, eps, step, weight_decay):
    """LAMB in float64, given float64 tensors."""
    exp_avg = beta1 * exp_avg + (1 - beta1) * grad
    exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * grad * grad
    adaptive = exp_avg / (1 - beta1**step) / ((exp_avg_sq / (1 - beta2**step)).sqrt() + eps)
    direction = adaptive + weight_decay * param
    norms = param.norm(), direction.norm()
    trust = norms[0] / norms[1] if min(norms) > 0 else 1.0
    return param - lr * trust * direction, exp_avg, exp_avg_sq


@pytest.mark.parametrize("numel", [0, 1, 17, 4097, 100_000])
@pytest.mark.parametrize("dtype", FLOATS)
def test_lamb_is_near_float64(lamb, numel, dtype):
    case = random_tensors(numel, dtype, dtype, torch.float32)
    p, g, m, v = case.double()
    expected = expect_lamb(p, g, m, v, 1e-2, 0.9, 0.999, 1e-6, 3, 0.01)
    lamb.multi_tensor_lamb(CHUNK, NOOP, lists_of([case]), 1e-2, 0.9, 0.999, 1e-6, 3, True, 0.01)
    for actual, wanted in zip((case.param, case.exp_avg, case.exp_avg_sq), expected, strict=True):
        # Storing rounds by half an eps; before it some ten operations in float32 of numbers up to the largest.
        bound = torch.finfo(actual.dtype).eps * wanted.abs() + 1e-5 * wanted.abs().max() if numel else wanted
        assert ((actual.double() - wanted).abs() <= bound).all()


def test_lamb_moves_a_zero_parameter_by_the_plain_direction(lamb):
    param, grad = torch.zeros(4), torch.ones(4)
    lists = [[grad], [param], [torch.zeros(4)], [torch.zeros(4)]]
    lamb.multi_tensor_lamb(CHUNK, NOOP, lists, 0.5, 0.9, 0.999, 0.0, 1, True, 0.0)
    assert torch.allclose(param, torch.full((4,), -0.5), rtol=1e-6)


def test_lamb_takes_norms_of_each_tensor_alone(lamb):
    together, apart = [random_tensors(n, seed=n) for n in (10, 1000)], [random_tensors(n, seed=n) for n in (10, 1000)]
    numbers = (1e-2, 0.9, 0.999, 1e-6, 3, True, 0.01)
    lamb.multi_tensor_lamb(CHUNK, NOOP, lists_of(together), *numbers)
    for each in apart:
        lamb.multi_tensor_lamb(CHUNK, NOOP, lists_of([each]), *numbers)
    for case, twin in zip(together, apart, strict=True):
        assert_same(list(case), list(twin))
