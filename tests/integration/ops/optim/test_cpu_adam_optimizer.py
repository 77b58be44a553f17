"""``op_builder.ops.CPUAdam`` as a torch optimizer."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

from op_builder.errors import OpArgumentError
from op_builder.ops import CPUAdam

OPTIONS = {"lr": 1e-2, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.05}


def make_model(dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.Tanh(), torch.nn.Linear(13, 3)).to(dtype)


def make_data(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(32, 7, generator=generator).to(dtype),
        torch.randn(32, 3, generator=generator).to(dtype),
    )


def train(model, optimizer, steps=1):
    inputs, targets = make_data(next(model.parameters()).dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        ((model(inputs) - targets) ** 2).mean().backward()
        optimizer.step()


def assert_close(one: torch.nn.Module, other: torch.nn.Module, tolerance: float = 1e-5) -> None:
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert (mine - theirs).abs().max() <= tolerance


@pytest.mark.parametrize(("adamw_mode", "peer"), [(True, torch.optim.AdamW), (False, torch.optim.Adam)])
def test_trains_as_torch_does(adamw_mode, peer):
    mine, theirs = make_model(), make_model()
    train(mine, CPUAdam(mine.parameters(), adamw_mode=adamw_mode, **OPTIONS), 50)
    train(theirs, peer(theirs.parameters(), **OPTIONS), 50)
    assert_close(mine, theirs)


def test_constructor_takes_the_seed_order_of_arguments():
    optimizer = CPUAdam(make_model().parameters(), 1e-2, False, (0.8, 0.99), 1e-6, 0.1, False, False, False)
    group = optimizer.param_groups[0]
    expected = {
        "lr": 1e-2,
        "bias_correction": False,
        "betas": (0.8, 0.99),
        "eps": 1e-6,
        "weight_decay": 0.1,
        "amsgrad": False,
        "decoupled_weight_decay": False,
        "states": "param",
    }
    assert {name: group[name] for name in expected} == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fp32_states", [True, False])
def test_moments_have_the_type_asked_for(dtype, fp32_states):
    param = torch.nn.Parameter(torch.ones(5, dtype=dtype))
    optimizer = CPUAdam([param], lr=0.1, eps=1e-4, fp32_optimizer_states=fp32_states)
    param.grad = torch.full_like(param, 0.5)
    optimizer.step()
    state = optimizer.state[param]
    expected = torch.float32 if fp32_states else dtype
    assert (state["exp_avg"].dtype, state["exp_avg_sq"].dtype) == (expected, expected)
    assert (param < 1).all()


def test_groups_have_options_of_their_own():
    model, reference = make_model(), make_model()

    def groups(of):
        return [{"params": of[0].parameters()}, {"params": of[2].parameters(), "lr": 0.1, "weight_decay": 0.0}]

    train(model, CPUAdam(groups(model), **OPTIONS), 5)
    train(reference, torch.optim.AdamW(groups(reference), **OPTIONS), 5)
    assert_close(model, reference)


def test_a_group_added_later_starts_at_its_own_first_step():
    model, reference = make_model(), make_model()
    for each, optimizer_class in ((model, CPUAdam), (reference, torch.optim.AdamW)):
        optimizer = optimizer_class(each[0].parameters(), **OPTIONS)
        train(each, optimizer, 3)
        optimizer.add_param_group({"params": each[2].parameters(), "lr": 0.05})
        train(each, optimizer, 3)
        assert [int(optimizer.state[p]["step"]) for p in each.parameters()] == [6, 6, 3, 3]
    assert_close(model, reference)


def test_parameters_without_gradient_are_skipped():
    model = make_model()
    before = model[2].weight.detach().clone()
    optimizer = CPUAdam(model.parameters(), **OPTIONS)
    model(make_data()[0]).sum().backward()
    model[2].weight.grad = None
    optimizer.step()
    assert torch.equal(model[2].weight, before)
    assert model[2].weight not in optimizer.state


def test_empty_and_scalar_parameters_are_accepted():
    params = [torch.nn.Parameter(torch.empty(0)), torch.nn.Parameter(torch.tensor(2.0))]
    optimizer = CPUAdam(params)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    assert params[1].item() == pytest.approx(2.0 - 1e-3, rel=1e-6)


def test_a_gradient_in_another_memory_layout_is_used_all_the_same():
    param = torch.nn.Parameter(torch.zeros(3, 4))
    optimizer = CPUAdam([param])
    param.grad = torch.randn(4, 3).t()
    optimizer.step()
    assert torch.equal(param.detach().sign(), -param.grad.sign())


def test_own_state_continues_where_it_was_saved():
    whole, first = make_model(), make_model()
    train(whole, CPUAdam(whole.parameters(), **OPTIONS), 6)
    optimizer = CPUAdam(first.parameters(), **OPTIONS)
    train(first, optimizer, 3)
    second = copy.deepcopy(first)
    resumed = CPUAdam(second.parameters())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(second, resumed, 3)
    assert_close(second, whole, 0.0)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (CPUAdam, torch.optim.AdamW),
        (torch.optim.AdamW, CPUAdam),
        (lambda params, **options: torch.optim.AdamW(params, fused=True, **options), CPUAdam),
    ],
    ids=["to torch", "from torch", "from torch fused"],
)
def test_state_goes_both_ways_with_torch(source, target):
    whole, first = make_model(), make_model()
    train(whole, torch.optim.AdamW(whole.parameters(), **OPTIONS), 10)
    optimizer = source(first.parameters(), **OPTIONS)
    train(first, optimizer, 5)
    second = copy.deepcopy(first)
    resumed = target(second.parameters())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.param_groups[0]["betas"] == OPTIONS["betas"]
    train(second, resumed, 5)
    assert_close(second, whole)


def test_plain_adam_takes_and_gives_state_too():
    whole, first = make_model(), make_model()
    train(whole, torch.optim.Adam(whole.parameters(), **OPTIONS), 6)
    optimizer = torch.optim.Adam(first.parameters(), **OPTIONS)
    train(first, optimizer, 2)
    mine = CPUAdam(first.parameters())
    mine.load_state_dict(optimizer.state_dict())
    train(first, mine, 2)
    theirs = torch.optim.Adam(first.parameters())
    theirs.load_state_dict(mine.state_dict())
    train(first, theirs, 2)
    assert_close(first, whole)


def test_float32_moments_of_16_bit_parameters_lose_no_bit_on_loading():
    param = torch.nn.Parameter(torch.ones(9, dtype=torch.bfloat16))
    optimizer = CPUAdam([param])
    param.grad = torch.rand(9).bfloat16()
    optimizer.step()
    twin = torch.nn.Parameter(param.detach().clone())
    resumed = CPUAdam([twin])
    resumed.load_state_dict(optimizer.state_dict())
    for name in ("exp_avg", "exp_avg_sq"):
        assert resumed.state[twin][name].dtype == torch.float32
        assert torch.equal(resumed.state[twin][name], optimizer.state[param][name])


def test_state_with_an_option_this_optimizer_lacks_is_refused():
    model = make_model()
    theirs = torch.optim.AdamW(model.parameters(), differentiable=True)
    mine = CPUAdam(model.parameters())
    with pytest.raises(OpArgumentError, match="differentiable=True is not supported"):
        mine.load_state_dict(theirs.state_dict())
    train(model, mine)


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["copy", "pickle"])
def test_copies_are_independent_and_work(copier):
    model = make_model()
    optimizer = CPUAdam(model.parameters(), **OPTIONS)
    train(model, optimizer, 2)
    before = [param.detach().clone() for param in model.parameters()]
    twin = copier(optimizer)
    for mine in twin.param_groups[0]["params"]:
        mine.grad = torch.ones_like(mine)
    twin.step()
    assert all(torch.equal(param, then) for param, then in zip(model.parameters(), before, strict=True))
    assert int(next(iter(twin.state.values()))["step"]) == 3
    train(model, optimizer)


def test_learning_rate_schedulers_act_on_it():
    mine, theirs = make_model(), make_model()
    for model, optimizer_class in ((mine, CPUAdam), (theirs, torch.optim.AdamW)):
        optimizer = optimizer_class(model.parameters(), **OPTIONS)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
        for _ in range(10):
            train(model, optimizer)
            scheduler.step()
    assert_close(mine, theirs)


def test_the_learning_rate_may_be_a_tensor():
    mine, same = make_model(), make_model()
    rate = torch.tensor(1e-2)
    train(mine, CPUAdam(mine.parameters(), lr=rate), 3)
    train(same, CPUAdam(same.parameters(), lr=float(rate)), 3)
    assert_close(mine, same, 0.0)


def test_step_runs_the_closure_with_gradients_and_returns_its_loss():
    model = make_model()
    optimizer = CPUAdam(model.parameters(), **OPTIONS)
    inputs, targets = make_data()

    def closure():
        optimizer.zero_grad()
        loss = ((model(inputs) - targets) ** 2).mean()
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure)) for _ in range(10)]
    assert losses[-1] < losses[0]
    assert optimizer.step() is None


def test_hooks_run_around_the_step():
    model = make_model()
    optimizer = CPUAdam(model.parameters())
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train(model, optimizer)
    assert calls == ["before", "after"]


def test_grad_scaler_unscales_and_skips_infinite_gradients():
    model, reference = make_model(), make_model()
    optimizer = CPUAdam(model.parameters(), **OPTIONS)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    inputs, targets = make_data()
    scaler.scale(((model(inputs) - targets) ** 2).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    train(reference, CPUAdam(reference.parameters(), **OPTIONS))
    assert_close(model, reference)
    before = [param.detach().clone() for param in model.parameters()]
    model[0].weight.grad.fill_(math.inf)
    scaler.scale(torch.zeros(()))
    scaler.step(optimizer)
    assert all(torch.equal(param, then) for param, then in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"amsgrad": True, "states": "8bit"}, "amsgrad=True with states='8bit' is not supported"),
        ({"amsgrad": True, "states": "bfloat16"}, "amsgrad=True with states='bfloat16' is not supported"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"lr": math.nan}, "lr is nan"),
        ({"betas": (1.0, 0.9)}, "betas\\[0\\] is 1.0"),
        ({"betas": (0.9, math.nan)}, "betas\\[1\\] is nan"),
        ({"betas": 0.9}, "betas is 0.9"),
        ({"eps": -1.0}, "eps is -1.0"),
        ({"weight_decay": math.inf}, "weight_decay is inf"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(OpArgumentError, match=text):
        CPUAdam(make_model().parameters(), **options)
    optimizer = CPUAdam([torch.nn.Parameter(torch.zeros(2))])
    with pytest.raises(OpArgumentError, match=text):
        optimizer.add_param_group({"params": make_model().parameters(), **options})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("param", "text"),
    [
        (torch.zeros(3, dtype=torch.float64), "float64"),
        (torch.zeros(3, dtype=torch.complex64), "complex64"),
        (torch.zeros(3, device="meta"), "on device meta"),
        (torch.zeros(3, 4).t(), "not a contiguous"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(param, text):
    with pytest.raises(OpArgumentError, match=text):
        CPUAdam([torch.nn.Parameter(param)])


def test_sparse_gradients_are_refused_and_nothing_is_changed():
    embedding = torch.nn.Embedding(10, 4, sparse=True)
    optimizer = CPUAdam(embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    before = embedding.weight.detach().clone()
    with pytest.raises(OpArgumentError, match="sparse"):
        optimizer.step()
    assert torch.equal(embedding.weight, before)


def test_an_option_spoiled_later_is_refused_at_the_step():
    model = make_model()
    optimizer = CPUAdam(model.parameters())
    optimizer.param_groups[0]["differentiable"] = True
    before = model[0].weight.detach().clone()
    with pytest.raises(OpArgumentError, match="differentiable=True"):
        train(model, optimizer)
    assert torch.equal(model[0].weight, before)


def two_groups():
    """Two parameters in groups of their own, trained for one step, with the next gradients in place."""
    params = [torch.nn.Parameter(torch.ones(5)), torch.nn.Parameter(torch.ones(3))]
    optimizer = CPUAdam([{"params": [param]} for param in params], lr=0.1)
    for param in params:
        param.grad = torch.full_like(param, 0.5)
    optimizer.step()
    return params, optimizer


def spoil_lr(_params, optimizer):
    optimizer.param_groups[1]["lr"] = math.nan


def spoil_gradient(params, _optimizer):
    params[1].grad = params[1].grad.to_sparse()


def spoil_step(value):
    def spoil(_params, optimizer):
        saved = optimizer.state_dict()
        saved["state"][1]["step"] = value
        optimizer.load_state_dict(saved)

    return spoil


def lose_moment(params, optimizer):
    del optimizer.state[params[1]]["exp_avg"]


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (spoil_lr, "lr is nan"),
        (spoil_gradient, "parameter 0 is sparse"),
        (spoil_step(torch.tensor(math.nan)), r"has step tensor\(nan\)"),
        (spoil_step(torch.tensor(1.5)), r"has step tensor\(1.5000\)"),
        (spoil_step(torch.ones(2)), "has step tensor"),
        (spoil_step(-1), "has step -1"),
        (spoil_step(None), "has step None"),
        (lose_moment, "lacks 'exp_avg'"),
    ],
    ids=["lr", "sparse", "nan step", "fraction", "two steps", "negative", "none", "no moment"],
)
def test_a_fault_in_a_later_group_changes_nothing(spoil, text):
    params, optimizer = two_groups()
    spoil(params, optimizer)

    def everything():
        states = [optimizer.state[param] for param in params]
        held = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
        return [tensor.detach().clone().view(-1).view(torch.int32) for tensor in (*params, *held)]

    before = everything()
    with pytest.raises(OpArgumentError, match=text):
        optimizer.step()
    assert all(torch.equal(now, then) for now, then in zip(everything(), before, strict=True))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({}, "lacks 'state' and 'param_groups'"),
        ({"param_groups": []}, "The state lacks 'state'"),
        ({"state": {}, "param_groups": [{}]}, "Group 0 of the state lacks 'params'"),
    ],
)
def test_a_state_that_lacks_a_part_is_refused(state, text):
    optimizer = CPUAdam(make_model().parameters())
    with pytest.raises(OpArgumentError, match=text):
        optimizer.load_state_dict(state)
