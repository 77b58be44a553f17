"""When an optimizer's lists keep gradients, and what is left of a step that refuses them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch

from op_builder.errors import OpArgumentError
from op_builder.ops import CPUAdam
from op_builder.ops.optim.prepared_groups import PreparedGroups
from op_builder.ops.optim.tensor_lists import TensorLists


class Native:
    """A native op that does nothing but hold gradients, and refuses those of another length."""

    OPTIONS: ClassVar[tuple[str, ...]] = ()

    def prepare(self, tensors: TensorLists, steps: Sequence[torch.Tensor]) -> Native:  # noqa: ARG002
        self.grads = list(tensors.grads)
        return self

    def replace_grads(self, grads: Sequence[torch.Tensor]) -> list[int]:
        if any(grad.numel() != 3 for grad in grads):
            raise OpArgumentError("A gradient is too long.", "Pass another.")
        self.grads = list(grads)
        return []

    def release_grads(self) -> None:
        self.grads = []


class Optimizer:
    """What PreparedGroups asks of one."""

    def __init__(self) -> None:
        self.native = Native()
        self.params = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
        self.state: dict[torch.Tensor, dict[str, Any]] = {}
        self.groups = PreparedGroups[Native]()

    def native_of(self, _group: Mapping[str, Any]) -> Native:
        return self.native

    def check_grad(self, grad: torch.Tensor, index: int) -> None:
        """All are taken."""

    def check_state(self, state: Mapping[str, Any], index: int, group: Mapping[str, Any]) -> None:
        """All are taken."""

    def state_of(self, param: torch.Tensor, _group: Mapping[str, Any]) -> dict[str, Any]:
        return self.state.get(param) or {"step": torch.zeros(())}

    def names_of(self, _group: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        return [], []

    def step(self) -> list[torch.Tensor]:
        """The gradients that the native op had."""
        try:
            self.groups.current(self, [{"params": self.params, "states": "float32"}], self.state)
            return self.native.grads
        finally:
            self.groups.step_done()


def make_grads(optimizer: Optimizer) -> list[torch.Tensor]:
    grads = [torch.ones(3) for _ in optimizer.params]
    for param, grad in zip(optimizer.params, grads, strict=True):
        param.grad = grad
    return grads


def assert_had(had: list[torch.Tensor], grads: list[torch.Tensor]) -> None:
    assert all(one is other for one, other in zip(had, grads, strict=True))


def test_gradients_are_kept_once_two_steps_had_the_same() -> None:
    optimizer = Optimizer()
    grads = make_grads(optimizer)
    for keeps in (False, True, True):
        assert_had(optimizer.step(), grads)
        assert optimizer.groups.keeps_grads == keeps
        assert len(optimizer.native.grads) == (2 if keeps else 0)


def test_gradients_that_are_new_in_each_step_are_neither_kept_nor_followed() -> None:
    optimizer = Optimizer()
    for step in range(4):
        grads = make_grads(optimizer)
        assert_had(optimizer.step(), grads)
        assert not optimizer.native.grads
        assert weakref.getweakrefcount(grads[1]) == (step == 0)


def test_gradients_that_come_to_stay_are_kept_after_three_steps() -> None:
    optimizer = Optimizer()
    for _ in range(3):
        make_grads(optimizer)
        optimizer.step()
        assert not optimizer.groups.keeps_grads
    for keeps in (False, True, True):
        optimizer.step()
        assert optimizer.groups.keeps_grads == keeps
    new = make_grads(optimizer)
    assert_had(optimizer.step(), new)
    assert not optimizer.groups.keeps_grads


def test_gradients_that_stayed_and_are_refused_are_not_taken_for_kept_ones() -> None:
    optimizer = Optimizer()
    grads = make_grads(optimizer)
    optimizer.step()
    grads[1].resize_(4)
    for _ in range(3):
        with pytest.raises(OpArgumentError, match="too long"):
            optimizer.step()
        assert not optimizer.native.grads
    new = make_grads(optimizer)
    assert_had(optimizer.step(), new)


def test_a_refused_step_holds_no_gradient() -> None:
    params = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    optimizer = CPUAdam([{"params": params[:1]}, {"params": params[1:]}])
    for param in params:
        param.grad = torch.ones(3)
    optimizer.step()
    params[0].grad = torch.ones(3)
    params[1].grad = torch.ones(3).to_sparse()
    held = weakref.ref(params[0].grad)
    with pytest.raises(OpArgumentError, match="sparse"):
        optimizer.step()
    params[0].grad = None
    gc.collect()
    assert held() is None
    for param in params:
        param.grad = torch.ones(3)
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
