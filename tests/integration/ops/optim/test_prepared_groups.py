"""The lists and small states that an optimizer keeps: a step uses the tensors that there are then."""

from __future__ import annotations

import copy
import io
import os

import pytest
import torch

from op_builder.errors import OpArgumentError
from op_builder.ops import CPUAdam
from op_builder.ops.optim.small_tensors import SmallTensors
from tests.support.optimizer_cases import Params, assert_equal


def zeros(count: int) -> Params:
    return [torch.nn.Parameter(torch.zeros(3)) for _ in range(count)]


def set_grads(params: Params, step: int, kind: str) -> None:
    """The gradients of a step: the tensors of the last one, new ones for all or for the last, or none for the first."""
    for i, param in enumerate(params):
        value = torch.full((3,), float(step + i) - 5)
        is_kept = kind == "same" or (kind == "last" and i + 1 < len(params))
        if kind == "none" and i == 0:
            param.grad = None
        elif is_kept and param.grad is not None:
            param.grad.copy_(value)
        else:
            param.grad = value.repeat_interleave(2)[::2] if kind == "strided" else value


@pytest.mark.parametrize("count", [2, 700])  # few, and more than a thread looks at
def test_gradients_that_stay_are_replaced_or_missing_are_those_of_the_step(count: int) -> None:
    kinds = [*["same"] * 3, *["new"] * 2, *["same"] * 3, *["last"] * 2, "none", "same", *["strided"] * 2, "same", "new"]
    kept, forgetful = zeros(count), zeros(count)
    optimizer, other = (CPUAdam(params, lr=0.1, zero_grads=True) for params in (kept, forgetful))
    for step, kind in enumerate(kinds):
        set_grads(kept, step, kind)
        set_grads(forgetful, step, kind)
        optimizer.step()
        other.load_state_dict(other.state_dict())  # it prepares its lists anew
        other.step()
        assert torch.equal(torch.stack(kept), torch.stack(forgetful))
        assert not torch.stack([param.grad for param in kept if param.grad is not None]).any()


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("has_copies", [False, True])
def test_gradients_that_two_groups_share_are_refused_where_they_are_zeroed(steps: int, has_copies: bool) -> None:
    params = zeros(2)
    groups = [{"params": params}] if has_copies else [{"params": [param]} for param in params]
    optimizer = CPUAdam(groups, zero_grads=True)
    if has_copies:  # makes two lists of one group
        optimizer.write_copies({params[0]: torch.zeros(3)})
    set_grads(params, 0, "new")
    for _ in range(steps):
        optimizer.step()
    before = [param.detach().clone() for param in params]
    shared = torch.ones(5)
    params[0].grad, params[1].grad = shared[:3], shared[2:]
    for _ in range(2):
        with pytest.raises(OpArgumentError, match="shares memory"):
            optimizer.step()
        assert_equal(params, before)
    assert (shared == 1).all()
    optimizer.zero_grads = False
    optimizer.step()
    assert [optimizer.state[param]["step"].item() for param in params] == [steps + 1] * 2
    optimizer.zero_grads = True
    with pytest.raises(OpArgumentError, match="shares memory"):
        optimizer.step()


@pytest.mark.parametrize("shared", ["parameters", "exp_avg", "step"])
def test_parameters_and_states_that_two_groups_share_are_refused(shared: str) -> None:
    first, second = (torch.nn.Parameter(torch.ones(40)) for _ in range(2))
    if shared == "parameters":
        second = torch.nn.Parameter(first.data[20:])
    made = CPUAdam([{"params": [first]}, {"params": [second]}])
    for param in (first, second):
        param.grad = torch.ones_like(param)
    if shared != "parameters":
        made.step()
        made.state[second][shared] = made.state[first][shared]
    before = first.detach().clone(), second.detach().clone()
    with pytest.raises(OpArgumentError, match="group 1 shares memory"):
        made.step()
    assert_equal((first, second), before)


def test_a_saved_state_is_no_larger_than_its_tensor() -> None:
    param = torch.nn.Parameter(torch.ones(10))
    made = CPUAdam([param])
    param.grad = torch.ones(10)
    made.step()
    file = io.BytesIO()
    torch.save(made.state[param]["exp_avg"], file)
    assert file.tell() < 4096
    assert copy.deepcopy(made.state[param]["exp_avg"]).untyped_storage().nbytes() == 40


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_a_child_process_has_memory_of_its_own() -> None:
    tensor = SmallTensors().copy(torch.zeros(3))
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = int(tensor.add_(1).tolist() != [1.0, 1.0, 1.0])
        finally:  # also after an error, which pytest must not see in the child
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tensor.tolist() == [0.0, 0.0, 0.0]
