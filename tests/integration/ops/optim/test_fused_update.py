"""The fused optimizers, wherever they run, have the bits of the CPU optimizers, whose tests compare with float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import pytest
import torch

from op_builder import cuda, env, xpu
from op_builder.ops.optim.fused_op import Control, FusedOp
from op_builder.ops.optim.tensor_lists import Pass
from op_builder.system.cpu_isa import supported_isas
from tests.support.cuda_on_host import load_on_host
from tests.support.fused_cases import CHUNK, FUSED_KINDS, apply, moved, numbers_of
from tests.support.optimizer_reference import (
    ADAM,
    DTYPES,
    FLOATS,
    LAMB,
    LION,
    Kind,
    Rounded,
    as_lists,
    assert_within,
    expected_update,
    load,
    load_fused,
    make_tensors,
)
from tests.support.sycl_ops import needs_runtime
from tests.support.training_tensors import Tensors, U, assert_guards_untouched

ISAS = supported_isas()
ON_HOST = "cuda on host"  # the CUDA kernels, through a stand-in for CUDA's headers
needs_fma = pytest.mark.skipif("avx2" not in ISAS, reason="the CPU has no fused multiply-add")
MARKS = {
    ON_HOST: (needs_fma, pytest.mark.slow),
    "cuda": (pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
    "sycl": (needs_runtime,),
    "sycl, all types": (needs_runtime, pytest.mark.slow),
}
# A SYCL kernel is compiled when a combination of types is first used.
FEW_TYPES = [(torch.float32,) * 3, (torch.bfloat16, torch.bfloat16, torch.float32)]
FEW_TYPES += [(torch.float16, torch.float32, torch.float16), (torch.bfloat16,) * 3]


def pairs(*places: str) -> pytest.MarkDecorator:
    """Each kind at each place: an instruction set of the CPU, a CUDA device or its stand-in, or SYCL's CPU device."""
    return pytest.mark.parametrize(
        ("kind", "place"),
        [
            pytest.param(kind, place, marks=MARKS.get(place, ()), id=f"{kind}-{place}")
            for place in places
            for kind in ((ADAM, LION) if place.startswith("sycl") else FUSED_KINDS)
        ],
    )


every_device = pairs(ISAS[-1], "cuda", ON_HOST, "sycl")


def load_at(kind: Kind, place: str) -> FusedOp:
    if place in ISAS:
        ops = load_fused(kind).ops  # first, because what is loaded keeps its instruction set
        with env.scope(ACCEL_CPU_ISA=place):
            return FusedOp(ops)
    if place == ON_HOST:
        return load_on_host(kind)
    module: FusedOp = getattr(cuda if place == "cuda" else xpu, f"Fused{kind.name.capitalize()}Builder")().load()
    return module


def device_of(place: str) -> str:
    return "cuda" if place == "cuda" else "cpu"


def options_of(kind: Kind) -> list[float]:
    return [float(value) for value in kind.options.values()]


def make_cases(kind: Kind, place: str, offsets: Sequence[int] = (0,) * 5) -> list[Tensors]:
    """One of each length and combination of types, between guards."""
    types = FEW_TYPES if place == "sycl" else DTYPES
    cases = [make_tensors(kind, n, *each, seed=n) for n in (0, 1, 15, 17, 1000, 4097) for each in types]
    return [moved(case, offsets, device_of(place)) for case in cases]


def check(kind: Kind, place: str, cases: Iterable[Tensors], expected: Iterable[Tensors], near: bool = False) -> None:
    """Raise unless the bits are equal; on a device LAMB's only nearly, as norms are added up in another order."""
    # The kernels of devices round as those CPU kernels do that have a fused multiply-add.
    near = place not in ISAS and (near or (kind, place) == (LAMB, "cuda") or ISAS[-1] == "baseline")
    for case, wanted in zip(cases, expected, strict=True):
        assert_guards_untouched(case)
        for role, one, other in zip(kind.roles, case.map(torch.Tensor.cpu), wanted, strict=True):
            if near or (kind, place, role) == (LAMB, ON_HOST, "param"):  # by norms that are added up in another order
                torch.testing.assert_close(one, other)
            else:
                assert torch.equal(one, other)


@pairs(*ISAS, "cuda", ON_HOST, "sycl", "sycl, all types")
def test_updates_have_the_bits_of_the_cpu_optimizer_on_all_types_lengths_and_alignments(kind: Kind, place: str) -> None:
    module, go = load_at(kind, place), torch.zeros(1, dtype=torch.int32, device=device_of(place))
    expected = [case.map(torch.Tensor.cpu) for case in make_cases(kind, place)]
    load(kind, place if place in ISAS else None).update_list(as_lists(expected), 3, options_of(kind))
    for offsets in ((0,) * 5, (1,) * 5, (1, 0, 0, 0, 0), (0, 5, 1, 2, 3), (0, 0, 0, 0, 1)):
        cases = make_cases(kind, place, offsets)
        apply(module, kind, cases, go)
        check(kind, place, cases, expected)


@every_device
def test_more_tensors_than_one_launch_takes_are_all_updated(kind: Kind, place: str) -> None:
    expected = [make_tensors(kind, n, seed=n) for n in (*(n % 300 for n in range(1000)), 3_000_001)]
    cases = [moved(case, device=device_of(place)) for case in expected]
    apply(load_at(kind, place), kind, cases)
    load(kind).update_list(as_lists(expected), 3, options_of(kind))
    check(kind, place, cases, expected)


@every_device
def test_every_option_has_the_effect_that_it_has_on_the_cpu_optimizer(kind: Kind, place: str) -> None:
    module = load_at(kind, place)
    for change, step in itertools.product(kind.variants, (1, 1000)):
        if kind is LAMB and place == "cuda" and "lr" in change:
            continue  # magnifies how the norms differ
        expected = make_tensors(kind, 777)
        case = moved(expected, device=device_of(place))
        apply(module, kind, [case], step=step, **change)
        load(kind).update_list(as_lists([expected]), step, list({**kind.options, **change}.values()))
        check(kind, place, [case], [expected])
    module.update_list(as_lists([case]), options_of(kind), step, Control(maximize=True))
    load(kind).update_list(as_lists([expected]), step, options_of(kind), Pass(grad_scale=-1.0))
    check(kind, place, [case], [expected])


@every_device
def test_a_step_reads_and_changes_what_is_in_tensors_unless_it_is_skipped(kind: Kind, place: str) -> None:
    """The rate, the scale of gradients, and the steps, which are counted up; compared with float64.

    Devices make the coefficients of a step in float32 then: log(beta), its product with the step and expm1 add less
    than eight roundings to a change of a parameter.
    """
    module, device = load_at(kind, place), device_of(place)
    lr, scale = torch.tensor(2e-2), 4.0
    cases = make_cases(kind, place)
    done = [(0, 1, 2, 9, 99, 999, 123_456)[i % 7] for i in range(len(cases))]
    start = [case.map(torch.Tensor.cpu).clone() for case in cases]
    for case in cases:
        case.grad.mul_(scale)
    before = [case.map(torch.Tensor.cpu).clone() for case in cases]
    steps = [torch.tensor(float(step), device=device) for step in done]
    flags = [torch.tensor([value], dtype=torch.int32, device=device) for value in (0, 1)]
    infs = [torch.tensor([value], device=device) for value in (0.0, 1.0)]
    given = {"lr": lr.to(device), "grad_scale": torch.tensor(scale, device=device)}
    if kind is not LION:
        given["step"] = steps
    for flag, found_inf in ((flags[1], infs[0]), (flags[0], infs[1])):
        apply(module, kind, cases, flag, found_inf=found_inf, **given)
    check(kind, ISAS[-1], [case.map(torch.Tensor.cpu) for case in cases], before)
    assert [float(step) for step in steps] == done
    apply(module, kind, cases, flags[0], found_inf=infs[0], **given)
    for case, old, step in zip(cases, start, done, strict=True):
        assert_guards_untouched(case)
        found = case.map(torch.Tensor.cpu)
        options = {**kind.options, "lr": float(lr)}
        param, *states = expected_update(kind, options, old, step + 1, found)
        value = old.param.double()
        change = (param.value - value).abs() + options["lr"] * options["weight_decay"] * value.abs()
        assert_within(kind, found, [Rounded(param.value, param.error + 8 * U * change), *states])
    assert kind is LION or [float(step) for step in steps] == [step + 1 for step in done]


@pytest.mark.parametrize("place", [ISAS[-1], *(pytest.param(name, marks=MARKS[name]) for name in ("cuda", "sycl"))])
def test_the_capturable_form_takes_one_step_for_all_or_one_for_each_of_many(place: str) -> None:
    module, device = load_at(ADAM, place), device_of(place)
    step = torch.tensor(2.0, device=device)
    cases, same = make_cases(ADAM, place), [case.map(torch.Tensor.cpu) for case in make_cases(ADAM, place)]
    apply(module, ADAM, cases, lr=torch.tensor(1e-2, device=device), step=step)
    assert float(step) == 3
    apply(load_fused(ADAM), ADAM, same, lr=float(torch.tensor(1e-2)))
    check(ADAM, place, cases, same, near=True)
    steps = [torch.tensor(float(i), device=device) for i in range(300)]
    apply(module, ADAM, [moved(make_tensors(ADAM, 3), device=device) for _ in steps], step=steps)
    assert [int(step) for step in steps] == list(range(1, 301))


@pairs(ISAS[-1], "cuda", "sycl")
def test_new_gradients_in_every_update_do_what_a_call_with_all_tensors_does(kind: Kind, place: str) -> None:
    module, device, lengths = load_at(kind, place), device_of(place), (5, 1000, 0, 70_001)
    cases, twins = ([make_tensors(kind, n, seed=n).map(lambda x: x.to(device)) for n in lengths] for _ in range(2))
    steps, counters = ([torch.tensor(2.0, device=device) for _ in lengths] for _ in range(2))
    prepared = module.prepare(as_lists(cases), steps)
    for seed, dtype in enumerate([torch.float32] * 3 if place == "sycl" else FLOATS):
        grads = [make_tensors(kind, n, seed=seed + 7).grad.to(device, dtype) for n in lengths]
        prepared.replace_grads(grads)
        prepared.update(options_of(kind), Control())
        module.update_list(as_lists(twins)._replace(grads=grads), options_of(kind), counters)
    assert all(map(torch.equal, steps, counters))
    for case, twin in zip(cases, twins, strict=True):
        assert all(map(torch.equal, case, twin))


@pytest.mark.parametrize("mode", [0, 1])
def test_lamb_of_one_tensor_scales_the_step_by_the_corrections(mode: int) -> None:
    """The formula of DeepSpeed's op, found by its results on a CUDA device."""
    generator = torch.Generator().manual_seed(1)
    p, m, v, g = (torch.rand(1001, generator=generator) for _ in range(4))
    value, first, second, gradient = (tensor.double() for tensor in (p, m, v, g))
    copy = torch.empty(1001, dtype=torch.bfloat16)
    coefficient = load_fused(LAMB).lamb(p, copy, m, v, g * 8, 0.1, 0.9, 0.99, 0.5, 0.01, 1e-6, 8.0, 3, mode, True, 0.01)
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


# As torch ops -----------------------------------------------------------------------------------


@pairs(ISAS[-1], "sycl")
@pytest.mark.parametrize("in_tensors", [False, True])
def test_opcheck(kind: Kind, place: str, in_tensors: bool) -> None:
    module = load_at(kind, place)
    tensors = as_lists([make_tensors(kind, n, seed=n) for n in (17, 0, 64)]).positional()[:3]
    steps = [torch.tensor(1.0) for _ in range(3)] if in_tensors else []
    control = [torch.tensor(1e-2), torch.zeros(1, dtype=torch.int32), torch.ones(()), torch.zeros(1)]
    given = (*tensors, steps, *(control if in_tensors else [None] * 4), options_of(kind), 3, False, CHUNK, module.isa)
    torch.library.opcheck(module.ops.update.default, given)


def test_autograd_notices_an_update_between_forward_and_backward() -> None:
    leaf = torch.nn.Parameter(torch.rand(8))
    loss = (leaf * leaf).sum()
    apply(load_fused(ADAM), ADAM, [Tensors(leaf, torch.ones(8), (torch.zeros(8), torch.zeros(8)))])
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


def test_lists_of_nothing_do_nothing() -> None:
    load_fused(ADAM).multi_tensor_adam(CHUNK, None, [[], [], [], []], **numbers_of(ADAM))
