"""Undoing an update."""

from __future__ import annotations

import math

import pytest
import torch

from op_builder.errors import OpArgumentError
from tests.support.adam_reference import Options, Tensors, assert_within, random_tensors, rollback_bound

ADAMW, ADAM = 1, 2


@pytest.fixture
def adam(adam_of_isa):
    adam_of_isa.create_adam(ADAMW, adamw_mode=True)
    adam_of_isa.create_adam(ADAM, adamw_mode=False)
    yield adam_of_isa
    adam_of_isa.destroy_adam(ADAMW)
    adam_of_isa.destroy_adam(ADAM)


def identity(options: Options) -> int:
    return ADAMW if options.adamw_mode else ADAM


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(step=1),
        Options(bias_correction=False),
        Options(weight_decay=0),
        Options(lr=5, weight_decay=0.19),
        Options(lr=20, weight_decay=0.1),
        Options(beta1=0.1, beta2=0.2),
        Options(adamw_mode=False),
        Options(adamw_mode=False, weight_decay=0.5, lr=1),
    ],
    ids=str,
)
def test_rollback_restores_within_the_bound(adam, options):
    for numel in (0, 1, 17, 1000, 70_001):
        before = random_tensors(numel, seed=numel)
        after = before.clone()
        adam.adam_update(identity(options), *options.positional(), *after)
        restored = after.clone()
        adam.adam_rollback(identity(options), *options.positional(), *restored)
        assert_within(restored, before.map(torch.Tensor.double), rollback_bound(before, after, options))


@pytest.mark.parametrize(
    "types",
    [
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float16, torch.bfloat16, torch.float16),
        (torch.float32, torch.bfloat16, torch.float32),
    ],
    ids=str,
)
def test_rollback_of_halves_restores_within_their_rounding(adam, types):
    options = Options()
    before = random_tensors(1000, *types, seed=7)
    after = before.clone()
    adam.adam_update(ADAMW, *options.positional(), *after)
    restored = after.clone()
    adam.adam_rollback(ADAMW, *options.positional(), *restored)
    u = max(torch.finfo(dtype).eps / 2 for dtype in types)
    old, new = before.map(torch.Tensor.double), after.map(torch.Tensor.double)
    step = new.param - options.decay * old.param
    tiny = torch.finfo(torch.float16).smallest_normal * u * 4 if torch.float16 in types else 1e-30
    wide = 1.1  # second order
    bound = Tensors(
        wide * (u * (old.param.abs() + (new.param.abs() + 2 * step.abs()) / abs(options.decay)) + tiny),
        torch.zeros(1000),
        (
            wide * (u * (old.exp_avg.abs() + new.exp_avg.abs() / options.beta1) + tiny / options.beta1),
            wide * (u * (old.exp_avg_sq.abs() + new.exp_avg_sq.abs() / options.beta2) + tiny / options.beta2),
        ),
    )
    if torch.float16 in types:  # a second moment near float16's smallest number loses the step's size
        bound.param[new.exp_avg_sq < 1e-3] = float("inf")
    assert_within(restored, old, bound)
    assert restored.param.dtype == types[0]


def test_moments_of_the_first_step_come_back_as_exact_zeros(adam):
    before = random_tensors(1000)
    tensors = Tensors(before.param.clone(), before.grad, (torch.zeros(1000), torch.zeros(1000)))
    options = Options(step=1)
    adam.adam_update(ADAMW, *options.positional(), *tensors)
    adam.adam_rollback(ADAMW, *options.positional(), *tensors)
    assert (tensors.exp_avg == 0).all()
    assert (tensors.exp_avg_sq == 0).all()


def test_second_moment_never_comes_back_negative(adam):
    tensors = random_tensors(10_000)
    tensors.exp_avg_sq.mul_(1e-12)
    options = Options(beta2=0.01)
    adam.adam_update(ADAMW, *options.positional(), *tensors)
    adam.adam_rollback(ADAMW, *options.positional(), *tensors)
    assert (tensors.exp_avg_sq >= 0).all()


def refused(adam, text: str, tensors: list[torch.Tensor], options: Options) -> None:
    before = [tensor.clone() for tensor in tensors]
    with pytest.raises(OpArgumentError, match=text) as caught:
        adam.adam_rollback(ADAMW, *options.positional(), *tensors)
    assert caught.value.remedy
    assert all(torch.equal(now, then) for now, then in zip(tensors, before, strict=True))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        # The old values are lost.
        (Options(beta1=0), "beta of 0"),
        (Options(beta2=0), "beta of 0"),
        (Options(lr=10, weight_decay=0.1), "lr \\* weight_decay = 1"),
        (Options(lr=0.5, weight_decay=2), "lr \\* weight_decay = 1"),
        # No update has them.
        (Options(step=0), "step is 0"),
        (Options(lr=math.nan), "lr is nan"),
        (Options(beta1=1.0), "beta1 is 1.0"),
        (Options(weight_decay=-0.1), "weight_decay is -0.1"),
    ],
)
def test_options_that_cannot_be_rolled_back_are_refused(cpu_adam, options, text):
    cpu_adam.create_adam(ADAMW)
    try:
        refused(cpu_adam, text, [*random_tensors(20)], options)
    finally:
        cpu_adam.destroy_adam(ADAMW)


def test_tensors_that_do_not_fit_are_refused(adam):
    for role in range(4):
        for change, text in (
            (torch.Tensor.double, "is of type Double"),
            (lambda x: x.repeat(2)[::2], "is not contiguous"),
        ):
            tensors = [*random_tensors(20)]
            tensors[role] = change(tensors[role])
            refused(adam, text, tensors, Options())
    for moment in (2, 3):  # the moments are of two types
        tensors = [*random_tensors(20)]
        tensors[moment] = tensors[moment].half()
        refused(adam, "float32", tensors, Options())
    tensors = [*random_tensors(20)]
    refused(adam, "shares memory with its param", [tensors[0], tensors[0], *tensors[2:]], Options())
