"""Optimizers in programs with other defaults, tensor modes, checkpoints, frameworks and threads."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from op_builder.errors import AccelError, OpArgumentError
from op_builder.ops import CPUAdam, FusedAdam
from tests.support.optimizer_cases import (
    FUSED,
    HOST,
    PACKING,
    Params,
    assert_equal,
    contents,
    make_params,
    run,
    set_grads,
)

#: Every optimizer in every storage that changes how its states are made.
CASES: list[Callable[..., Any]] = [
    *HOST,
    *FUSED,
    *(functools.partial(optimizer, states="param") for optimizer in (CPUAdam, FusedAdam)),
    *(functools.partial(optimizer, states=states) for optimizer in PACKING for states in ("bfloat16", "8bit")),
]


def name_of(case: Any) -> str:
    return f"{case.func.__name__}-{case.keywords['states']}" if isinstance(case, functools.partial) else case.__name__


every_case = pytest.mark.parametrize("make", CASES, ids=name_of)
every_optimizer = pytest.mark.parametrize("optimizer", [*HOST, *FUSED])


def train(make: Callable[..., Any], params: Params) -> list[torch.Tensor]:
    """Steps, and what allocates memory: loading with numbers as steps, conversion of states, norms."""
    made = make(params)

    def step() -> None:
        for param in params:
            param.grad = torch.full(param.shape, 0.5, dtype=torch.float32, device="cpu")
        made.step()

    for _ in range(3):
        step()
    saved = copy.deepcopy(made.state_dict())
    for entry in saved["state"].values():
        entry["step"] = float(entry["step"])
    made.load_state_dict(saved)
    made.max_grad_norm = 0.1
    if made.param_groups[0]["states"] == "8bit":
        made.param_groups[0]["states"] = "float32"  # decodes the states
    step()
    return contents(made, params)


@every_case
@pytest.mark.parametrize(("dtype", "device"), [(torch.bfloat16, "cpu"), (torch.float32, "meta")], ids=str)
def test_default_type_and_device_change_nothing(make: Callable[..., Any], dtype: torch.dtype, device: str) -> None:
    expected, params = train(make, make_params()), make_params()
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            found = train(make, params)
    finally:
        torch.set_default_dtype(before)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@every_case
def test_a_state_of_another_shape_is_refused_on_loading_and_at_the_step(make: Callable[..., Any]) -> None:
    """Of two parameters with as many elements."""
    params = [torch.nn.Parameter(torch.ones(4, 6)), torch.nn.Parameter(torch.ones(3, 8))]
    made = make(params)
    run(made, params, 2)
    before = contents(made, params)
    text = r"state of parameter 0 of group 0 \(shape \(4, 6\)\) has \S+ of shape \(3, 8\); shape \(4, 6\) is required"
    saved = made.state_dict()
    with pytest.raises(OpArgumentError, match=text) as caught:
        made.load_state_dict({**saved, "state": {0: saved["state"][1], 1: saved["state"][0]}})
    assert "same order" in caught.value.remedy
    assert "resized" in caught.value.remedy
    assert_equal(contents(made, params), before)
    if made.param_groups[0]["states"] == "8bit":
        return  # in memory they have a length only
    made.state[params[0]], made.state[params[1]] = made.state[params[1]], made.state[params[0]]
    set_grads(params, 3)
    with pytest.raises(OpArgumentError, match=text):
        made.step()
    assert_equal(params, before[:2])


@pytest.mark.parametrize("states", ["8bit", "float32"])
def test_8bit_states_of_another_length_are_refused(states: str) -> None:
    params = [torch.nn.Parameter(torch.ones(300))]
    made = CPUAdam(params, states="8bit")
    run(made, params, 1)
    loading, saved = CPUAdam(params, states=states), made.state_dict()
    saved["state"][0]["exp_avg"] = made.state[params[0]]["exp_avg"][:-1]
    with pytest.raises(OpArgumentError, match="exp_avg of shape"):
        loading.load_state_dict(saved)


@pytest.mark.parametrize("steps", [0, 3])
def test_a_gradient_that_is_a_lazy_negation_is_read_and_refused_where_it_is_zeroed(steps: int) -> None:
    params, expected = make_params(), make_params()
    groups = [{"params": params[:2]}, {"params": params[2:]}]
    made, other = CPUAdam(groups, zero_grads=True), CPUAdam(expected)
    run(made, params, steps)
    run(other, expected, steps)
    before = [param.detach().clone() for param in params]
    set_grads(params, 9)
    set_grads(expected, 9)
    params[4].grad = torch._neg_view(-params[4].grad)
    for _ in range(2):
        with pytest.raises(OpArgumentError, match=r"group 1 .* lazy negation") as caught:
            made.step()
        assert "p.grad" in caught.value.remedy
        assert_equal(params, before)
    made.zero_grads = False
    made.step()
    other.step()
    assert_equal(params, expected)


@every_optimizer
@pytest.mark.parametrize("steps", [0, 2])
def test_a_step_in_fake_tensor_mode_says_what_cannot_be_done(optimizer: type[Any], steps: int) -> None:
    params = make_params()
    made = optimizer(params)
    run(made, params, steps)
    set_grads(params, 5)
    before = contents(made, params)
    with FakeTensorMode(), pytest.raises(AccelError, match="FakeTensorMode") as caught:
        made.step()
    assert "torch.optim" in caught.value.remedy
    if optimizer in HOST:
        with FakeTensorMode(), pytest.raises(AccelError, match="FakeTensorMode"):
            made.update_one(params[0], 0, 0)
    assert_equal(contents(made, params), before)
    made.step()


def convert_state(entry: dict[str, Any]) -> None:
    name = next(name for name in entry if name != "step")
    entry[name] = entry[name].double()


@every_optimizer
@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda param, _: setattr(param, "data", param.data.t().contiguous().t()), "not a contiguous dense tensor"),
        (lambda param, _: setattr(param, "data", param.data.double()), "of type torch.float64"),
        (lambda param, _: param.data.untyped_storage().resize_(0), "it was freed or shrunk"),
        (lambda _, entry: convert_state(entry), "is of type Double"),
    ],
)
def test_an_error_of_a_step_names_group_position_and_shape(optimizer: type[Any], spoil: Any, text: str) -> None:
    params = [torch.nn.Parameter(torch.ones(4, 6)) for _ in range(3)]
    made = optimizer([{"params": params[:1]}, {"params": params[1:]}])
    run(made, params[:1], 1)  # a parameter without a gradient must not shift the positions
    run(made, [params[0], params[2]], 1)
    set_grads(params[:1], 2)
    spoil(params[2], made.state[params[2]])
    params[2].grad = torch.ones_like(params[2])
    with pytest.raises(OpArgumentError, match="1 of group 1") as caught:
        made.step()
    assert text in str(caught.value)
    assert "x.contiguous()" not in caught.value.remedy


def test_lightning_clips_gradients_in_bfloat16(tmp_path: Any) -> None:
    lightning = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.made: CPUAdam | None = None

        def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch).square().mean()
            return loss

        def configure_optimizers(self) -> CPUAdam:
            self.made = CPUAdam(self.parameters(), lr=0.1)
            return self.made

    model = Model()
    before = model.layer.weight.detach().clone()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        precision="bf16-mixed",
        gradient_clip_val=0.1,
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4))
    assert not torch.equal(model.layer.weight, before)


def call_all(calls: list[Callable[[], Any]], *_: object) -> None:
    """A hook that calls each function once, in which it is called again."""
    while calls:
        calls.pop()()


@every_optimizer
def test_threads_may_save_and_load_at_once_and_hooks_may_load(optimizer: type[Any]) -> None:
    params = make_params()
    made = optimizer(params)
    run(made, params, 2)
    saved = copy.deepcopy(made.state_dict())
    calls = [made.state_dict, lambda: made.load_state_dict(saved)]
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(call) for _ in range(200) for call in calls]:
            done.result()
    for register in (made.register_load_state_dict_pre_hook, made.register_load_state_dict_post_hook):
        calls_inside: list[Callable[[], Any]] = [lambda: made.load_state_dict(saved), made.state_dict]
        register(functools.partial(call_all, calls_inside))
        made.load_state_dict(saved)
        assert calls_inside == []
    calls_inside = [made.state_dict, lambda: made.load_state_dict(saved)]
    made.register_state_dict_post_hook(functools.partial(call_all, calls_inside))
    made.load_state_dict(made.state_dict())
    assert calls_inside == []
    run(made, params, 1)


@every_optimizer
def test_a_state_that_cannot_be_loaded_changes_nothing(optimizer: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    params = make_params()
    made = optimizer(params)
    run(made, params, 2)
    saved = copy.deepcopy(made.state_dict())
    run(made, params, 1)
    before = contents(made, params)
    loaded = made._loaded

    def fail_at_the_last(entry: Any, param: Any, group: Any) -> Any:
        if param is params[-1]:
            raise MemoryError
        return loaded(entry, param, group)

    monkeypatch.setattr(made, "_loaded", fail_at_the_last)
    with pytest.raises(MemoryError):
        made.load_state_dict(saved)
    assert_equal(contents(made, params), before)


@every_optimizer
def test_a_gradient_that_is_a_fake_tensor_is_refused(optimizer: type[Any]) -> None:
    param = torch.nn.Parameter(torch.ones(3))
    made = optimizer([param])
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.ones(3)
    param.grad = fake
    with pytest.raises(OpArgumentError, match="fake"):
        made.step()
