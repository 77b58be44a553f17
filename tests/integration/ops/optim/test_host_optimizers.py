"""What the optimizers on host tensors do beyond torch's: clipping, scaling, copies, packed states, replaced tensors."""

from __future__ import annotations

import copy
import gc
import io
import math
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from op_builder.errors import OpArgumentError
from op_builder.ops import CPUSGD, CPUAdam, FusedAdam
from op_builder.ops.optim.host_optimizer import HostOptimizer
from tests.support.optimizer_cases import (
    HOST,
    PACKING,
    Params,
    assert_close,
    assert_equal,
    contents,
    make_params,
    run,
    set_grads,
)

every_optimizer = pytest.mark.parametrize("optimizer", HOST)
every_packing = pytest.mark.parametrize("optimizer", PACKING)


@every_optimizer
@pytest.mark.parametrize("option", ["max_grad_norm", "zero_grads", "seed"])
def test_an_option_of_the_optimizer_is_refused_in_a_group(optimizer: type[HostOptimizer], option: str) -> None:
    with pytest.raises(OpArgumentError, match=f"A group has {option}=1") as caught:
        optimizer([{"params": make_params(), option: 1}])
    assert f"to {optimizer.__name__} itself" in caught.value.remedy
    assert "ZeroRedundancyOptimizer" in caught.value.remedy


# Tensors that change between steps ------------------------------------------------------------


def test_gradients_that_the_loop_drops_are_freed() -> None:
    params = make_params()
    made = CPUAdam(params)
    for seed in range(3):
        set_grads(params, seed)
        made.step()
        held = [weakref.ref(param.grad) for param in params]
        made.zero_grad(set_to_none=True)
        gc.collect()
        assert [ref() for ref in held] == [None] * len(params)


@pytest.mark.parametrize(
    "change",
    [
        lambda entry, new: entry.update(exp_avg=new),
        lambda entry, new: entry.__ior__({"exp_avg": new}),
        lambda entry, new: (entry.pop("exp_avg"), entry.setdefault("exp_avg", new)),
        lambda entry, new: (old := dict(entry), entry.clear(), entry.update({**old, "exp_avg": new})),
    ],
)
def test_tensors_that_are_replaced_by_hand_are_those_that_are_updated(change: Callable[..., Any]) -> None:
    params, expected = make_params(), make_params()
    made, other = CPUAdam(params), CPUAdam(expected)
    run(made, params, 3)
    run(other, expected, 3)
    entries = [made.state[param] for param in params]
    new = entries[0]["exp_avg"].clone()
    old = [entries[0]["exp_avg"], *entries[1].values(), entries[2]["step"], params[4].data]
    change(entries[0], new)
    made.state[params[1]] = {name: value.clone() for name, value in entries[1].items()}
    entries[2]["step"] = entries[2]["step"].clone()
    params[4].data = params[4].data.clone()
    kept = [tensor.clone() for tensor in old]
    run(made, params, 2, first=4)
    run(other, expected, 2, first=4)
    assert_equal(params, expected)
    assert_equal(old, kept)
    assert made.state[params[0]]["exp_avg"] is new
    replaced = torch.nn.Parameter(params[3].detach().clone())
    made.param_groups[0]["params"][3] = replaced
    set_grads([replaced], 7)
    made.step()
    assert made.state[replaced]["step"].item() == 1


def test_a_saved_state_is_of_plain_dictionaries_and_hooks_may_change_it() -> None:
    params = make_params()
    made = CPUAdam(params)
    run(made, params, 2)
    saved = io.BytesIO()
    torch.save(made.state_dict(), saved)
    saved.seek(0)
    CPUAdam(make_params()).load_state_dict(torch.load(saved, weights_only=True))
    assert {type(entry) for entry in copy.deepcopy(made).state.values()} == {dict}
    seen = []
    made.register_state_dict_post_hook(lambda _, state: seen.append({type(entry) for entry in state["state"].values()}))
    made.register_state_dict_post_hook(lambda _, state: {"wrapped": state})
    for _ in range(2):
        assert set(made.state_dict()) == {"wrapped"}
    assert seen == [{dict}] * 2


def test_a_parameter_that_appears_twice_is_refused_at_the_step() -> None:
    params = make_params()
    with pytest.warns(UserWarning, match="duplicate parameters"):
        made = CPUAdam([*params, params[0]])
    with pytest.raises(OpArgumentError, match="parameter twice"):
        run(made, params, 1)
    assert_equal(params, make_params())


def in_groups(params: Params) -> list[dict[str, Any]]:
    """Two with other learning rates."""
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.02}]


# In the pass of the update --------------------------------------------------------------------


@every_optimizer
def test_all_options_at_once_do_what_each_does_alone(optimizer: type[HostOptimizer]) -> None:
    """The clipping is torch's."""
    params, expected = make_params(), make_params()
    made = optimizer(in_groups(params), max_grad_norm=2.0, zero_grads=True, maximize=True)
    other = optimizer(in_groups(expected))
    params, made = pickle.loads(pickle.dumps((params, made)))  # with its settings
    copies = {param: torch.zeros_like(param, dtype=torch.bfloat16, requires_grad=False) for param in params}
    made.write_copies(copies)
    for seed in range(3):
        set_grads(params, seed, scale=64.0)
        set_grads(expected, seed)
        made.step(grad_scale=64.0)
        norm = torch.nn.utils.get_total_norm([param.grad for param in expected])
        assert made.grad_norm == pytest.approx(norm.item(), rel=1e-5)
        factor = -min(1.0, 2.0 / (made.grad_norm + 1e-6))
        for param in expected:
            param.grad.mul_(torch.tensor(factor, dtype=torch.float32))
        other.step()
        assert not any(param.grad.any() for param in params)
        assert [torch.equal(written, param.detach().bfloat16()) for param, written in copies.items()] == [True] * 5
    assert_equal(params, expected)


@pytest.mark.parametrize(
    ("settings", "grad_scale", "message"),
    [
        ({"max_grad_norm": 0}, None, "max_grad_norm is 0"),
        ({"max_grad_norm": -1}, None, "max_grad_norm"),
        ({"max_grad_norm": math.nan}, None, "max_grad_norm"),
        ({"max_grad_norm": "1"}, None, "max_grad_norm is '1', which is not a number"),
        ({"seed": 2**63}, None, "seed is 9223372036854775808; an int of"),
        ({"seed": 1.5}, None, "seed is 1.5; an int of"),
        *(({}, scale, "grad_scale") for scale in (0, math.nan, -1.0, "big", 1e-39)),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], grad_scale: Any, message: str) -> None:
    params = make_params()
    set_grads(params, 0)
    with pytest.raises(OpArgumentError, match=message):
        CPUAdam(params, **settings).step(grad_scale=grad_scale)
    assert_equal(params, make_params())


@every_optimizer
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_scaled_step_with_an_infinite_gradient_changes_nothing(optimizer: type[HostOptimizer], bad: float) -> None:
    params, expected = make_params(), make_params()
    made, other = optimizer(in_groups(params)), optimizer(in_groups(expected))
    for seed in range(4):
        set_grads(params, seed, scale=1024.0)
        set_grads(expected, seed)
        if seed == 2:
            params[4].grad[3, 3] = bad
            before = contents(made, params)
            made.step(grad_scale=torch.tensor(1024.0))
            assert made.skipped
            assert_equal(contents(made, params), before)
            continue
        made.step(grad_scale=1024.0)
        other.step()
        assert not made.skipped
    assert_equal(params, expected)


@pytest.mark.parametrize("limit", [None, 1.0])
def test_a_gradient_that_becomes_infinite_when_it_is_unscaled_changes_nothing(limit: float | None) -> None:
    params = make_params()
    made = CPUAdam(params, max_grad_norm=limit)
    set_grads(params, 0, scale=1e30)
    before = [param.detach().clone() for param in params]
    made.step(grad_scale=1e-10)
    assert made.skipped
    assert made.grad_norm is not None
    assert made.grad_norm > 1e38
    assert_equal(params, before)


def test_a_freed_gradient_is_named_when_the_gradients_are_clipped() -> None:
    params = make_params()
    made = CPUAdam([{"params": [param]} for param in params], max_grad_norm=1.0)
    run(made, params, 1)
    set_grads(params, 2)
    params[1].grad.untyped_storage().resize_(0)  # type: ignore[union-attr]
    with pytest.raises(OpArgumentError, match="grad of parameter 0 of group 1"):
        made.step()


@pytest.mark.parametrize("limit", [1e6, float("inf")])
def test_a_norm_below_the_limit_is_measured_and_clips_nothing(limit: float) -> None:
    params, expected = make_params(), make_params()
    made = CPUAdam(params, max_grad_norm=limit)
    run(made, params, 1)
    run(CPUAdam(expected), expected, 1)
    assert made.grad_norm == pytest.approx(float(torch.nn.utils.get_total_norm([p.grad for p in params])), rel=1e-6)
    assert_equal(params, expected)


@every_optimizer
def test_copies_of_the_new_parameters_are_written_and_kept_on_loading(optimizer: type[HostOptimizer]) -> None:
    params, expected = make_params(), make_params()
    dtypes = (torch.bfloat16, torch.float16, torch.float32, torch.bfloat16)
    copies = {param: torch.zeros(param.shape, dtype=dtype) for param, dtype in zip(params[:4], dtypes, strict=True)}
    made = optimizer(params)
    made.write_copies(copies)
    run(made, params, 2)
    made.load_state_dict(made.state_dict())
    run(made, params, 2, first=3)
    run(optimizer(expected), expected)
    assert_equal(params, expected)
    for param, written in copies.items():
        assert torch.equal(written, param.detach().to(written.dtype))
    made.write_copies({})
    old = [written.clone() for written in copies.values()]
    run(made, params)
    assert_equal(list(copies.values()), old)


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
def test_a_copied_optimizer_writes_the_copied_tensors(copy_of: Callable[[Any], Any], in_backward: bool) -> None:
    params = make_params()
    made = CPUAdam(params, in_backward=in_backward)
    copies = {param: torch.zeros(param.shape, dtype=torch.bfloat16) for param in params}
    made.write_copies(copies)
    params, made, copies = copy_of((params, made, copies))
    for param in params:
        param.sum().backward()
    made.step()
    for param, written in copies.items():
        assert torch.equal(written, param.detach().bfloat16())
        assert written.count_nonzero() == written.numel()


def test_copies_of_foreign_tensors_are_refused() -> None:
    made = CPUAdam(make_params())
    with pytest.raises(OpArgumentError, match="not a parameter"):
        made.write_copies({torch.zeros(3): torch.zeros(3)})


# Packed states --------------------------------------------------------------------------------


@every_packing
@pytest.mark.parametrize("states", ["bfloat16", "8bit"])
def test_packed_states_stay_near_and_are_reproducible(optimizer: type[HostOptimizer], states: str) -> None:
    params, expected, again = make_params(), make_params(), make_params()
    run(optimizer(params, lr=1e-3, states=states, seed=3), params, 20)
    run(optimizer(again, lr=1e-3, states=states, seed=3), again, 20)
    run(optimizer(expected, lr=1e-3), expected, 20)
    assert_equal(params, again)
    # Each step moves a parameter by about lr; random rounding changes it by a fraction of that.
    for mine, exact, start in zip(params, expected, make_params(), strict=True):
        moved = (exact - start).abs().max()
        assert (mine - exact).abs().max() <= 0.5 * moved + 1e-6
        assert not torch.equal(mine, start)


@pytest.mark.parametrize("states", ["bfloat16", "8bit"])
def test_random_rounding_does_not_depend_on_other_parameters(states: str) -> None:
    """Neither on whether another has a gradient nor on whether it has a copy; but on the group."""
    alone, together, copied, grouped = (make_params() for _ in range(4))
    for params in (alone, together, copied, grouped):
        groups = [{"params": params[:3]}, {"params": params[3:]}] if params is grouped else [{"params": params}]
        made = CPUAdam(groups, states=states, lr=0.1)
        if params is copied:
            made.write_copies({params[0]: torch.zeros(5, 7)})
        for seed in range(3):
            set_grads(params, seed)
            if params is alone:
                params[0].grad = None
            made.step()
    assert_equal(alone[1:], together[1:])
    assert_equal(copied, together)
    assert not torch.equal(grouped[4], together[4])


@pytest.mark.parametrize("target", ["float32", "param", "bfloat16", "8bit", "fused", "8bit later"])
@pytest.mark.parametrize("source", ["float32", "bfloat16", "8bit", "fused"])
def test_a_loaded_state_is_converted_to_the_storage(source: str, target: str) -> None:
    params = make_params()
    made = FusedAdam(params) if source == "fused" else CPUAdam(params, states=source)
    run(made, params, 5)
    others = copy.deepcopy(params)
    states = {"fused": "float32", "8bit later": "param"}.get(target, target)
    other = FusedAdam(others) if target == "fused" else CPUAdam(others, states=states)
    other.load_state_dict(made.state_dict())
    assert other.param_groups[0]["states"] == states
    if target == "8bit later":
        other.param_groups[0]["states"] = "8bit"
    run(made, params, 2, first=6)
    run(other, others, 2, first=6)
    kept = {name: tensor.dtype for name, tensor in other.state[others[0]].items()}
    names = ("exp_avg", "exp_avg_sq")
    plain = dict.fromkeys(names, torch.bfloat16 if target == "bfloat16" else torch.float32)
    packed = dict.fromkeys(names, torch.uint8)
    assert kept == {"step": torch.float32, **(packed if target.startswith("8bit") else plain)}
    for mine, theirs in zip(params, others, strict=True):
        assert (mine - theirs).abs().max() <= 1e-3  # half of what two steps move


def test_hooks_of_loading_see_and_change_what_is_loaded() -> None:
    params, other_params = make_params(), make_params()
    made, other = CPUAdam(params), CPUAdam(other_params)
    run(made, params, 2)
    saved = made.state_dict()

    def before(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        state = copy.deepcopy(state)
        state["state"][0]["exp_avg"].fill_(7.0)
        return state

    other.register_load_state_dict_pre_hook(before)
    other.register_load_state_dict_post_hook(lambda made: made.state[other_params[1]]["exp_avg"].fill_(5.0))
    other.load_state_dict(saved)
    loaded = [other.state[param]["exp_avg"] for param in other_params]
    assert loaded[0].eq(7.0).all()
    assert loaded[1].eq(5.0).all()
    assert torch.equal(loaded[4], saved["state"][4]["exp_avg"])


def test_loading_keeps_options_that_the_saved_groups_lack() -> None:
    params = make_params()
    groups = [{"params": params[:2]}, {"params": params[2:], "states": "8bit", "bias_correction": False}]
    made = CPUAdam(groups)
    theirs = torch.optim.AdamW([{"params": group["params"]} for group in groups], lr=0.5)
    made.load_state_dict(theirs.state_dict())
    assert [group["states"] for group in made.param_groups] == ["float32", "8bit"]
    assert [group["bias_correction"] for group in made.param_groups] == [True, False]
    assert [group["lr"] for group in made.param_groups] == [0.5, 0.5]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_skipped_step_zeroes_gradients_where_steps_do(keeps: bool) -> None:
    params = make_params()
    made = CPUAdam(params, zero_grads=True)
    set_grads(params, 0)
    made.step(grad_scale=2.0)
    for _ in range(2 if keeps else 0):
        made.step(grad_scale=2.0)  # in the second it finds the same gradients
    params[0].grad[0, 0] = float("inf")
    made.step(grad_scale=2.0)
    assert made.skipped
    assert not any(param.grad.any() for param in params)
    set_grads(params, 1)
    made.step(grad_scale=2.0)
    assert not made.skipped


def test_a_momentum_that_comes_later_begins_as_torchs() -> None:
    params, expected = make_params(), make_params()
    made, theirs = CPUSGD(params, lr=0.1, dampening=0.5), torch.optim.SGD(expected, lr=0.1, dampening=0.5)
    for optimizer, of in ((made, params), (theirs, expected)):
        run(optimizer, of, 3)
        optimizer.param_groups[0]["momentum"] = 0.9
        run(optimizer, of, 3, first=4)
    assert_close(params, expected)
