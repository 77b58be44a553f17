"""``amsgrad=True`` of ``CPUAdam`` and ``FusedAdam``: groups that differ in it, and the op of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from accelerator import get_accelerator
from op_builder.errors import IncompatibleOpError, OpArgumentError
from op_builder.ops import CPUAdam, FusedAdam
from tests.support.optimizer_cases import assert_close, assert_equal, contents, make_params, run, set_grads

#: Ours, and torch's of the same formula.
PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "CPUAdam": (CPUAdam, torch.optim.AdamW),
    "FusedAdam, L2": (functools.partial(FusedAdam, adam_w_mode=False), torch.optim.Adam),
}
# A second moment that forgets half in each step, so that it is often far below its maximum.
OPTIONS = {"lr": 0.05, "betas": (0.9, 0.5), "weight_decay": 0.1}

every_front_end = pytest.mark.parametrize("optimizer", [CPUAdam, FusedAdam])


@pytest.mark.parametrize(("ours", "theirs"), PAIRS.values(), ids=PAIRS)
def test_groups_may_differ_come_later_and_keep_their_maximum_when_they_turn(
    ours: Callable[..., Any], theirs: Callable[..., Any]
) -> None:
    mine, expected = make_params(), make_params()
    for make, params in ((ours, mine), (theirs, expected)):
        optimizer = make([{"params": params[:2], "amsgrad": True}, {"params": params[2:4]}], **OPTIONS)
        run(optimizer, params)
        optimizer.add_param_group({"params": params[4:], "amsgrad": True})
        for amsgrad, first in ((True, 5), (False, 7), (True, 9)):
            optimizer.param_groups[0]["amsgrad"] = amsgrad
            run(optimizer, params, 2, first=first)
        assert ["max_exp_avg_sq" in optimizer.state[param] for param in params] == [True, True, False, False, True]
    assert_close(mine, expected)


@every_front_end
def test_where_the_op_cannot_be_loaded_nothing_is_changed(
    optimizer: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = make_params()
    made = optimizer(params[:3])
    run(made, params[:3], 2)
    before = contents(made, params[:3])
    accelerator = type(get_accelerator())
    create = accelerator.create_op_builder

    def refuse(self: Any, name: str) -> Any:
        if "Amsgrad" in name:
            raise IncompatibleOpError("There is no compiler.", "Install one.")
        return create(self, name)

    monkeypatch.setattr(accelerator, "create_op_builder", refuse)
    saved = torch.optim.AdamW(make_params()[:3], amsgrad=True).state_dict()
    group = made.param_groups[0]
    for call in (
        lambda: optimizer(make_params(), amsgrad=True),
        lambda: made.add_param_group({"params": params[3:], "amsgrad": True}),
        lambda: made.load_state_dict(saved),
        lambda: group.update(amsgrad=True) or made.step(),
    ):
        with pytest.raises(IncompatibleOpError):
            call()
        assert len(made.param_groups) == 1
        assert_equal(contents(made, params[:3]), before)
    group["amsgrad"] = False
    run(made, params[:3], 1)


@every_front_end
def test_a_group_or_state_without_a_maximum_is_refused(optimizer: type[Any]) -> None:
    params = make_params()
    made = optimizer([{"params": params[:2]}, {"params": params[2:]}])
    run(made, params, 2)
    before = contents(made, params)
    made.param_groups[1]["amsgrad"] = True
    other = optimizer(make_params(), amsgrad=True)
    saved = {**made.state_dict(), "param_groups": other.state_dict()["param_groups"]}
    set_grads(params, 2)
    for call in (made.step, lambda: other.load_state_dict(saved)):
        with pytest.raises(OpArgumentError, match=r"The state of parameter 0 of group \d .* lacks 'max_exp_avg_sq'"):
            call()
    assert_equal(contents(made, params), before)
    made.param_groups[1]["amsgrad"] = False
    made.step()


@pytest.mark.parametrize("states", ["bfloat16", "8bit"])
def test_packed_states_are_refused_wherever_they_come_from(states: str) -> None:
    params = make_params()
    made = CPUAdam(params, amsgrad=True)
    run(made, params, 2)
    before, saved = contents(made, params), made.state_dict()
    made.param_groups[0]["states"] = states
    set_grads(params, 2)
    for call in (
        lambda: CPUAdam(make_params(), amsgrad=True, states=states),
        lambda: CPUAdam(make_params(), states=states).load_state_dict(saved),
        made.step,
    ):
        with pytest.raises(OpArgumentError, match=f"amsgrad=True with states='{states}' is not supp") as caught:
            call()
        assert "float32 or param" in caught.value.remedy
    assert_equal(contents(made, params), before)
