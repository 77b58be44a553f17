"""The fused optimizers with SYCL kernels, on the SYCL CPU device.

With numbers as options they give the bits of the CPU kernels, which are compared with float64 elsewhere.
"""

from __future__ import annotations

import pytest
import torch

from op_builder import cpu
from op_builder.errors import AccelError, OpArgumentError
from op_builder.ops import FusedLion, SYCLFusedAdam, SYCLFusedLion
from op_builder.ops.optim.fused_op import Control, FusedOp
from op_builder.ops.optim.tensor_lists import TensorLists
from op_builder.xpu import FusedAdamBuilder, FusedLionBuilder
from tests.support.adam_reference import Options, Tensors, U, random_tensors
from tests.support.fused_cases import CHUNK, assert_same, lists_of, mixed_cases, positional
from tests.support.optimizer_reference import ADAM, DTYPES, Reference, Rounded
from tests.support.sycl_ops import needs_runtime

pytestmark = needs_runtime

SKIP = torch.ones(1, dtype=torch.int32)
GO = torch.zeros(1, dtype=torch.int32)


@pytest.fixture(scope="module")
def adam() -> FusedOp:
    return FusedAdamBuilder().load()


@pytest.fixture(scope="module")
def lion() -> FusedOp:
    return FusedLionBuilder().load()


@pytest.fixture(scope="module")
def cpu_adam() -> FusedOp:
    return cpu.FusedAdamBuilder().load()


def update(module: FusedOp, cases: list[Tensors], options: Options, flag: torch.Tensor | None = None) -> None:
    module.multi_tensor_adam(CHUNK, flag, lists_of(cases), *positional(options))


def assert_same_cases(cases: list[Tensors], others: list[Tensors]) -> None:
    for case, other in zip(cases, others, strict=True):
        assert_same(list(case), list(other))


@pytest.mark.slow  # a kernel for each combination of types is compiled
def test_adam_gives_the_bits_of_the_cpu_op_for_all_types(adam, cpu_adam):
    cases, same = (
        [random_tensors(n, *types, seed=n) for n in (0, 1, 15, 17, 1000, 4097) for types in DTYPES] for _ in range(2)
    )
    update(adam, cases, Options(), GO)
    update(cpu_adam, same, Options(), GO)
    assert_same_cases(cases, same)


OPTIONS = [Options(adamw_mode=False), Options(bias_correction=False), Options(step=1), Options(weight_decay=0, eps=0.5)]


@pytest.mark.parametrize("options", [Options(), *OPTIONS])
def test_adam_gives_the_bits_of_the_cpu_op_wherever_tensors_lie(adam, cpu_adam, options):
    for offset in (0, 1, 3, 7):
        cases, same = mixed_cases(offset=offset), mixed_cases()
        update(adam, cases, options)
        update(cpu_adam, same, options)
        assert_same_cases(cases, same)


def test_nothing_beyond_a_tensor_is_touched(adam):
    storages = [torch.full((1000 + 32,), 0.5) for _ in range(4)]
    param, grad, *states = (storage[16:-16] for storage in storages)
    inner = Tensors(param, grad, tuple(states))
    update(adam, [inner], Options())
    for storage in storages:
        assert (storage[:16] == 0.5).all()
        assert (storage[-16:] == 0.5).all()


def test_more_tensors_than_one_launch_takes_are_all_updated(adam, cpu_adam):
    lengths = [(37 * i) % 101 for i in range(150)] + [5000, 0, 66_000]
    cases, same = ([random_tensors(n, seed=n) for n in lengths] for _ in range(2))
    update(adam, cases, Options())
    update(cpu_adam, same, Options())
    assert_same_cases(cases, same)


def test_a_noop_flag_changes_nothing(adam):
    cases = mixed_cases()
    before = [case.clone() for case in cases]
    update(adam, cases, Options(), SKIP)
    assert_same_cases(cases, before)


def test_the_capturable_form_reads_learning_rate_and_steps_and_counts_them_up(adam):
    """The kernel makes the coefficients in float32 then: log(beta), its product with the step and expm1 add less
    than eight roundings to a change of a parameter."""
    lengths = (1, 17, 1000, 4097)
    cases = [random_tensors(n, seed=n) for n in lengths]
    done = [torch.tensor(float(step)) for step in (0, 1, 999, 123_456)]
    references = []
    for case, steps in zip(cases, done, strict=True):
        reference = Reference.of(ADAM, ADAM.options, case)
        reference.step(case.grad, int(steps) + 1)
        change = (reference.param.value - Options().decay * case.param.double()).abs()
        reference.param = Rounded(reference.param.value, reference.param.error + 8 * U * change)
        references.append(reference)
    lr, scale = torch.tensor(1e-2), torch.tensor(4.0)
    for case in cases:
        case.grad.mul_(4)
    numbers = (0.9, 0.999, 1e-8)
    for flag, found_inf in ((SKIP, torch.zeros(1)), (GO, torch.ones(1)), (GO, torch.zeros(1))):
        adam.multi_tensor_adam_capturable(
            CHUNK, flag, lists_of(cases), lr, *numbers, done, 1, True, 0.01, scale, found_inf
        )
    assert [int(step) for step in done] == [1, 2, 1000, 123_457]
    for case, reference in zip(cases, references, strict=True):
        reference.check(case)


def test_more_steps_than_one_launch_takes_are_all_counted(adam):
    cases = [random_tensors(3, seed=i) for i in range(300)]
    steps = [torch.tensor(float(i)) for i in range(300)]
    adam.multi_tensor_adam_capturable(
        CHUNK, None, lists_of(cases), torch.tensor(1e-2), 0.9, 0.999, 1e-8, steps, 1, True, 0.0
    )
    assert [int(step) for step in steps] == list(range(1, 301))


@pytest.mark.parametrize("maximize", [False, True])
def test_lion_gives_the_bits_of_the_cpu_op(lion, maximize):
    twin = cpu.FusedLionBuilder().load()
    results = []
    for module in (lion, twin):
        cases = mixed_cases(offset=1)
        tensors = TensorLists([c.param for c in cases], [c.grad for c in cases], [[c.exp_avg for c in cases]])
        module.update_list(tensors, [1e-3, 0.9, 0.99, 0.1], 3, Control(maximize=maximize))
        results.append(cases)
    assert_same_cases(*results)


def flat_arguments(steps: bool) -> tuple:
    cases = [random_tensors(n, seed=n) for n in (17, 0, 64)]
    states = [c.exp_avg for c in cases] + [c.exp_avg_sq for c in cases]
    counters = [torch.tensor(1.0) for _ in cases] if steps else []
    numbers = [1e-2, 0.9, 0.999, 1e-8, 0.01, 1.0, 1.0]
    return (
        *([c.param for c in cases], [c.grad for c in cases], states, counters),
        *(None, None, None, None, numbers, 3, False, CHUNK, ""),
    )


@pytest.mark.parametrize("steps", [False, True])
def test_opcheck(adam, steps):
    torch.library.opcheck(adam.ops.update.default, flat_arguments(steps))


def change_param(**changes):
    case = random_tensors(8)
    param, grad, *states = (
        changes.get(name, getattr(case, name)) for name in ("param", "grad", "exp_avg", "exp_avg_sq")
    )
    return Tensors(param, grad, tuple(states))


X = torch.ones(8)
BAD = {
    "length": (change_param(grad=torch.ones(7)), "grad of tensor 1 has 7 elements; 8 are required"),
    "type": (change_param(grad=torch.ones(8, dtype=torch.float64)), "grad of tensor 1 is of type Double"),
    "strides": (change_param(param=torch.ones(16)[::2]), "param of tensor 1 is not contiguous"),
    "states": (change_param(exp_avg=torch.ones(8, dtype=torch.bfloat16)), "a state is of float32 or of its parameter"),
    "meta": (change_param(grad=torch.ones(8, device="meta")), "grad of tensor 1 is on device meta"),
    "sparse": (change_param(grad=torch.ones(8).to_sparse()), "grad of tensor 1 has layout"),
    "empty": (change_param(exp_avg=torch.zeros(0)), "exp_avg of tensor 1 has 0 elements"),
    "overlap": (Tensors(X, torch.ones(8), (X, torch.ones(8))), "exp_avg of tensor 1 shares memory with its param"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tensors_are_refused_and_nothing_is_changed(adam, name):
    bad, message = BAD[name]
    good = random_tensors(8)
    before = good.clone()
    with pytest.raises(OpArgumentError, match=message):
        update(adam, [good, bad], Options())
    assert_same(list(good), list(before))


def losses(optimizer_class, steps: int = 20, **options) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(9, 17), torch.nn.Tanh(), torch.nn.Linear(17, 3))
    optimizer = optimizer_class(model.parameters(), lr=1e-2, **options)
    x, y = torch.randn(64, 9), torch.randn(64, 3)
    result = []
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


def test_the_optimizer_trains_as_torchs_does():
    with_sycl, with_torch = losses(SYCLFusedAdam, weight_decay=0.1), losses(torch.optim.AdamW, weight_decay=0.1)
    assert with_sycl[-1] < 0.9 * with_sycl[0]
    torch.testing.assert_close(with_sycl, with_torch, rtol=1e-4, atol=0)


def test_the_lion_optimizer_trains_as_the_cpus_does():
    assert losses(SYCLFusedLion) == losses(FusedLion)


def test_a_group_with_amsgrad_is_refused_and_says_why():
    with pytest.raises(AccelError, match="does not support amsgrad"):
        SYCLFusedAdam([torch.nn.Parameter(torch.ones(3))], amsgrad=True)
