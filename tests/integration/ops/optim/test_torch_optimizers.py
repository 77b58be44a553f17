"""What all optimizers, on host tensors and fused, do as optimizers of torch."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from op_builder.errors import OpArgumentError
from op_builder.ops import CPUSGD, CPUAdagrad, CPUAdam, CPULamb, FusedAdam
from tests.support.optimizer_cases import (
    FUSED,
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

every_optimizer = pytest.mark.parametrize("optimizer", [*HOST, *FUSED])
every_adam = pytest.mark.parametrize("optimizer", [CPUAdam, FusedAdam])

#: Ours, and torch's of the same formula with what makes it so.
PAIRS: dict[str, Callable[..., Any]] = {
    "Adam": lambda params, **kwargs: CPUAdam(params, adamw_mode=False, **kwargs),
    "AdamW": lambda params, **kwargs: CPUAdam(params, **{"weight_decay": 1e-2, **kwargs}),
    "Adagrad": CPUAdagrad,
    "SGD": CPUSGD,
}
FUSED_PAIRS: dict[str, Callable[..., Any]] = {
    "Adam": lambda params, **kwargs: FusedAdam(params, adam_w_mode=False, **kwargs),
    "AdamW": lambda params, **kwargs: FusedAdam(params, **{"weight_decay": 1e-2, **kwargs}),
}


# torch.optim's own inputs ---------------------------------------------------------------------


def torchs_inputs() -> list[Any]:
    return [
        pytest.param(info.optim_cls, pairs[name], given.kwargs, id=f"{name}-{given.desc}-{device}")
        for pairs, device in ((PAIRS, "cpu"), (FUSED_PAIRS, "cuda"))
        for info in optim_db
        if (name := info.optim_cls.__name__) in pairs
        for given in info.optim_inputs_func(device=device)
        if not given.kwargs.get("amsgrad")
    ]


@pytest.mark.parametrize(("theirs", "ours", "kwargs"), torchs_inputs())
def test_torchs_inputs_give_torchs_results_and_states_go_both_ways(
    theirs: Callable[..., Any], ours: Callable[..., Any], kwargs: dict[str, Any]
) -> None:
    def make(made: Callable[..., Any], params: Params) -> Any:
        given = copy.deepcopy(kwargs)
        if made is theirs and "capturable" in given:  # torch's can be captured on a device alone
            given["capturable"] = False
        return made(params, **given)

    whole = make_params()
    run(make(theirs, whole), whole, 8)
    for source, target in ((ours, ours), (ours, theirs), (theirs, ours)):
        params = make_params()
        before = make(source, params)
        run(before, params, 4)
        saved = pickle.loads(pickle.dumps(before.state_dict()))
        for group in saved["param_groups"]:
            group["capturable"] = target is ours and group.get("capturable", False)
        after = make(target, params)
        after.load_state_dict(saved)
        run(after, params, 4, first=5)
        assert_close(params, whole, 1e-5)


@every_adam
def test_a_compiled_training_step_leaves_the_graph_at_the_optimizer_alone(optimizer: Callable[..., Any]) -> None:
    models = [torch.nn.Linear(6, 3) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    made, other = (optimizer(model.parameters(), lr=0.1) for model in models)
    x = torch.randn(4, 6)

    def train(model: torch.nn.Module, its: Any) -> None:
        its.zero_grad()
        model(x).square().mean().backward()
        its.step()

    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters
    counted.clear()
    compiled = torch.compile(train, backend="aot_eager")
    for _ in range(3):
        compiled(models[0], made)
        train(models[1], other)
    assert counted["stats"]["calls_captured"] > 0
    called = {found for reason in counted["graph_break"] for found in re.findall(r"<function \w+\.(\w+) at", reason)}
    assert called == {"step", "zero_grad"}
    assert_equal([*models[0].parameters()], [*models[1].parameters()])


# What every optimizer of torch does -----------------------------------------------------------


@pytest.mark.parametrize("optimizer", [CPUAdam, FusedAdam])
def test_amsgrad_is_refused_wherever_it_comes_from(optimizer: type[Any]) -> None:
    made = optimizer(make_params())
    saved = torch.optim.AdamW(make_params(), amsgrad=True).state_dict()
    for call in (
        lambda: optimizer(make_params(), amsgrad=True),
        lambda: made.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "amsgrad": True}),
        lambda: made.load_state_dict(saved),
        lambda: made.param_groups[0].update(amsgrad=True) or made.step(),
    ):
        with pytest.raises(OpArgumentError, match="amsgrad") as caught:
            call()
        assert "torch.optim.AdamW" in caught.value.remedy


def test_constructors_take_the_interfaces_order_of_arguments() -> None:
    expected = {"lr": 1e-2, "bias_correction": False, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}
    expected |= {"amsgrad": False, "decoupled_weight_decay": False}
    on_host = CPUAdam(make_params(), 1e-2, False, (0.8, 0.99), 1e-6, 0.1, False, False, False).param_groups[0]
    assert {**on_host, **expected, "states": "param"} == on_host
    fused = FusedAdam(make_params(), 1e-2, False, (0.8, 0.99), 1e-6, False, 0.1, False).param_groups[0]
    assert {**fused, **expected} == fused


@every_optimizer
def test_groups_have_options_of_their_own_and_may_come_later(optimizer: type[Any]) -> None:
    params, expected = make_params(), make_params()
    together = optimizer([{"params": params[:2]}, {"params": params[2:4], "lr": 0.5}])
    run(together, params[:4], 2)
    together.add_param_group({"params": params[4:], "weight_decay": 0.3})
    run(together, params, 3, first=3)
    for group, first, options in (
        (expected[:2], 1, {}),
        (expected[2:4], 1, {"lr": 0.5}),
        (expected[4:], 3, {"weight_decay": 0.3}),
    ):
        alone = optimizer(group, **options)
        for seed in range(first, 6):
            set_grads(expected if seed > 2 else expected[:4], seed)
            alone.step()
    assert_equal(params, expected)


@every_optimizer
def test_hooks_and_closures_run_and_the_rate_may_be_a_tensor(optimizer: type[Any]) -> None:
    params, expected = make_params(), make_params()
    made = optimizer(params, lr=torch.tensor(0.01))
    called: list[str] = []
    made.register_step_pre_hook(lambda *_: called.append("before"))
    made.register_step_post_hook(lambda *_: called.append("after"))

    def closure() -> torch.Tensor:
        made.zero_grad()
        loss = torch.stack([param.square().sum() for param in params]).sum()
        loss.backward()
        return loss

    assert made.step(closure).item() > made.step(closure).item()
    assert made.step() is None  # has the gradients of the second step
    plain = optimizer(expected, lr=float(torch.tensor(0.01)))
    for step in range(3):
        for param in expected if step < 2 else ():
            param.grad = 2 * param.detach()
        plain.step()
    assert_equal(params, expected)
    assert called == ["before", "after"] * 3


@every_optimizer
def test_pickled_and_copied_optimizers_continue_independently(optimizer: type[Any]) -> None:
    params = make_params()
    made = optimizer(params)
    run(made, params, 2)
    again = pickle.loads(pickle.dumps((params, made)))
    copied = copy.deepcopy((params, made))
    before = contents(made, params)
    for other_params, other in (again, copied):
        run(other, other_params, 2, first=3)
    assert_equal(contents(made, params), before)
    run(made, params, 2, first=3)
    assert_equal(again[0], params)
    assert_equal(copied[0], params)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("optimizer", "states"),
    [*itertools.product([*HOST, *FUSED], ["float32", "param"]), *itertools.product(PACKING, ["bfloat16", "8bit"])],
)
def test_states_have_the_requested_type_and_loading_loses_no_bit(
    optimizer: type[Any], dtype: torch.dtype, states: str
) -> None:
    params = make_params(dtype)
    made = optimizer(params, states=states)
    run(made, params, 3)
    moments = [x for state in made.state.values() for name, x in state.items() if name != "step"]
    kept = {moment.dtype for moment in moments}
    wanted = {"param": dtype, "bfloat16": torch.bfloat16, "8bit": torch.uint8}
    assert kept <= {wanted.get(states, torch.float32)}
    assert kept or optimizer is CPUSGD
    twins = copy.deepcopy(params)
    loaded = optimizer(twins, states=states)
    loaded.load_state_dict(copy.deepcopy(made.state_dict()))
    for step in (4, 5):  # loaded 8-bit states have the same values, perhaps by other codes until the next step
        run(made, params, 1, first=step)
        run(loaded, twins, 1, first=step)
        for one, other in zip(contents(made, params), contents(loaded, twins), strict=True):
            assert torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))


@every_optimizer
def test_a_sparse_gradient_is_refused(optimizer: type[Any]) -> None:
    embedding = torch.nn.Embedding(5, 3, sparse=True)
    before = embedding.weight.detach().clone()
    made = optimizer(embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(OpArgumentError, match="is sparse") as caught:
        made.step()
    assert "Sparse" in caught.value.remedy
    assert torch.equal(embedding.weight, before)
    run(made, [embedding.weight], 1)


@pytest.mark.parametrize("optimizer", FUSED)  # the others: test_all_options_at_once_do_what_each_does_alone
def test_maximize_climbs(optimizer: type[Any]) -> None:
    params, expected = make_params(), make_params()
    made, other = optimizer(params, maximize=True), optimizer(expected)
    for seed in range(3):
        set_grads(params, seed)
        set_grads(expected, seed, scale=-1.0)
        made.step()
        other.step()
    assert_equal(params, expected)


@every_optimizer
def test_parameters_without_a_gradient_are_left_alone(optimizer: type[Any]) -> None:
    params, expected = make_params(), make_params()
    made, other = optimizer(params), optimizer([param for i, param in enumerate(expected) if i != 1])
    before = params[1].detach().clone()
    for seed in range(3):
        set_grads(params, seed)
        set_grads(expected, seed)
        params[1].grad = None
        made.step()
        other.step()
    assert torch.equal(params[1], before)
    assert_equal([*params[:1], *params[2:]], [*expected[:1], *expected[2:]])
    set_grads(params, 9)  # the one without joins later, with steps of its own
    made.step()
    assert not torch.equal(params[1], before)
    if optimizer is not CPUSGD:  # counts the steps with a momentum
        assert made.state[params[1]]["step"].item() == 1
        assert made.state[params[0]]["step"].item() == 4


@every_optimizer
def test_torchs_grad_scaler_drives_it(optimizer: type[Any]) -> None:
    """And unscales the gradients itself: Lightning refuses to clip those of an optimizer with the attribute."""
    params, expected = make_params(), make_params()
    made, other = optimizer(params), optimizer(expected)
    assert not getattr(made, "_step_supports_amp_scaling", False)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    scaler.scale(torch.zeros(()))  # makes its tensors
    for seed in range(4):
        set_grads(params, seed, scale=scaler.get_scale())
        set_grads(expected, seed)
        if seed == 1:
            params[1].grad[0] = math.inf
        scaler.step(made)
        scaler.update()
        if seed != 1:
            other.step()
    assert scaler.get_scale() == 128.0
    assert_equal(contents(made, params), contents(other, expected))


@every_adam
def test_empty_and_scalar_parameters_and_gradients_in_other_layouts_are_accepted(optimizer: type[Any]) -> None:
    params = [torch.nn.Parameter(torch.empty(0)), torch.nn.Parameter(torch.tensor(2.0))]
    params.append(torch.nn.Parameter(torch.zeros(3, 4)))
    made = optimizer(params, weight_decay=0.0)
    for param in params:
        param.grad = torch.ones_like(param)
    params[2].grad = torch.randn(4, 3).t()
    made.step()
    assert params[1].item() == pytest.approx(2.0 - 1e-3, rel=1e-6)
    assert torch.equal(params[2].detach().sign(), -params[2].grad.sign())


@every_adam
def test_loaded_steps_have_memory_of_their_own(optimizer: type[Any]) -> None:
    params = make_params()
    shared = torch.tensor(4.0)
    state = {
        i: {"step": shared, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.ones_like(p)}
        for i, p in enumerate(params)
    }
    made = optimizer(params)
    made.load_state_dict({"state": state, "param_groups": made.state_dict()["param_groups"]})
    run(made, params, 1)
    assert [float(made.state[param]["step"]) for param in params] == [5.0] * 5
    assert shared == 4


# Bad input ------------------------------------------------------------------------------------


OF_ADAM = [
    ({"lr": -1.0}, "lr is -1.0"),
    ({"lr": math.nan}, "lr is nan"),
    ({"lr": "1e-3"}, "lr is '1e-3', which is not a number"),
    ({"lr": numpy.array("1e-3")}, "not a number"),
    ({"betas": ("0.9", 0.99)}, "betas\\[0\\] is '0.9', which is not a number"),
    ({"weight_decay": b"1"}, "not a number"),
    ({"betas": (1.0, 0.9)}, "betas\\[0\\] is 1.0"),
    ({"betas": (0.9, math.nan)}, "betas\\[1\\] is nan"),
    ({"betas": 0.9}, "betas is 0.9"),
    ({"eps": -1.0}, "eps is -1.0"),
    ({"weight_decay": math.inf}, "weight_decay is inf"),
    ({"states": "4bit"}, "states is '4bit'; .* supports float32"),
]
OF_OTHERS = [
    (FusedAdam, {"states": "8bit"}, "states is '8bit'"),
    (FusedAdam, {"lr": torch.ones((), device="meta")}, "lr is a tensor"),
    (CPULamb, {"states": "8bit"}, "states is '8bit'"),
    (CPUAdagrad, {"lr_decay": -0.5}, "lr_decay is -0.5"),
    (CPUAdagrad, {"initial_accumulator_value": -0.5}, "initial_accumulator_value is -0.5"),
    (CPUSGD, {"momentum": -0.5}, "momentum is -0.5"),
    (CPUSGD, {"nesterov": True}, "nesterov=True was given with"),
]


@pytest.mark.parametrize(
    ("optimizer", "options", "text"),
    [*((optimizer, *row) for optimizer in (CPUAdam, FusedAdam) for row in OF_ADAM), *OF_OTHERS],
)
def test_bad_options_are_refused(optimizer: type[Any], options: dict[str, Any], text: str) -> None:
    made = optimizer([torch.nn.Parameter(torch.zeros(2))])
    for call in (
        lambda: optimizer(make_params(), **options),
        lambda: made.add_param_group({"params": make_params(), **options}),
    ):
        with pytest.raises(OpArgumentError, match=text) as caught:
            call()
        assert caught.value.remedy
    made.step()
    made.param_groups[0].update(options)
    with pytest.raises(OpArgumentError, match=text):
        made.step()


def test_options_that_change_in_place_are_checked_in_every_step() -> None:
    lr, beta = torch.tensor(1e-3), torch.tensor(0.9)
    made = CPUAdam(make_params(), lr=lr, betas=(beta, 0.99))
    made.step()
    beta.fill_(1.0)
    with pytest.raises(OpArgumentError, match=r"betas\[0\]"):
        made.step()
    beta.fill_(0.5)
    lr.fill_(math.nan)
    with pytest.raises(OpArgumentError, match="lr is nan"):
        made.step()


@every_adam
@pytest.mark.parametrize(
    ("param", "text"),
    [
        (torch.zeros(3, dtype=torch.float64), "float64"),
        (torch.zeros(3, dtype=torch.complex64), "complex64.*\n.*view_as_real"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), r"\(nested\) is not a contiguous dense tensor"),
        (torch.zeros(3, device="meta"), "no memory yet"),
        (torch.nn.LazyLinear(2).weight, "no memory yet"),
        (torch.zeros(3, 4).t(), "not a contiguous"),
        (torch._neg_view(torch.ones(5)), r"Parameter 0 of group \d \(shape \(5,\)\) is a lazy negation"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(optimizer: type[Any], param: torch.Tensor, text: str) -> None:
    made = optimizer(make_params())
    given = param if isinstance(param, torch.nn.Parameter) else torch.nn.Parameter(param)
    for call in (lambda: optimizer([given]), lambda: made.add_param_group({"params": [given]})):
        with pytest.raises(OpArgumentError, match=text) as caught:
            call()
        assert caught.value.remedy
    assert len(made.param_groups) == 1


def with_step(value: Any) -> Callable[[torch.nn.Parameter, Any], None]:
    return lambda param, made: made.state[param].update(step=value)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda _, made: made.param_groups[1].update(lr=math.nan), "lr is nan"),
        (lambda _, made: made.param_groups[1].update(differentiable=True), "differentiable=True is not supp.* CPUAdam"),
        (lambda param, _: setattr(param, "grad", param.grad.to_sparse()), r"parameter 0 of group 1 \(.*\) has layout"),
        (with_step(torch.tensor(math.nan)), r"has step tensor\(nan\)"),
        (with_step(torch.tensor(1.5)), r"has step tensor\(1.5000\)"),
        (with_step(torch.ones(2)), "has step tensor"),
        (with_step(-1), "has step -1"),
        (with_step(None), "has step None"),
        (lambda param, made: made.state[param].pop("exp_avg"), "lacks 'exp_avg'"),
    ],
    ids=["lr", "option", "sparse", "nan step", "fraction", "two steps", "negative", "none", "no moment"],
)
def test_a_fault_in_a_later_group_changes_nothing(spoil: Callable[[torch.nn.Parameter, Any], Any], text: str) -> None:
    params = make_params()[:2]
    made = CPUAdam([{"params": [param]} for param in params], lr=0.1)
    run(made, params, 1)
    set_grads(params, 2)
    spoil(params[1], made)
    before = contents(made, params)
    with pytest.raises(OpArgumentError, match=text):
        made.step()
    for one, other in zip(contents(made, params), before, strict=True):
        assert torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))


@every_adam
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda saved: saved.clear(), "The state lacks 'state' and 'param_groups'"),
        (lambda saved: saved.pop("state"), "The state lacks 'state'"),
        (lambda saved: saved["param_groups"][0].pop("params"), "Group 0 of the state lacks 'params'"),
        (lambda saved: saved["param_groups"][0].update(differentiable=True), "differentiable=True is not supported by"),
        (lambda saved: saved["state"][0].pop("exp_avg"), "lacks 'exp_avg'"),
        *(
            (lambda saved, step=step: saved["state"][0].update(step=step), r"parameter 0 of group 0 \(.*\) has step")
            for step in (None, "three", [1.0])
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused_on_loading(optimizer: type[Any], change: Any, text: str) -> None:
    params = make_params()
    made = optimizer(params)
    run(made, params)
    before, saved = contents(made, params), copy.deepcopy(made.state_dict())
    change(saved)
    with pytest.raises(OpArgumentError, match=text):
        made.load_state_dict(saved)
    assert_equal(contents(made, params), before)
    run(made, params, 1)
