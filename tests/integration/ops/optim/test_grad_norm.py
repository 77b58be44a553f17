"""Norms: against float64, without overflow, the same for any number of threads."""

from __future__ import annotations

import math

import pytest
import torch

from op_builder.ops.optim.tensor_lists import Pass, TensorLists
from tests.support.optimizer_reference import ADAM, FLOATS, threads

LENGTHS = (0, 1, 3, 15, 16, 31, 32, 33, 1000, 65_535, 65_536, 65_537, 200_003)


def bound_of(numel: int) -> float:
    """The relative error of a norm of ``numel`` elements.

    Squares of float32 are exact in float64. Pieces of 2**16 elements are added up in at least 8 sums (4
    vectors of 2), so a square goes through at most 2**13 additions there, some ten when sums are put
    together, and one for each piece: each errs by 2**-53 at most, all squares being positive. The root
    halves that and errs by 2**-53 itself.
    """
    additions = min(numel, 2**13) + 16 + numel / 2**16
    return (additions / 2 + 1) * 2.0**-53 * 1.01


def exact_norm(tensors: list[torch.Tensor]) -> float:
    return math.sqrt(math.fsum(value * value for tensor in tensors for value in tensor.tolist()))


def random_values(numel: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(numel, generator=generator) * 10 ** (-4 * torch.rand(numel, generator=generator))).to(dtype)


def prepared_with_grads(module, grads):
    def zeros():
        return [torch.zeros(grad.numel()) for grad in grads]

    return module.prepare(TensorLists(zeros(), grads, [zeros(), zeros()]), [torch.tensor(0.0) for _ in grads])


def norm_of(module, grads):
    return prepared_with_grads(module, grads).grad_norm()


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_norm_is_within_the_bound_of_float64(adam_of_isa, dtype):
    for numel in LENGTHS:
        values = [random_values(numel, dtype)]
        assert norm_of(adam_of_isa, values) == pytest.approx(exact_norm(values), rel=bound_of(numel), abs=0)


def test_the_norm_of_many_tensors_is_that_of_all_their_elements_for_any_number_of_threads(adam_of_isa):
    tensors = [random_values(numel, FLOATS[i % 3], i) for i, numel in enumerate(LENGTHS)]
    bound = bound_of(sum(LENGTHS) + 2**16 * len(LENGTHS))  # and a piece for each tensor
    prepared = prepared_with_grads(adam_of_isa, tensors)
    norms = set()
    for count in (1, 2, 3, 4):
        with threads(count):
            norms.add(prepared.grad_norm())
    (norm,) = norms
    assert norm == pytest.approx(exact_norm(tensors), rel=bound, abs=0)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.float32, 3e38), (torch.bfloat16, 3e38), (torch.float16, 65504.0), (torch.float32, 1e-45)],
)
def test_the_largest_values_do_not_overflow_and_subnormal_ones_count(adam_of_isa, dtype, value):
    for numel in (1, 37, 100_000):
        values = torch.full((numel,), value, dtype=dtype)
        expected = values[0].item() * math.sqrt(numel)
        assert norm_of(adam_of_isa, [values]) == pytest.approx(expected, rel=bound_of(numel) + 2.0**-51)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_one_value_that_is_not_finite_shows(adam_of_isa, dtype, value):
    for place in (0, 17, 65_535, 65_536, 70_000):
        tensors = [random_values(100, dtype), random_values(70_001, dtype)]
        tensors[1][place] = value
        norm = norm_of(adam_of_isa, tensors)
        assert math.isnan(norm) if math.isnan(value) else norm == math.inf


def test_the_norm_of_nothing_is_zero(cpu_adam):
    for tensors in ([], [torch.zeros(0)], [torch.zeros(5), torch.zeros(0)]):
        assert norm_of(cpu_adam, tensors) == 0.0


def test_the_norm_of_a_prepared_list_is_that_of_its_gradients_now(cpu_adam):
    grads = [torch.full((3,), 2.0), torch.full((1,), 2.0)]
    prepared = prepared_with_grads(cpu_adam, grads)
    assert prepared.grad_norm() == 4.0
    grads[0].zero_()
    assert prepared.grad_norm() == 2.0
    prepared.replace_grads([torch.full((3,), 4.0), torch.full((1,), 4.0)])
    assert prepared.grad_norm() == 8.0
    prepared.update(list(ADAM.options.values()), Pass(zero_grads=True))
    assert prepared.grad_norm() == 0.0
