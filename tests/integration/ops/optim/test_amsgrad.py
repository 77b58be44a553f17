"""``amsgrad=True`` of ``CPUAdam`` and ``FusedAdam``: a third state, and groups that differ in it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from accelerator import get_accelerator
from op_builder.errors import IncompatibleOpError, OpArgumentError
from op_builder.ops import CPUAdam, FusedAdam
from tests.support import optimizer_cases
from tests.support.optimizer_cases import Params, assert_close, assert_equal, contents, make_params

#: Ours, and torch's of the same formula.
PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "CPUAdam": (CPUAdam, torch.optim.AdamW),
    "FusedAdam, L2": (functools.partial(FusedAdam, adam_w_mode=False), torch.optim.Adam),
}
# A second moment that forgets half in each step, of gradients that fall: so it soon is far below its maximum.
OPTIONS = {"lr": 0.05, "betas": (0.9, 0.5), "weight_decay": 0.1}

every_pair = pytest.mark.parametrize(("ours", "theirs"), PAIRS.values(), ids=PAIRS)
every_front_end = pytest.mark.parametrize("optimizer", [CPUAdam, FusedAdam])


def set_grads(params: Params, step: int) -> None:
    optimizer_cases.set_grads(params, step, scale=0.5**step)


def run(optimizer: Any, params: Params, steps: int = 5, first: int = 0) -> None:
    for step in range(first, first + steps):
        set_grads(params, step)
        optimizer.step()


@every_pair
def test_groups_may_differ(ours: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    def groups(params: Params) -> list[dict[str, Any]]:
        return [{"params": params[:2], "amsgrad": True}, {"params": params[2:4]}]

    mine, expected = make_params(), make_params()
    optimizer, peer = ours(groups(mine), **OPTIONS), theirs(groups(expected), **OPTIONS)
    run(optimizer, mine)
    run(peer, expected)
    for made, params in ((optimizer, mine), (peer, expected)):
        made.add_param_group({"params": params[4:], "amsgrad": True})
        run(made, params, 4, first=5)
    assert_close(mine, expected)
    assert ["max_exp_avg_sq" in optimizer.state[param] for param in mine] == [True, True, False, False, True]
    copied = copy.deepcopy((mine, optimizer))
    run(optimizer, mine, 1, first=9)
    run(copied[1], copied[0], 1, first=9)
    assert_equal(copied[0], mine)


def test_clipping_scaling_and_copies_reach_over_groups_that_differ() -> None:
    mine, expected = make_params(), make_params()
    both = [{"params": mine[:2], "amsgrad": True}, {"params": mine[2:]}]
    optimizer = CPUAdam(both, max_grad_norm=0.5, zero_grads=True, **OPTIONS)
    peer = torch.optim.AdamW([{"params": expected[:2], "amsgrad": True}, {"params": expected[2:]}], **OPTIONS)
    copies = {param: torch.zeros_like(param, dtype=torch.bfloat16, requires_grad=False) for param in mine}
    optimizer.write_copies(copies)
    for step in range(4):
        set_grads(expected, step)
        for param, other in zip(mine, expected, strict=True):
            param.grad = other.grad * 256
        norm = torch.nn.utils.clip_grad_norm_(expected, 0.5)
        peer.step()
        optimizer.step(grad_scale=256.0)
        assert optimizer.grad_norm == pytest.approx(norm.item(), rel=1e-5)
        assert not any(param.grad.any() for param in mine)
    assert_close(mine, expected, 1e-5)
    assert all(torch.equal(written, param.detach().bfloat16()) for param, written in copies.items())
    before = contents(optimizer, mine)
    set_grads(mine, 5)
    mine[4].grad[0, 0] = float("inf")
    optimizer.step(grad_scale=256.0)
    assert optimizer.skipped
    assert_equal(contents(optimizer, mine), before)


# The op of their own --------------------------------------------------------------------------------


@every_front_end
def test_where_the_op_cannot_be_loaded_nothing_is_changed(
    optimizer: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = make_params()
    made = optimizer(params[:3])
    run(made, params[:3], 2)
    peer = torch.optim.AdamW(make_params()[:3], amsgrad=True)
    run(peer, peer.param_groups[0]["params"], 2)
    before = contents(made, params[:3])
    accelerator = type(get_accelerator())
    create = accelerator.create_op_builder

    def refuse(self: Any, name: str) -> Any:
        if "Amsgrad" in name:
            raise IncompatibleOpError("There is no compiler.", "Install one.")
        return create(self, name)

    monkeypatch.setattr(accelerator, "create_op_builder", refuse)
    with pytest.raises(IncompatibleOpError):
        optimizer(make_params(), amsgrad=True)
    with pytest.raises(IncompatibleOpError):
        made.add_param_group({"params": params[3:], "amsgrad": True})
    assert len(made.param_groups) == 1
    with pytest.raises(IncompatibleOpError):
        made.load_state_dict(peer.state_dict())
    assert_equal(contents(made, params[:3]), before)
    made.param_groups[0]["amsgrad"] = True
    with pytest.raises(IncompatibleOpError):
        run(made, params[:3], 1)
    assert_equal(contents(made, params[:3]), before)
    made.param_groups[0]["amsgrad"] = False
    run(made, params[:3], 1)


# Bad input ------------------------------------------------------------------------------------------


@every_front_end
def test_a_group_or_state_without_a_maximum_is_refused(optimizer: type[Any]) -> None:
    params = make_params()
    made = optimizer([{"params": params[:2]}, {"params": params[2:]}])
    run(made, params, 2)
    before = contents(made, params)
    text = r"The state of parameter 0 of group \d \(shape .*\) lacks 'max_exp_avg_sq'"
    made.param_groups[1]["amsgrad"] = True
    set_grads(params, 2)
    with pytest.raises(OpArgumentError, match=text):
        made.step()
    with pytest.raises(OpArgumentError, match=text):
        optimizer(make_params(), amsgrad=True).load_state_dict(
            {**made.state_dict(), "param_groups": optimizer(make_params(), amsgrad=True).state_dict()["param_groups"]}
        )
    assert_equal(contents(made, params), before)
    made.param_groups[1]["amsgrad"] = False
    made.step()


@every_pair
def test_a_group_that_turns_from_amsgrad_and_back_keeps_its_maximum(
    ours: Callable[..., Any], theirs: Callable[..., Any]
) -> None:
    mine, expected = make_params(), make_params()
    for make, params in ((ours, mine), (theirs, expected)):
        optimizer = make(params, amsgrad=True, **OPTIONS)
        for amsgrad, first in ((True, 0), (False, 3), (True, 6)):
            optimizer.param_groups[0]["amsgrad"] = amsgrad
            run(optimizer, params, 3, first=first)
    assert_close(mine, expected)


@pytest.mark.parametrize("states", ["bfloat16", "8bit"])
def test_packed_states_are_refused_wherever_they_come_from(states: str) -> None:
    params = make_params()
    made = CPUAdam(params, amsgrad=True)
    run(made, params, 2)
    before = contents(made, params)
    text = f"amsgrad=True with states='{states}' is not supported by CPUAdam"
    with pytest.raises(OpArgumentError, match=text):
        CPUAdam(make_params(), amsgrad=True, states=states)
    with pytest.raises(OpArgumentError, match=text):
        CPUAdam(make_params(), states=states).load_state_dict(made.state_dict())
    made.param_groups[0]["states"] = states
    set_grads(params, 2)
    with pytest.raises(OpArgumentError, match=text) as caught:
        made.step()
    assert "float32 or param" in caught.value.remedy
    assert_equal(contents(made, params), before)
