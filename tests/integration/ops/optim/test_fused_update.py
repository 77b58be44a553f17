"""The fused optimizers on the CPU: they give the bits of the CPU optimizers, whose tests compare these with float64."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from op_builder import env
from op_builder.ops.optim.fused_op import FusedOp
from op_builder.system.cpu_isa import supported_isas
from tests.support.fused_cases import CHUNK, assert_same, lists_of
from tests.support.optimizer_reference import (
    ADAM,
    AMSGRAD,
    DTYPES,
    LAMB,
    LION,
    Kind,
    Tensors,
    as_lists,
    assert_same_bits,
    load,
    load_fused,
    make_tensors,
    threads,
)

KINDS = (ADAM, AMSGRAD, LION, LAMB)
NOOP = torch.zeros(1, dtype=torch.int32)
SKIP = torch.ones(1, dtype=torch.int32)

every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def make_cases(kind: Kind, offset: int = 0) -> list[Tensors]:
    """One of each length and combination of types."""
    lengths = (0, 1, 15, 17, 1000, 4097)
    return [make_tensors(kind, n, *types, seed=n, offset=offset) for n in lengths for types in DTYPES]


def apply(module: FusedOp, kind: Kind, cases: Sequence[Tensors], flag: torch.Tensor | None = None, **also: Any) -> None:
    """Update ``cases`` with the function of many tensors."""
    given = {**kind.options}
    if "adamw_mode" in given:
        given["mode"] = int(given.pop("adamw_mode"))
    given.update({"step": 3, **also})
    in_tensors = kind is ADAM and not isinstance(given["step"], int)  # only this kind has a form of its own for them
    update = getattr(module, f"multi_tensor_{kind.name}{'_capturable' if in_tensors else ''}")
    update(CHUNK, flag, lists_of(cases), **given)


@every_kind
@pytest.mark.parametrize("isa", supported_isas())
def test_updates_have_the_bits_of_the_cpu_optimizer_on_all_types_lengths_and_alignments(kind, isa):
    ops = load_fused(kind).ops
    with env.scope(ACCEL_CPU_ISA=isa):
        module = FusedOp(ops)
    expected = make_cases(kind)
    load(kind, isa).update_list(as_lists(expected), 3, list(kind.options.values()))
    for offset in (0, 1, 3, 7):
        cases = make_cases(kind, offset)
        apply(module, kind, cases, NOOP)
        for case, twin in zip(cases, expected, strict=True):
            assert_same_bits(case, twin)


@every_kind
def test_every_option_has_the_effect_that_it_has_on_the_cpu_optimizer(kind):
    module = load_fused(kind)
    for change, step in itertools.product(kind.variants, (1, 1000)):
        case, twin = make_tensors(kind, 777), make_tensors(kind, 777)
        options = [float(value) for value in {**kind.options, **change}.values()]
        module.update_list(as_lists([case]), options, step)
        load(kind).update_list(as_lists([twin]), step, options)
        assert_same_bits(case, twin)
    if "adamw_mode" in kind.options:
        case, twin = make_tensors(kind, 777), make_tensors(kind, 777)
        apply(module, kind, [case], mode=0)
        load(kind).update_list(as_lists([twin]), 3, list({**kind.options, "adamw_mode": False}.values()))
        assert_same_bits(case, twin)


@every_kind
def test_the_number_of_threads_changes_no_bit(kind):
    given = [make_tensors(kind, n, seed=n) for n in (5, 70_000, 200_001)]
    results = []
    for count in (1, 2, 3):
        cases = [case.clone() for case in given]
        with threads(count):
            apply(load_fused(kind), kind, cases)
        results.append([tensor for case in cases for tensor in case])
    for other in results[1:]:
        assert_same(results[0], other)


@every_kind
def test_a_step_reads_and_changes_what_is_in_tensors_unless_it_is_skipped(kind):
    """The rate, the scale of gradients, and the steps, which are counted up."""
    module = load_fused(kind)
    cases, same = make_cases(kind), make_cases(kind)
    for case in cases:
        case.grad.mul_(4)
    before = [case.clone() for case in cases]
    steps = [torch.tensor(float(i % 3)) for i in range(len(cases))]
    lr = torch.tensor(1e-2)
    given = {"lr": lr, "grad_scale": torch.tensor(4.0)}
    if kind is not LION:
        given["step"] = steps
    for flag, found_inf in ((SKIP, torch.zeros(1)), (NOOP, torch.ones(1))):
        apply(module, kind, cases, flag, found_inf=found_inf, **given)
    for case, then in zip(cases, before, strict=True):
        assert_same_bits(case, then)
    assert [float(step) for step in steps] == [i % 3 for i in range(len(cases))]
    apply(module, kind, cases, NOOP, found_inf=torch.zeros(1), **given)
    for i, (case, twin) in enumerate(zip(cases, same, strict=True)):
        apply(module, kind, [twin], lr=float(lr), **({} if kind is LION else {"step": i % 3 + 1}))
        assert_same([case.param, *case.states], [twin.param, *twin.states])
    assert kind is LION or [float(step) for step in steps] == [i % 3 + 1 for i in range(len(cases))]


def test_the_capturable_form_takes_one_step_for_all():
    cases, same = make_cases(ADAM), make_cases(ADAM)
    step, lr = torch.tensor(2.0), torch.tensor(1e-2)
    load_fused(ADAM).multi_tensor_adam_capturable(
        *(CHUNK, NOOP, lists_of(cases), lr, 0.9, 0.999, 1e-8, step, 1, True, 0.01)
    )
    assert float(step) == 3
    apply(load_fused(ADAM), ADAM, same, lr=float(lr))
    for case, twin in zip(cases, same, strict=True):
        assert_same_bits(case, twin)


@pytest.mark.parametrize("mode", [0, 1])
def test_lamb_of_one_tensor_scales_the_step_by_the_corrections(mode: int) -> None:
    """The formula of DeepSpeed's op, found by its results on a CUDA device."""

    def make() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        return [torch.rand(1001, generator=generator, dtype=torch.float64) for _ in range(4)]

    p, m, v, g = (tensor.float() for tensor in make())
    copy = torch.empty(1001, dtype=torch.bfloat16)
    coefficient = load_fused(LAMB).lamb(p, copy, m, v, g * 8, 0.1, 0.9, 0.99, 0.5, 0.01, 1e-6, 8.0, 3, mode, True, 0.01)
    value, first, second, gradient = make()
    first = first * 0.9 + gradient * 0.1
    second = second * 0.99 + gradient**2 * 0.01
    root = (second + 1e-6).sqrt() if mode == 0 else second.sqrt() + 1e-6
    direction = first / root + 0.01 * value
    step_size = 0.1 * (1 - 0.99**3) ** 0.5 / (1 - 0.9**3)
    trust = float((value.norm() / direction.norm()).clamp(0.01, 0.5))
    assert coefficient.item() == pytest.approx(trust, rel=1e-5)
    torch.testing.assert_close(p.double(), value - step_size * trust * direction, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(m.double(), first, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(v.double(), second, rtol=1e-5, atol=1e-7)
    assert torch.equal(copy, p.bfloat16())
