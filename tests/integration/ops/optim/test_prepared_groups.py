"""The lists and small states that an optimizer keeps: a step uses the tensors that there are then."""

from __future__ import annotations

import pytest
import torch

from op_builder.errors import OpArgumentError
from op_builder.ops import CPUAdam


def make_optimizer(count: int) -> CPUAdam:
    return CPUAdam([torch.nn.Parameter(torch.full((3,), float(i))) for i in range(count)], lr=0.1)


def params_of(optimizer: CPUAdam) -> list[torch.nn.Parameter]:
    params: list[torch.nn.Parameter] = optimizer.param_groups[0]["params"]
    return params


def set_grads(optimizer: CPUAdam, step: int, kind: str) -> None:
    """The gradients of a step: the tensors of the last one, new ones for all or for the last, or none for the first."""
    params = params_of(optimizer)
    for i, param in enumerate(params):
        value = torch.full((3,), float(step + i) - 5)
        if kind == "none" and i == 0:
            param.grad = None
        elif (kind == "same" and param.grad is not None) or (
            kind == "last" and param.grad is not None and i + 1 < len(params)
        ):
            param.grad.copy_(value)
        elif kind == "strided":
            param.grad = value.repeat_interleave(2)[::2]
        else:
            param.grad = value


@pytest.mark.parametrize("count", [2, 700])  # few, and more than a thread looks at
def test_gradients_that_stay_are_replaced_or_missing_are_those_of_the_step(count: int) -> None:
    kinds = (
        ["same"] * 3 + ["new"] * 2 + ["same"] * 3 + ["last"] * 2 + ["none", "same", "strided", "same", "same", "new"]
    )
    kept, forgetful = make_optimizer(count), make_optimizer(count)
    for step, kind in enumerate(kinds):
        set_grads(kept, step, kind)
        set_grads(forgetful, step, kind)
        kept.step()
        forgetful.load_state_dict(forgetful.state_dict())  # it prepares its lists anew
        forgetful.step()
        for one, other in zip(params_of(kept), params_of(forgetful), strict=True):
            assert torch.equal(one, other)


def test_a_refused_step_changes_nothing_and_the_next_one_works() -> None:
    params = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    optimizer = CPUAdam([{"params": params[:1]}, {"params": params[1:]}])
    for refused in (None, torch.ones(3).to_sparse()):
        params[0].grad, params[1].grad = torch.ones(3), torch.ones(3)
        if refused is not None:
            params[1].grad = refused
            with pytest.raises(OpArgumentError, match="sparse"):
                optimizer.step()
            params[1].grad = torch.ones(3)
        optimizer.step()
    assert [optimizer.state[param]["step"].item() for param in params] == [2, 2]


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("has_copies", [False, True])
def test_gradients_that_two_groups_share_are_refused_where_they_are_zeroed(steps: int, has_copies: bool) -> None:
    params = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    groups = [{"params": params}] if has_copies else [{"params": [param]} for param in params]
    optimizer = CPUAdam(groups, zero_grads=True)
    if has_copies:  # makes two lists of one group
        optimizer.write_copies({params[0]: torch.zeros(3)})
    for param in params:
        param.grad = torch.ones(3)
    for _ in range(steps):
        optimizer.step()
    before = [param.detach().clone() for param in params]
    for param in params:
        param.grad = torch.ones(4)[:3]
    shared = torch.ones(5)
    params[0].grad, params[1].grad = shared[:3], shared[2:]
    for _ in range(2):
        with pytest.raises(OpArgumentError, match="shares memory with one of group 0"):
            optimizer.step()
        assert all(torch.equal(param, old) for param, old in zip(params, before, strict=True))
    assert (shared == 1).all()
    optimizer.zero_grads = False
    optimizer.step()
    assert [optimizer.state[param]["step"].item() for param in params] == [steps + 1] * 2
    optimizer.zero_grads = True
    with pytest.raises(OpArgumentError, match="shares memory"):
        optimizer.step()
