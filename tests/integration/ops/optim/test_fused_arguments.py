"""Bad input of the fused optimizers: a clear error, the tensors untouched, the op usable afterwards."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from op_builder.cpu import FusedAdamBuilder, FusedAmsgradBuilder, FusedLambBuilder, FusedLionBuilder
from op_builder.errors import OpArgumentError
from tests.support.fused_cases import CHUNK, lists_of, numbers_of
from tests.support.optimizer_reference import ADAM, AMSGRAD, make_tensors

ROLES = ("grad", "param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")


@pytest.fixture(scope="module")
def adam():
    return FusedAdamBuilder().load()


@pytest.fixture(scope="module")
def amsgrad():
    return FusedAmsgradBuilder().load()


def good_lists() -> list[list[torch.Tensor]]:
    """Of three parameters, as AMSGrad takes them; Adam takes all but the last list."""
    return lists_of([make_tensors(AMSGRAD, 24, seed=i) for i in range(3)])


def flat(lists):
    return [tensor for members in lists for tensor in members]


def refused(module: Any, text: str, lists: list[Any] | None = None, **changes: Any) -> None:
    """Raise unless an update with ``changes`` is refused with a remedy and changes no tensor."""
    name, count = ("amsgrad", 5) if "max_exp_avg_sq" in module.states else ("adam", 4)
    lists = lists if lists is not None else good_lists()[:count]
    before = [tensor.clone() if isinstance(tensor, torch.Tensor) else tensor for tensor in flat(lists)]
    good = {"chunk_size": CHUNK, "noop_flag": None, **numbers_of(ADAM)}
    for form in ("multi_tensor_adam", "multi_tensor_adam_capturable") if name == "adam" else ("multi_tensor_amsgrad",):
        with pytest.raises(OpArgumentError, match=text) as caught:
            getattr(module, form)(**{**good, "tensor_lists": lists, **changes})
        assert caught.value.remedy
        for tensor, then in zip(flat(lists), before, strict=True):
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and not tensor.is_meta:
                assert torch.equal(tensor, then)
        getattr(module, form)(**{**good, "tensor_lists": good_lists()[:count]})


def without_memory(tensor, left=0):
    tensor.untyped_storage().resize_(left)
    return tensor


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lr": math.nan}, "lr is nan"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"lr": "fast"}, "not a number"),
        ({"lr": torch.ones(2)}, "lr is not a tensor of one float32"),
        ({"beta1": 1.0}, "beta1 is 1.0"),
        ({"mode": 2}, "mode is 2"),
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"chunk_size": "big"}, "chunk_size is 'big'"),
        ({"step": 0}, "step is 0"),
        ({"step": 1.5}, "step is 1.5"),
        ({"step": []}, "step is an empty list"),
        ({"step": [torch.zeros(())] * 2}, "3 parameters came with 2 step tensors"),
        ({"step": torch.zeros(2)}, "step of tensor 0"),
        ({"step": torch.tensor(-1.0)}, "steps are whole numbers of at least 0"),
        ({"step": torch.tensor(math.nan)}, "steps are whole numbers of at least 0"),
        ({"grad_scale": torch.ones(3)}, "grad_scale is not a tensor of one float32"),
        ({"grad_scale": without_memory(torch.ones(1), 3)}, "grad_scale reaches to byte 4 of its storage, which has 3"),
        ({"found_inf": torch.ones(1, dtype=torch.int32)}, "found_inf is not a tensor of one float32"),
        ({"noop_flag": torch.zeros(1)}, "noop_flag is not a tensor of one int32"),
        ({"noop_flag": torch.zeros(1, dtype=torch.int32, device="meta")}, "noop_flag is on device meta"),
        ({"noop_flag": 0}, "noop_flag is of type int"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_numbers_and_what_is_read_from_tensors(amsgrad, changes, text):
    refused(amsgrad, text, **changes)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda x: x.to("meta"), "{role} of tensor 2 is on device meta"),
        (lambda x: x.to_sparse(), "{role} of tensor 2 has layout torch.sparse_coo"),
        (lambda x: x.repeat(2)[::2], "{role} of tensor 2 is not contiguous"),
        (lambda x: x.double(), "{role} of tensor 2 is of type Double"),
        (lambda x: x.tolist(), "{role} of tensor 2 is of type list"),
    ],
)
def test_tensors_that_do_not_fit(amsgrad, spoil, text):
    for place, role in enumerate(ROLES):
        lists = good_lists()
        lists[place][2] = spoil(lists[place][2])
        refused(amsgrad, text.format(role=role), lists)


def test_lists_of_unequal_length_or_number(adam, amsgrad):
    lists = good_lists()
    refused(adam, "3 parameters came with 2 grad tensors", [lists[0][:2], *lists[1:4]])
    refused(adam, "tensor_lists has 3 lists", lists[:3])
    refused(amsgrad, "3 parameters came with 2 max_exp_avg_sq tensors", [*lists[:4], lists[4][:2]])
    refused(amsgrad, "tensor_lists has 4 lists", lists[:4])
    with pytest.raises(OpArgumentError, match="tensor_lists has 4 lists"):
        FusedLionBuilder().load().multi_tensor_lion(CHUNK, None, lists[:4], 1e-3, 0.9, 0.99, 1, 0.0)
    with pytest.raises(OpArgumentError, match="step is 0"):
        FusedLambBuilder().load().multi_tensor_lamb(CHUNK, None, lists[:4], 1e-3, 0.9, 0.99, 1e-6, 0, True, 0.0)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("lr", torch.tensor(math.nan), "lr is nan"),
        ("lr", torch.tensor(-1.0), "lr is -1.0"),
        ("step", torch.tensor(1.0), "not an int"),  # as a counter it belongs to the capturable form
        ("step", [torch.tensor(1.0)] * 3, "not an int"),
    ],
)
def test_tensors_for_numbers_are_checked_as_numbers_but_in_the_capturable_form(adam, name, value, text):
    numbers = {**numbers_of(ADAM), name: value}
    with pytest.raises(OpArgumentError, match=text):
        adam.multi_tensor_adam(CHUNK, None, good_lists()[:4], **numbers)
