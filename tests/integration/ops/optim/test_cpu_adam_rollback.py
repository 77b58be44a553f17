"""Undoing an update."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch

from op_builder.errors import OpArgumentError
from op_builder.system.cpu_isa import supported_isas
from tests.support.optimizer_reference import ADAM, SECOND_ORDER, Options, make_tensors, update_one
from tests.support.training_tensors import SUBNORMAL, Tensors, U


@pytest.fixture(params=supported_isas())
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """An update, or its rollback, with an instruction set."""
    return functools.partial(update_one, ADAM, isa=request.param)


def bound(before: Tensors, after: Tensors, options: Options) -> list[torch.Tensor]:
    """How far each tensor may be from ``before``: adam.h derives it."""
    p, grad, m, v = before.map(torch.Tensor.double)
    new_p, _, new_m, new_v = after.map(torch.Tensor.double)
    beta1, beta2 = options["beta1"], options["beta2"]
    l2 = 0.0 if options["adamw_mode"] else options["weight_decay"]
    decay = 1 - options["lr"] * options["weight_decay"] if options["adamw_mode"] else 1.0
    step, decay = (new_p - decay * p).abs(), abs(decay)
    p_error = U * (2 * p.abs() + (new_p.abs() + step) / decay) + SUBNORMAL / decay
    g = grad + l2 * p
    g_error = l2 * p_error + 2 * U * (l2 * p.abs() + 2 * g.abs()) if l2 else torch.zeros_like(g)
    m_error = U * (2 * m.abs() + new_m.abs() / beta1) + (1 - beta1) / beta1 * g_error + SUBNORMAL / beta1
    v_error = U * (2 * v.abs() + new_v.abs() / beta2) + (1 - beta2) / beta2 * 2 * g.abs() * g_error + SUBNORMAL / beta2
    return [SECOND_ORDER * error for error in (p_error, torch.zeros_like(g), m_error, v_error)]


CHANGES = [
    {},
    {"step": 1},
    {"bias_correction": False},
    {"weight_decay": 0},
    {"lr": 5, "weight_decay": 0.19},
    {"lr": 20, "weight_decay": 0.1},
    {"beta1": 0.1, "beta2": 0.2},
    {"adamw_mode": False},
    {"adamw_mode": False, "weight_decay": 0.5, "lr": 1},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_rollback_restores_within_the_bound(run, changes):
    for numel in (0, 1, 17, 1000, 70_001):
        before = make_tensors(ADAM, numel, seed=numel)
        after = before.clone()
        run(after, **changes)
        restored = after.clone()
        run(restored, "rollback", **changes)
        most = bound(before, after, {**ADAM.options, **changes})
        for role, found, wanted, limit in zip(ADAM.roles, restored, before, most, strict=True):
            over = ~((found.double() - wanted.double()).abs() <= limit)  # NaN counts, too
            assert not over.any(), f"{role} of {numel}: {int(over.sum())} elements beyond the bound"


def test_moments_of_the_first_step_come_back_as_zeros_and_second_ones_never_negative(run):
    zeros, tiny = make_tensors(ADAM, 1000), make_tensors(ADAM, 10_000)
    for state in zeros.states:
        state.zero_()
    tiny.states[1].mul_(1e-12)
    for tensors, changes in ((zeros, {"step": 1}), (tiny, {"beta2": 0.01})):
        run(tensors, **changes)
        run(tensors, "rollback", **changes)
    assert not any(state.any() for state in zeros.states)
    assert (tiny.states[1] >= 0).all()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        # The old values are lost.
        ({"beta1": 0}, "beta of 0"),
        ({"beta2": 0}, "beta of 0"),
        ({"lr": 10, "weight_decay": 0.1}, "lr \\* weight_decay = 1"),
        ({"lr": 0.5, "weight_decay": 2}, "lr \\* weight_decay = 1"),
        # No update has them.
        ({"step": 0}, "step is 0"),
        ({"lr": math.nan}, "lr is nan"),
        ({"beta1": 1.0}, "beta1 is 1.0"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
    ],
    ids=str,
)
def test_options_that_cannot_be_rolled_back_are_refused(run, changes, text):
    tensors = make_tensors(ADAM, 20)
    before = tensors.clone()
    with pytest.raises(OpArgumentError, match=text) as caught:
        run(tensors, "rollback", **changes)
    assert caught.value.remedy
    assert all(map(torch.equal, tensors, before))


@pytest.mark.parametrize(
    "types",
    [(torch.bfloat16,) * 3, (torch.float16,) * 3, (torch.float32, torch.bfloat16, torch.float32)],
    ids=str,
)
def test_other_types_than_float32_are_refused(run, types):
    tensors = make_tensors(ADAM, 20, *types)
    before = tensors.clone()
    with pytest.raises(OpArgumentError, match="not of float32"):
        run(tensors, "rollback")
    assert all(map(torch.equal, tensors, before))
