"""Bad input of the fused optimizers: a clear error, the tensors untouched, the op usable afterwards."""

from __future__ import annotations

import math

import pytest
import torch

from op_builder.cpu import FusedAdamBuilder, FusedAmsgradBuilder, FusedLambBuilder, FusedLionBuilder
from op_builder.errors import OpArgumentError
from op_builder.ops.optim.fused_op import Control
from op_builder.ops.optim.tensor_lists import TensorLists
from tests.support.adam_reference import Options, random_tensors
from tests.support.fused_cases import CHUNK, assert_same, lists_of, positional

ROLES = ("grad", "param", "exp_avg", "exp_avg_sq")
NUMBERS = ("lr", "beta1", "beta2", "eps", "step", "mode", "bias_correction", "weight_decay")


@pytest.fixture(scope="module")
def adam():
    return FusedAdamBuilder().load()


def good_lists(count: int = 3) -> list[list[torch.Tensor]]:
    return lists_of([random_tensors(24, seed=i) for i in range(count)])


def flat(lists):
    return [tensor for members in lists for tensor in members]


def refused(adam, text, lists=None, chunk_size=CHUNK, noop_flag=None, **numbers):
    lists = lists if lists is not None else good_lists()
    before = [tensor.clone() if isinstance(tensor, torch.Tensor) else tensor for tensor in flat(lists)]
    settings = {**dict(zip(NUMBERS, positional(Options()), strict=True)), **numbers}
    with pytest.raises(OpArgumentError, match=text) as caught:
        adam.multi_tensor_adam(chunk_size, noop_flag, lists, **settings)
    assert caught.value.remedy
    for tensor, then in zip(flat(lists), before, strict=True):
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and not tensor.is_meta:
            assert torch.equal(tensor, then)
    adam.multi_tensor_adam(CHUNK, None, good_lists(), *positional(Options()))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("lr", math.nan, "lr is nan"),
        ("lr", -1.0, "lr is -1.0"),
        ("lr", "fast", "not a number"),
        ("lr", torch.tensor(math.nan), "lr is nan"),
        ("lr", torch.tensor(math.inf), "lr is inf"),
        ("lr", torch.tensor(-1.0), "lr is -1.0"),
        ("beta1", 1.0, "beta1 is 1.0"),
        ("beta2", -0.1, "beta2 is -0.1"),
        ("eps", math.inf, "eps is inf"),
        ("weight_decay", -0.1, "weight_decay is -0.1"),
        ("step", 0, "step is 0"),
        ("step", 1.5, "step is 1.5"),
        ("step", torch.tensor(1.0), "not an int"),  # as a counter it belongs to the capturable form
        ("step", [torch.tensor(1.0)] * 3, "not an int"),
        ("mode", 2, "mode is 2"),
        ("chunk_size", 0, "chunk_size is 0"),
        ("chunk_size", "big", "chunk_size is 'big'"),
    ],
)
def test_bad_numbers(adam, name, value, text):
    refused(adam, text, **{name: value})


@pytest.mark.parametrize(
    ("role", "spoil", "text"),
    [
        *((role, lambda x: x.to("meta"), f"{role} of tensor 2 is on device meta") for role in ROLES),
        *((role, lambda x: x.to_sparse(), f"{role} of tensor 2 has layout torch.sparse_coo") for role in ROLES),
        *((role, lambda x: x.repeat(2)[::2], f"{role} of tensor 2 is not contiguous") for role in ROLES),
        *((role, lambda x: x.double(), f"{role} of tensor 2 is of type Double") for role in ROLES),
        *((role, lambda x: x.tolist(), f"{role} of tensor 2 is of type list") for role in ROLES),
        ("grad", lambda x: x[:-1].clone(), "grad of tensor 2 has 23 elements; 24 are needed"),
        ("exp_avg", lambda x: x.bfloat16(), "a state is of float32 or of its parameter's type"),
    ],
)
def test_bad_tensors(adam, role, spoil, text):
    lists = good_lists()
    lists[ROLES.index(role)][2] = spoil(lists[ROLES.index(role)][2])
    refused(adam, text, lists)


def test_tensors_that_share_memory(adam):
    lists = good_lists()
    storage = torch.rand(40)
    lists[1][2], lists[2][2] = storage[:24], storage[16:]
    refused(adam, "exp_avg of tensor 2 shares memory with its param", lists)


def test_two_parameters_that_share_memory(adam):
    lists = good_lists()
    lists[1][2] = lists[1][0]
    refused(adam, "param of tensor 2 shares memory with param of tensor 0", lists)


def without_memory(tensor, left=0):
    tensor.untyped_storage().resize_(left)
    return tensor


@pytest.mark.parametrize("left", [0, 95])
@pytest.mark.parametrize("role", ROLES)
def test_memory_that_was_freed_or_shrunk(adam, role, left):
    lists = good_lists()
    one = lists[ROLES.index(role)][2] = torch.zeros(24)
    steps = [torch.tensor(1.0) for _ in range(3)]
    grads, params, *states = lists
    prepared = adam.prepare(TensorLists(params, grads, states), steps)
    options = Options().listed()
    prepared.update(options, Control())
    before = [tensor.clone() for tensor in flat(lists)]
    without_memory(one, left)
    text = f"{role} of tensor 2 reaches to byte 96 of its storage, which has {left} bytes"
    with pytest.raises(OpArgumentError, match=text) as caught:
        prepared.update(options, Control())
    assert "llocate it again" in caught.value.remedy
    with pytest.raises(OpArgumentError, match=text):
        adam.multi_tensor_adam(CHUNK, None, lists, *positional(Options()))
    one.untyped_storage().resize_(96)
    one.copy_(before[ROLES.index(role) * 3 + 2])
    assert_same(flat(lists), before)
    assert all(step == 2 for step in steps)
    prepared.update(options, Control())


def test_moments_of_two_types(adam):
    lists = good_lists()
    lists[1][0], lists[2][0] = lists[1][0].bfloat16(), lists[2][0].bfloat16()
    refused(adam, "exp_avg and exp_avg_sq of tensor 0 are of different types", lists)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"tensor_lists": lambda lists: lists[:4]}, "tensor_lists has 4 lists"),
        ({"tensor_lists": lambda lists: [*lists[:4], lists[4][:2]]}, "3 parameters came with 2 max_exp_avg_sq tensors"),
        ({"tensor_lists": lambda lists: [*lists[:4], lists[3]]}, "max_exp_avg_sq of tensor 0 shares memory with its"),
        (
            {"tensor_lists": lambda lists: [*lists[:4], [x.double() for x in lists[4]]]},
            "max_exp_avg_sq of tensor 0 is of type Double",
        ),
        (
            {"tensor_lists": lambda lists: [*lists[:4], [x[1:].clone() for x in lists[4]]]},
            "max_exp_avg_sq of tensor 0 has 23 elements; 24 are needed",
        ),
        ({"lr": math.nan}, "lr is nan"),
        ({"lr": torch.ones(2)}, "lr is no tensor of one float32"),
        ({"beta2": 1.0}, "beta2 is 1.0"),
        ({"eps": -1.0}, "eps is -1.0"),
        ({"weight_decay": math.inf}, "weight_decay is inf"),
        ({"mode": 2}, "mode is 2"),
        ({"step": 0}, "step is 0"),
        ({"step": []}, "step is an empty list"),
        ({"step": torch.tensor(1.5)}, "steps are whole numbers from 0 on"),
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"noop_flag": torch.zeros(1)}, "noop_flag is no tensor of one int32"),
        ({"found_inf": torch.ones(1, dtype=torch.int32)}, "found_inf is no tensor of one float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_bad_arguments_of_amsgrad(changed, text):
    amsgrad = FusedAmsgradBuilder().load()
    good = {"chunk_size": CHUNK, "noop_flag": None, **dict(zip(NUMBERS, positional(Options()), strict=True))}
    lists = [*good_lists(), [torch.rand(24) for _ in range(3)]]
    before = [tensor.clone() for tensor in flat(lists)]
    given = {**changed, "tensor_lists": changed.get("tensor_lists", lambda lists: lists)(lists)}
    with pytest.raises(OpArgumentError, match=text) as caught:
        amsgrad.multi_tensor_amsgrad(**{**good, **given})
    assert caught.value.remedy
    assert_same(flat(lists), before)
    amsgrad.multi_tensor_amsgrad(**{**good, "tensor_lists": lists})


def test_lists_of_unequal_length_or_number(adam):
    lists = good_lists()
    refused(adam, "3 parameters came with 2 grad tensors", [lists[0][:2], *lists[1:]])
    refused(adam, "tensor_lists has 3 lists", lists[:3])


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        (torch.zeros(1), "noop_flag is no tensor of one int32"),
        (torch.zeros(2, dtype=torch.int32), "noop_flag is no tensor of one int32"),
        (torch.zeros(1, dtype=torch.int32, device="meta"), "noop_flag is on device meta"),
        (0, "noop_flag is of type int"),
        (without_memory(torch.zeros(1, dtype=torch.int32)), "noop_flag reaches to byte 4 of its storage, which has 0"),
    ],
)
def test_bad_flags(adam, flag, text):
    refused(adam, text, noop_flag=flag)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"lr": torch.ones(2)}, "lr is no tensor of one float32"),
        ({"lr": torch.ones(1, dtype=torch.float64)}, "lr is no tensor of one float32"),
        ({"step": []}, "step is an empty list"),
        ({"step": [torch.zeros(())] * 2}, "3 parameters came with 2 step tensors"),
        ({"step": torch.zeros(2)}, "step of tensor 0"),
        ({"step": torch.tensor(-1.0)}, "steps are whole numbers from 0 on"),
        ({"step": torch.tensor(1.5)}, "steps are whole numbers from 0 on"),
        ({"step": without_memory(torch.tensor(1.0))}, "step of tensor 0 reaches to byte 4"),
        ({"lr": without_memory(torch.tensor(1e-2))}, "lr reaches to byte 4"),
        ({"grad_scale": without_memory(torch.ones(1), 3)}, "grad_scale reaches to byte 4 of its storage, which has 3"),
        ({"found_inf": without_memory(torch.ones(1))}, "found_inf reaches to byte 4"),
        ({"step": torch.tensor(math.nan)}, "steps are whole numbers from 0 on"),
        ({"grad_scale": torch.ones(3)}, "grad_scale is no tensor of one float32"),
        ({"found_inf": torch.ones(1, dtype=torch.int32)}, "found_inf is no tensor of one float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_bad_arguments_of_the_capturable_form(adam, changed, text):
    lists = good_lists()
    before = [tensor.clone() for tensor in flat(lists)]
    numbers = {"lr": torch.tensor(1e-2), "step": torch.tensor(1.0), **changed}
    with pytest.raises(OpArgumentError, match=text):
        adam.multi_tensor_adam_capturable(
            CHUNK,
            None,
            lists,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            mode=1,
            bias_correction=True,
            weight_decay=0.0,
            **numbers,
        )
    assert_same(flat(lists), before)


def test_lion_and_lamb_refuse_alike():
    lists = good_lists()
    with pytest.raises(OpArgumentError, match="tensor_lists has 4 lists"):
        FusedLionBuilder().load().multi_tensor_lion(CHUNK, None, lists, 1e-3, 0.9, 0.99, 0.0)
    with pytest.raises(OpArgumentError, match="step is 0"):
        FusedLambBuilder().load().multi_tensor_lamb(CHUNK, None, lists, 1e-3, 0.9, 0.99, 1e-6, 0, True, 0.0)


def test_the_raw_op_refuses_too(adam):
    grads, params, *states = good_lists(1)
    given = (params, grads, [*states[0], *states[1]], [], None, None, None, None)
    with pytest.raises(ValueError, match="6 options were given"):
        adam.ops.update(*given, [0.1] * 6, 1, False, CHUNK, adam.isa)
    with pytest.raises(ValueError, match="avx9"):
        adam.ops.update(*given, [0.1] * 7, 1, False, CHUNK, "avx9")
    with pytest.raises(ValueError, match="no prepared list"):
        adam.ops.update_prepared(999, None, None, None, None, [0.1] * 7, 1, False, CHUNK, adam.isa)
