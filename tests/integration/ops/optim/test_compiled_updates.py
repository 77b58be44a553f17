"""Updates in a graph of torch.compile: other numbers need no other graph, and give what eager calls give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from op_builder.errors import OpArgumentError
from op_builder.ops.optim.tensor_lists import Pass, TensorLists
from tests.support.compilers import needs_gxx
from tests.support.fused_cases import apply
from tests.support.list_cases import PACKED, Case, make
from tests.support.optimizer_reference import ADAM, LAMB, SGD, Kind, as_lists, load, load_fused, make_tensors
from tests.support.training_tensors import Tensors

STEPS = range(1, 13)  # more than torch compiles one function for (torch._dynamo.config.recompile_limit)
FEW = 2  # graphs: one for the first numbers as constants, one for all others


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], backend: str = "aot_eager") -> tuple[Callable[..., Any], Any]:
    """``function`` as one graph, and what counts the graphs."""
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, backend=counter, fullgraph=True), counter


def rate(step: int) -> float:
    return 1e-2 / step


def assert_equal(ones: Any, others: Any) -> None:
    assert all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


@pytest.mark.parametrize("kind", [ADAM, SGD], ids=str)
def test_functions_of_one_tensor(kind: Kind):
    module = type(load(kind))(load(kind).ops)
    getattr(module, f"create_{kind.name}")(0)
    update = getattr(module, f"{kind.name}_update")
    left_out = {"lr", *kind.fixed, *kind.unnamed} | ({"adamw_mode"} if kind is ADAM else set())
    rest = [value for name, value in kind.options.items() if name not in left_out]

    def train_step(tensors: list[torch.Tensor], step: int, lr: float) -> torch.Tensor:
        update(0, step, lr, *rest, *tensors)
        return tensors[0] + 1

    def tensors() -> list[torch.Tensor]:
        made = make_tensors(kind, 1000)
        return [made.param, made.grad, *made.states]

    one_graph, graphs = compiled(train_step)
    actual, expected = tensors(), tensors()
    for step in STEPS:
        result = one_graph(actual, step, rate(step))
        assert torch.equal(result, train_step(expected, step, rate(step)))
        assert_equal(actual, expected)
    assert graphs.frame_count <= FEW


@needs_gxx
@pytest.mark.parametrize(("as_number", "backend"), [(float, "aot_eager"), (torch.tensor, "inductor")])
def test_lists_with_a_scale_of_gradients(cpu_adam, as_number, backend):
    def train_step(tensors: TensorLists, step: Any, lr: Any, scale: Any) -> None:
        options = [lr, *list(ADAM.options.values())[1:]]
        cpu_adam.update_list(tensors, step, options, Pass(scale, zero_grads=True, seed=5))

    one_graph, graphs = compiled(train_step, backend)
    actual, expected = (make(Case(storage=PACKED, lengths=(17, 300))).lists for _ in range(2))
    for step in STEPS:
        # Halves, quarters and the like: float32 holds them.
        lr, scale = 2.0**-step, 2.0 ** (step - 9)
        number = step if as_number is float else torch.tensor(step)
        for tensors in (actual, expected):
            for grad in tensors.grads:
                grad.fill_(0.1)
        one_graph(actual, number, as_number(lr), as_number(scale))
        train_step(expected, step, lr, scale)
        for ones, others in zip(actual.positional(), expected.positional(), strict=True):
            assert_equal(ones, others)
    assert graphs.frame_count <= FEW
    assert not any(grad.any() for grad in actual.grads)


@pytest.mark.parametrize("kind", [ADAM, LAMB], ids=str)
def test_fused_optimizers(kind: Kind):
    op = load_fused(kind)

    def train_step(cases: list[Tensors], lr: float, step: int) -> None:
        apply(op, kind, cases, lr=lr, step=step)

    one_graph, graphs = compiled(train_step)
    actual, expected = ([make_tensors(kind, numel) for numel in (17, 300)] for _ in range(2))
    for step in STEPS:
        lr = 2.0**-step  # in the graph it is rounded to float32
        one_graph(actual, lr, step)
        train_step(expected, lr, step)
        for ones, others in zip(actual, expected, strict=True):
            assert_equal(ones, others)
    assert graphs.frame_count <= FEW


def test_numbers_that_do_not_fit_are_told_from_a_compiled_function_too(cpu_adam):
    module = type(cpu_adam)(cpu_adam.ops)
    module.create_adam(0)
    made = make_tensors(ADAM, 8)
    tensors = [made.param, made.grad, *made.states]

    @torch.compile(backend="aot_eager")
    def train_step(step: Any, lr: Any) -> None:
        module.adam_update(0, step, lr, 0.9, 0.999, 1e-8, 0.0, True, *tensors)

    for step in range(1, 4):
        train_step(step, rate(step))
    before = [tensor.clone() for tensor in tensors]
    for step, lr, text in [(0, 1e-3, "step is 0"), (3, -1.0, "lr is -1.0"), (3, float("nan"), "lr is nan")]:
        with pytest.raises(OpArgumentError, match=text):
            train_step(step, lr)
    # Read when the graph runs, which calls torch's own op: its class depends on torch.
    for step, text in [(0, "step is 0; steps count from 1"), (2.5, "step is 2.5.*not a whole number")]:
        with pytest.raises((ValueError, RuntimeError), match=f"^ValueError: .*{text}"):
            train_step(torch.tensor(step), 1e-3)
    assert_equal(tensors, before)


def test_opcheck_of_the_update_by_numbers():
    module = load(ADAM)
    numbers = torch.tensor([3.0, 0.5, *ADAM.options.values()], dtype=torch.float64)
    arguments = (*as_lists([make_tensors(ADAM, 17)]).positional(), numbers, *Pass().settings(), module.isa)
    torch.library.opcheck(module.ops.update.numbers, arguments)


@pytest.mark.parametrize("load_op", [lambda: load(ADAM), lambda: load_fused(ADAM)], ids=["host", "fused"])
def test_plain_lists_are_refused_with_the_class_to_pass(load_op):
    module = load_op()
    with pytest.raises(OpArgumentError, match="of type list") as caught:
        module.prepare([torch.ones(3)], [torch.tensor(0.0)])
    assert "TensorLists" in caught.value.remedy
