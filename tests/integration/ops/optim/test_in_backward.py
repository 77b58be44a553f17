"""``in_backward=True``: each parameter is updated as soon as its gradient is complete, and the gradient is freed."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

from op_builder.errors import OpArgumentError
from op_builder.ops import CPUAdam
from op_builder.ops.optim.host_optimizer import HostOptimizer
from tests.support.optimizer_cases import HOST, assert_equal, contents


def make_model(dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(13, 70), torch.nn.Tanh(), torch.nn.LayerNorm(70), torch.nn.Linear(70, 5)]
    return torch.nn.Sequential(*layers).to(dtype)


def make_groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    params = list(model.parameters())
    half = len(params) // 2
    return [{"params": params[:half]}, {"params": params[half:], "lr": 3e-3, "maximize": True}]


def backward(model: torch.nn.Module, seed: int) -> None:
    param = next(model.parameters())
    generator = torch.Generator().manual_seed(seed)
    model(torch.randn(4, 13, generator=generator).to(param.dtype)).square().mean().backward()


def train(optimizer: HostOptimizer, model: torch.nn.Module, first: int = 0) -> None:
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for seed in range(first, first + 4):
        backward(model, seed)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


class Checkpoints(torch.nn.Sequential):
    """Layers in checkpoints that need no second pass of autograd."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for layer in self:
            batch = torch.utils.checkpoint.checkpoint(layer, batch, use_reentrant=False).tanh()
        return batch


def tied() -> torch.nn.Module:
    torch.manual_seed(0)
    return Checkpoints(*[torch.nn.Linear(13, 13)] * 2)


def compiled() -> Any:
    return torch.compile(make_model(), backend="aot_eager")


@pytest.mark.parametrize(
    ("optimizer", "make"),
    [
        *itertools.product(HOST, (make_model, lambda: make_model(torch.bfloat16), tied)),
        (functools.partial(CPUAdam, states="8bit"), make_model),
        (CPUAdam, compiled),
    ],
)
def test_the_result_is_that_of_step(optimizer: Callable[..., Any], make: Callable[[], torch.nn.Module]) -> None:
    results = []
    for in_backward in (True, False):
        model = make()
        params = list(model.parameters())
        copies = [torch.zeros_like(param, dtype=torch.bfloat16) for param in params]
        made = optimizer(make_groups(model), in_backward=in_backward)
        made.write_copies(dict(zip(params, copies, strict=True)))
        train(made, model)
        assert_equal([param.detach().bfloat16() for param in params], copies)
        results.append(contents(made, params))
    assert_equal(*results)


def test_one_gradient_exists_at_a_time() -> None:
    model = make_model()
    params = list(model.parameters())
    optimizer = CPUAdam(params, in_backward=True)
    counts: list[int] = []
    for param in params:
        param.register_hook(lambda _: counts.append(sum(other.grad is not None for other in params)))
    backward(model, 0)
    assert counts == [0] * len(params)
    assert all(param.grad is None for param in params)
    assert [int(optimizer.state[param]["step"]) for param in params] == [1] * len(params)


def test_an_optimizer_that_was_dropped_is_freed_and_backward_reports_it() -> None:
    model = make_model()
    made = CPUAdam(model.parameters(), in_backward=True)
    backward(model, 0)
    ref = weakref.ref(made)
    del made
    gc.collect()
    assert ref() is None
    with pytest.raises(OpArgumentError, match="parameter 5") as caught:
        backward(model, 1)
    assert "Keep a reference to it" in caught.value.remedy
    again = CPUAdam(model.parameters(), in_backward=True)
    backward(model, 1)
    assert len(again.state) == len(list(model.parameters()))


def test_a_parameter_that_had_no_hook_is_updated_by_step() -> None:
    model = make_model()
    frozen = next(model.parameters()).requires_grad_(False)
    optimizer = CPUAdam(model.parameters(), in_backward=True)
    backward(model, 0)
    frozen.requires_grad_(True)
    backward(model, 1)
    assert frozen.grad is not None
    assert frozen not in optimizer.state
    optimizer.step()
    assert int(optimizer.state[frozen]["step"]) == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copy_updates_its_own_model(copied: Any) -> None:
    model = make_model()
    optimizer = CPUAdam(make_groups(model), in_backward=True)
    train(optimizer, model)
    other_model, other = copied((model, optimizer))
    for one, of_one in ((model, optimizer), (other_model, other)):
        train(of_one, one, first=4)
    assert_equal(contents(optimizer, list(model.parameters())), contents(other, list(other_model.parameters())))


@pytest.mark.parametrize("change", [list.reverse, list.clear], ids=["reordered", "removed"])
def test_a_parameter_that_left_its_place_in_the_groups_is_not_updated(change: Callable[[Any], None]) -> None:
    model = make_model()
    optimizer = CPUAdam(make_groups(model), in_backward=True)
    change(optimizer.param_groups)
    with pytest.raises(OpArgumentError, match="no longer at its place") as caught:
        backward(model, 0)
    assert "remove_hooks()" in caught.value.remedy
    assert not optimizer.state


def test_half_the_bytes_of_gradients() -> None:
    """torch rounds each gradient to the type of ``grad_dtype``; the update is that with the rounded gradient."""
    models = make_model(), make_model()
    optimizers = [CPUAdam(model.parameters()) for model in models]
    for param in models[0].parameters():
        param.grad_dtype = torch.bfloat16
    for seed in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            backward(model, seed)
            for param in model.parameters():
                assert param.grad.dtype == (torch.bfloat16 if model is models[0] else torch.float32)
                param.grad = param.grad if model is models[0] else param.grad.bfloat16().float()
            optimizer.step()
            optimizer.zero_grad()
    assert_equal(*(list(model.parameters()) for model in models))


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), [("max_grad_norm", 1.0), ("zero_grads", True)])
def test_an_option_that_needs_all_gradients_is_refused_also_later(name: str, value: Any) -> None:
    model = make_model()
    with pytest.raises(OpArgumentError, match=f"{name} needs all"):
        CPUAdam(model.parameters(), in_backward=True, **{name: value})
    optimizer = CPUAdam(model.parameters(), in_backward=True)
    setattr(optimizer, name, value)
    with pytest.raises(OpArgumentError, match=f"but {name} needs all"):
        backward(model, 0)
    with pytest.raises(OpArgumentError, match="without grad_scale"):
        optimizer.step(grad_scale=2.0)


def test_parameters_that_share_memory_are_refused() -> None:
    param = torch.nn.Parameter(torch.ones(4))
    other = torch.nn.Parameter(torch.ones(4))
    other.data = param.data[2:]
    for params in ([param, other], [{"params": [param]}, {"params": [other]}]):
        with pytest.raises(OpArgumentError, match="Two parameters share memory"):
            CPUAdam(params, in_backward=True)
    with pytest.warns(UserWarning, match="duplicate"), pytest.raises(OpArgumentError, match="one is given twice"):
        CPUAdam([param, param], in_backward=True)


def test_a_second_optimizer_is_refused_until_the_first_removes_its_hooks() -> None:
    model = make_model()
    params = list(model.parameters())
    first = CPUAdam(params, in_backward=True)
    fresh, other = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    second = CPUAdam([other], in_backward=True)
    for call in (
        lambda: CPUAdam([{"params": [fresh]}, {"params": params}], in_backward=True),
        lambda: second.add_param_group({"params": params}),
    ):
        with pytest.raises(OpArgumentError, match="group 1") as caught:
            call()
        assert caught.value.remedy == "Call remove_hooks() of that optimizer first."
    assert len(second.param_groups) == 1
    fresh.sum().backward()  # the optimizer that was refused does not update it
    assert fresh.grad is not None
    first.remove_hooks()
    backward(model, 0)
    assert all(param.grad is not None for param in params)
    first.step()
    first.zero_grad()
    second.add_param_group({"params": params})
    backward(model, 1)
    assert [int(made.state[param]["step"]) for made in (first, second) for param in params] == [1] * 2 * len(params)


def test_an_error_leaves_the_parameter_and_its_gradient() -> None:
    table = torch.nn.Embedding(10, 3, sparse=True)
    before = table.weight.detach().clone()
    optimizer = CPUAdam(table.parameters(), in_backward=True)
    later = torch.nn.Linear(3, 1)
    of_later = CPUAdam(later.parameters(), in_backward=True)
    with pytest.raises(OpArgumentError, match="is sparse"):
        later(table(torch.tensor([1, 2]))).sum().backward()
    assert len(of_later.state) == 2  # what was complete before the error is updated
    assert table.weight.grad is not None
    assert torch.equal(table.weight, before)
    assert not optimizer.state
