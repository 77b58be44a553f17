"""Undoing an update."""

from __future__ import annotations

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


@pytest.mark.parametrize("numel", [0, 1, 17, 1000, 70_001])
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
def test_rollback_restores_within_the_bound(adam, numel, options):
    before = random_tensors(numel, seed=numel)
    after = before.clone()
    adam.adam_update(identity(options), *options.positional(), *after)
    restored = after.clone()
    adam.adam_rollback(identity(options), *options.positional(), *restored)
    assert_within(restored, before.double(), rollback_bound(before, after, options))


def test_moments_of_the_first_step_come_back_as_exact_zeros(adam):
    before = random_tensors(1000)
    zeros = torch.zeros(1000)
    tensors = Tensors(before.param.clone(), before.grad, zeros.clone(), zeros.clone())
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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (Options(beta1=0), "beta of 0"),
        (Options(beta2=0), "beta of 0"),
        (Options(lr=10, weight_decay=0.1), "lr \\* weight_decay = 1"),
        (Options(lr=0.5, weight_decay=2), "lr \\* weight_decay = 1"),
    ],
)
def test_updates_that_lose_the_old_values_are_refused(adam, options, text):
    tensors = random_tensors(20)
    before = tensors.clone()
    with pytest.raises(OpArgumentError, match=text):
        adam.adam_rollback(ADAMW, *options.positional(), *tensors)
    assert all(torch.equal(now, then) for now, then in zip(tensors, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("role", range(4))
def test_only_float32_can_be_rolled_back(adam, dtype, role):
    tensors = list(random_tensors(20))
    tensors[role] = tensors[role].to(dtype)
    before = [tensor.clone() for tensor in tensors]
    with pytest.raises(OpArgumentError, match="float32"):
        adam.adam_rollback(ADAMW, *Options().positional(), *tensors)
    assert all(torch.equal(now, then) for now, then in zip(tensors, before, strict=True))
