"""``FusedAdam``, ``FusedLion`` and ``FusedLamb`` as torch optimizers, on the CPU."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from op_builder.errors import OpArgumentError
from op_builder.ops import CPULamb, CPULion, FusedAdam, FusedLamb, FusedLion

OPTIONS = {"lr": 1e-2, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.05}


class AmsgradAdam(FusedAdam):
    """With another default, so that a third state is in all of these tests, and another op."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{"amsgrad": True, **kwargs})


ALL = [FusedAdam, AmsgradAdam, FusedLion, FusedLamb]


def make_model(dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.Tanh(), torch.nn.Linear(13, 3)).to(dtype)


def make_data(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 7, generator=generator).to(dtype), torch.randn(32, 3, generator=generator).to(dtype)


def loss_of(model):
    inputs, targets = make_data(next(model.parameters()).dtype)
    return ((model(inputs) - targets) ** 2).mean()


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def assert_close(one: torch.nn.Module, other: torch.nn.Module, tolerance: float = 1e-5) -> None:
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert (mine - theirs).abs().max() <= tolerance


@pytest.mark.parametrize(("adam_w_mode", "peer"), [(True, torch.optim.AdamW), (False, torch.optim.Adam)])
def test_trains_as_torch_does(adam_w_mode, peer):
    mine, theirs = make_model(), make_model()
    train(mine, FusedAdam(mine.parameters(), adam_w_mode=adam_w_mode, **OPTIONS), 50)
    train(theirs, peer(theirs.parameters(), **OPTIONS), 50)
    assert_close(mine, theirs)


def torchs_inputs():
    """What torch.optim tests its Adam and AdamW with, on CUDA devices too."""
    for info in optim_db:
        if info.optim_cls in (torch.optim.Adam, torch.optim.AdamW):
            for given in info.optim_inputs_func(device="cuda"):
                yield pytest.param(info.optim_cls, given.kwargs, id=f"{info.optim_cls.__name__}-{given.desc}")


@pytest.mark.parametrize(("peer", "kwargs"), list(torchs_inputs()))
def test_torchs_inputs_give_torchs_results_and_states_go_both_ways(peer, kwargs):
    def make(ours, model):
        given = copy.deepcopy(kwargs)
        if not ours:  # torch's can be captured on a device alone
            return peer(model.parameters(), **{**given, "capturable": False})
        defaults = {"weight_decay": 1e-2} if peer is torch.optim.AdamW else {}
        return FusedAdam(model.parameters(), adam_w_mode=peer is torch.optim.AdamW, **{**defaults, **given})

    whole = make_model()
    train(whole, make(False, whole), 10)
    for before, after in ((True, True), (True, False), (False, True)):
        model = make_model()
        first = make(before, model)
        train(model, first, 5)
        second = make(after, model)
        saved = copy.deepcopy(first.state_dict())
        for group in saved["param_groups"]:
            group["capturable"] = after and group["capturable"]
        second.load_state_dict(saved)
        train(model, second, 5)
        assert_close(model, whole)


def test_a_thousand_steps_stay_beside_torch():
    # Fed the same gradients: each step differs by a few roundings of the step's own length, at most lr; 1,000 of
    # them by 1,000 * 10 * 2^-24 * (|p| + lr), were they all to one side.
    torch.manual_seed(0)
    mine = [torch.nn.Parameter(torch.randn(n)) for n in (1, 17, 1000)]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in mine]
    optimizers = FusedAdam(mine, **OPTIONS), torch.optim.AdamW(theirs, **OPTIONS)
    for _ in range(1000):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(mine, theirs, strict=True):
        assert ((one - other).abs() <= 1e4 * 2**-24 * (other.abs() + 1e-2)).all()


@pytest.mark.parametrize(("fused", "host"), [(FusedLion, CPULion), (FusedLamb, CPULamb)])
def test_trains_to_the_bits_of_the_cpu_optimizer_of_its_formula(fused, host):
    mine, theirs = make_model(), make_model()
    options = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1}
    train(mine, fused(mine.parameters(), **options), 20)
    train(theirs, host(theirs.parameters(), **options), 20)
    assert_close(mine, theirs, 0.0)


@pytest.mark.parametrize("optimizer", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("states", ["float32", "param"])
def test_learns_with_every_type(optimizer, dtype, states):
    if optimizer is FusedLamb and dtype == torch.float16 and states == "param":
        pytest.skip("second moments below float16's smallest number become 0, and their elements take over the norm")
    model = make_model(dtype)
    made = optimizer(model.parameters(), lr=1e-2, states=states)
    before = loss_of(model).item()
    train(model, made, 30)
    assert loss_of(model).item() < 0.9 * before
    kept = {value.dtype for state in made.state.values() for name, value in state.items() if name != "step"}
    assert kept == {dtype if states == "param" else torch.float32}


def test_constructor_takes_the_seed_order_of_arguments():
    group = FusedAdam(make_model().parameters(), 1e-2, False, (0.8, 0.99), 1e-6, False, 0.1, False).param_groups[0]
    expected = {
        "lr": 1e-2,
        "bias_correction": False,
        "betas": (0.8, 0.99),
        "eps": 1e-6,
        "decoupled_weight_decay": False,
        "weight_decay": 0.1,
        "amsgrad": False,
    }
    assert {name: group[name] for name in expected} == expected


def test_groups_have_options_of_their_own_and_may_come_later():
    model, reference = make_model(), make_model()
    for each, optimizer_class in ((model, FusedAdam), (reference, torch.optim.AdamW)):
        optimizer = optimizer_class(each[0].parameters(), **OPTIONS)
        train(each, optimizer, 3)
        optimizer.add_param_group({"params": each[2].parameters(), "lr": 0.05, "weight_decay": 0.0})
        train(each, optimizer, 3)
        assert [int(optimizer.state[p]["step"]) for p in each.parameters()] == [6, 6, 3, 3]
    assert_close(model, reference)


def test_parameters_that_miss_a_gradient_at_times_count_their_own_steps():
    model, reference = make_model(), make_model()
    for each, optimizer_class in ((model, FusedAdam), (reference, torch.optim.AdamW)):
        optimizer = optimizer_class(each.parameters(), **OPTIONS)
        for step in range(6):
            optimizer.zero_grad()
            loss_of(each).backward()
            if step % 2:
                each[2].weight.grad = None
            optimizer.step()
        assert [int(optimizer.state[p]["step"]) for p in each.parameters()] == [6, 6, 3, 6]
    assert_close(model, reference)


def test_empty_and_scalar_parameters_and_gradients_in_other_layouts_are_accepted():
    params = [torch.nn.Parameter(torch.empty(0)), torch.nn.Parameter(torch.tensor(2.0))]
    params.append(torch.nn.Parameter(torch.zeros(3, 4)))
    optimizer = FusedAdam(params)
    for param in params:
        param.grad = torch.ones_like(param)
    params[2].grad = torch.randn(4, 3).t()
    optimizer.step()
    assert params[1].item() == pytest.approx(2.0 - 1e-3, rel=1e-6)
    assert torch.equal(params[2].detach().sign(), -params[2].grad.sign())


@pytest.mark.parametrize("optimizer", ALL)
def test_maximize_climbs(optimizer):
    up, down = make_model(), make_model()
    climbing = optimizer(up.parameters(), lr=1e-2, maximize=True)
    descending = optimizer(down.parameters(), lr=1e-2)
    climbing.zero_grad()
    (-loss_of(up)).backward()
    climbing.step()
    train(down, descending)
    assert_close(up, down, 0.0)


@pytest.mark.parametrize("optimizer", ALL)
def test_own_state_continues_where_it_was_saved(optimizer):
    whole, first = make_model(torch.bfloat16), make_model(torch.bfloat16)
    train(whole, optimizer(whole.parameters(), lr=1e-2), 6)
    saved = optimizer(first.parameters(), lr=1e-2)
    train(first, saved, 3)
    second = copy.deepcopy(first)
    resumed = optimizer(second.parameters())
    resumed.load_state_dict(copy.deepcopy(saved.state_dict()))
    train(second, resumed, 3)
    assert_close(second, whole, 0.0)


def torch_fused(params, **options):
    return torch.optim.AdamW(params, fused=True, **options)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (FusedAdam, torch.optim.AdamW),
        (torch.optim.AdamW, FusedAdam),
        (torch_fused, FusedAdam),
        (FusedAdam, torch_fused),
    ],
    ids=["to torch", "from torch", "from torch fused", "to torch fused"],
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


def test_loaded_steps_have_memory_of_their_own():
    model = make_model()
    shared = torch.tensor(4.0)
    state = {
        i: {"step": shared, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.ones_like(p)}
        for i, p in enumerate(model.parameters())
    }
    optimizer = FusedAdam(model.parameters())
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    train(model, optimizer)
    assert [float(each["step"]) for each in optimizer.state.values()] == [5.0] * 4
    assert shared == 4


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["copy", "pickle"])
def test_copies_are_independent_and_work(copier):
    model = make_model()
    optimizer = FusedAdam(model.parameters(), **OPTIONS)
    train(model, optimizer, 2)
    before = [param.detach().clone() for param in model.parameters()]
    twin = copier(optimizer)
    for mine in twin.param_groups[0]["params"]:
        mine.grad = torch.ones_like(mine)
    twin.step()
    assert all(torch.equal(param, then) for param, then in zip(model.parameters(), before, strict=True))
    train(model, optimizer)


def test_schedulers_and_learning_rates_in_tensors():
    mine, theirs = make_model(), make_model()
    for model, optimizer_class in ((mine, FusedAdam), (theirs, torch.optim.AdamW)):
        optimizer = optimizer_class(model.parameters(), lr=torch.tensor(1e-2), weight_decay=0.05)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        for _ in range(10):
            train(model, optimizer)
            scheduler.step()
    assert_close(mine, theirs)


def test_step_runs_the_closure_and_hooks():
    model = make_model()
    optimizer = FusedAdam(model.parameters())
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert optimizer.step(closure).item() < first.item()
    assert seen == ["before", "after"] * 2


@pytest.mark.parametrize("optimizer", ALL)
def test_a_grad_scaler_unscales_and_skips_in_the_step(optimizer):
    mine, plain = make_model(), make_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    scaled, reference = optimizer(mine.parameters(), lr=1e-2), optimizer(plain.parameters(), lr=1e-2)
    for step in range(4):
        scaled.zero_grad()
        scaler.scale(loss_of(mine)).backward()
        if step == 2:
            mine[0].weight.grad[0, 0] = math.inf
        scaler.step(scaled)
        scaler.update()
        if step != 2:
            train(plain, reference)
    assert scaler.get_scale() == 128.0
    assert [float(state["step"]) for state in scaled.state.values()] == [3.0] * 4
    assert_close(mine, plain, 1e-6 if optimizer is not FusedLion else 2e-2)


def test_a_grad_scaler_that_has_unscaled_already_is_not_followed_twice():
    mine, plain = make_model(), make_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    optimizer = FusedAdam(mine.parameters(), **OPTIONS)
    scaler.scale(loss_of(mine)).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(mine.parameters(), 1e9)
    scaler.step(optimizer)
    train(plain, FusedAdam(plain.parameters(), **OPTIONS))
    assert_close(mine, plain, 1e-6)


def test_gradients_are_not_held_from_step_to_step():
    model = make_model()
    optimizer = FusedAdam(model.parameters())
    train(model, optimizer, 3)
    grads = [param.grad for param in model.parameters()]
    optimizer.zero_grad()
    assert all(grad._use_count() <= 2 for grad in grads)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lr": -1.0}, "lr is -1.0"),
        ({"betas": (1.0, 0.9)}, r"betas\[0\] is 1.0"),
        ({"betas": 3}, "betas is 3"),
        ({"eps": math.nan}, "eps is nan"),
        ({"weight_decay": -1}, "weight_decay is -1"),
        ({"states": "8bit"}, "states is '8bit'"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(OpArgumentError, match=text) as caught:
        FusedAdam(make_model().parameters(), **options)
    assert caught.value.remedy


def test_an_option_that_is_not_supported_is_refused_at_the_step():
    model = make_model()
    optimizer = FusedAdam(model.parameters())
    optimizer.param_groups[0]["differentiable"] = True
    with pytest.raises(OpArgumentError, match="differentiable=True is not supported by FusedAdam"):
        train(model, optimizer)


@pytest.mark.parametrize(
    ("param", "text"),
    [
        (torch.zeros(3, dtype=torch.float64), "torch.float64; float32, bfloat16 or float16"),
        (torch.zeros(3, device="meta"), "device meta, for which the loaded op has no kernels"),
        (torch.zeros(4, 4).t()[:, :2], "not a contiguous dense tensor"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(param, text):
    with pytest.raises(OpArgumentError, match=text) as caught:
        FusedAdam([torch.nn.Parameter(param)])
    assert caught.value.remedy


def test_sparse_gradients_are_refused_and_nothing_is_changed():
    embedding = torch.nn.Embedding(5, 3, sparse=True)
    before = embedding.weight.detach().clone()
    optimizer = FusedAdam(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(OpArgumentError, match="sparse") as caught:
        optimizer.step()
    assert "SparseAdam" in caught.value.remedy
    assert torch.equal(embedding.weight, before)


def test_a_state_that_lacks_a_part_is_refused():
    model = make_model()
    optimizer = FusedAdam(model.parameters())
    with pytest.raises(OpArgumentError, match="lacks 'param_groups'"):
        optimizer.load_state_dict({"state": {}})
    state = {0: {"step": torch.tensor(1.0)}}
    with pytest.raises(OpArgumentError, match="lacks 'exp_avg' and 'exp_avg_sq'"):
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    train(model, optimizer)
