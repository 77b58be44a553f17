"""Updates as torch ops: schemas, autograd, and graphs of torch.compile.

Other numbers need no other graph, and give what eager calls give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from op_builder.errors import OpArgumentError
from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.tensor_lists import Pass, TensorLists
from tests.support.compilers import needs_gxx
from tests.support.fused_cases import apply
from tests.support.list_cases import AS_PARAM, PACKED, STOCHASTIC, Case, make
from tests.support.optimizer_cases import assert_equal
from tests.support.optimizer_reference import ADAM, KINDS, LAMB, Kind, load, load_fused, make_tensors
from tests.support.training_tensors import Tensors

OPTIONS = list(ADAM.options.values())
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


def test_functions_of_one_tensor(cpu_adam):
    module = HostOp(cpu_adam.ops)
    module.create_adam(0)
    _, *rest = ADAM.of_one.values()

    def train_step(tensors: list[torch.Tensor], step: int, lr: float) -> torch.Tensor:
        module.adam_update(0, step, lr, *rest, *tensors)
        return tensors[0] + 1

    one_graph, graphs = compiled(train_step)
    actual, expected = ([*make_tensors(ADAM, 1000)] for _ in range(2))
    for step in STEPS:
        result = one_graph(actual, step, 1e-2 / step)
        assert torch.equal(result, train_step(expected, step, 1e-2 / step))
        assert_equal(actual, expected)
    assert graphs.frame_count <= FEW


@needs_gxx
@pytest.mark.parametrize(("as_number", "backend"), [(float, "aot_eager"), (torch.tensor, "inductor")])
def test_lists_with_a_scale_of_gradients(cpu_adam, as_number, backend):
    def train_step(tensors: TensorLists, step: Any, lr: Any, scale: Any) -> None:
        options = [lr, *list(ADAM.options.values())[1:]]
        cpu_adam.update_list(tensors, step, options, Pass(scale, zero_grads=True, seed=5))

    one_graph, graphs = compiled(train_step, backend)
    actual, expected = (make(Case(storage=PACKED, lengths=(17, 300))) for _ in range(2))
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


@pytest.mark.parametrize(("kind", "in_tensors"), [(ADAM, False), (ADAM, True), (LAMB, False)], ids=str)
def test_fused_optimizers(kind: Kind, in_tensors: bool):
    """Also of steps and rates in tensors, the capturable form."""
    op = load_fused(kind)

    def train_step(cases: list[Tensors], lr: Any, step: Any) -> torch.Tensor:
        apply(op, kind, cases, lr=lr, step=step)
        return cases[0].param + step

    one_graph, graphs = compiled(train_step)
    actual, expected = ([make_tensors(kind, numel) for numel in (17, 300)] for _ in range(2))
    for step in STEPS:
        lr = 2.0**-step  # in the graph it is rounded to float32
        of_graph, eager = ((torch.tensor(lr), torch.tensor(step - 1.0)) if in_tensors else (lr, step) for _ in range(2))
        assert torch.equal(one_graph(actual, *of_graph), train_step(expected, *eager))
        for ones, others in zip(actual, expected, strict=True):
            assert_equal(ones, others)
    assert graphs.frame_count <= FEW


def test_numbers_that_do_not_fit_are_refused_in_a_compiled_function_too(cpu_adam):
    module = HostOp(cpu_adam.ops)
    module.create_adam(0)
    tensors = [*make_tensors(ADAM, 8)]

    @torch.compile(backend="aot_eager")
    def train_step(step: Any, lr: Any) -> None:
        module.adam_update(0, step, lr, 0.9, 0.999, 1e-8, 0.0, True, *tensors)

    for step in range(1, 4):
        train_step(step, 1e-2 / step)
    before = [tensor.clone() for tensor in tensors]
    for step, lr, text in [(0, 1e-3, "step is 0"), (3, -1.0, "lr is -1.0"), (3, float("nan"), "lr is nan")]:
        with pytest.raises(OpArgumentError, match=text):
            train_step(step, lr)
    # Read when the graph runs, which calls torch's own op: its class depends on torch.
    for step, text in [(0, "step is 0; steps count from 1"), (2.5, "step is 2.5.*not a whole number")]:
        with pytest.raises((ValueError, RuntimeError), match=f"^ValueError: .*{text}"):
            train_step(torch.tensor(step), 1e-3)
    assert_equal(tensors, before)


@pytest.mark.parametrize(
    ("kind", "storage"), [*((kind, AS_PARAM) for kind in KINDS), (ADAM, PACKED), (ADAM, STOCHASTIC)], ids=str
)
def test_opcheck_of_the_update(kind, storage):
    case = Case(torch.bfloat16, torch.bfloat16, storage, torch.bfloat16, (17, 0, 300), kind=kind)
    op, tensors = load(kind), make(case).positional()
    assert not op.ops.update.default._schema.returns
    options, settings = list(map(float, kind.options.values())), case.settings(grad_scale=-0.5, zero_grads=True, seed=3)
    arguments = (*tensors, 3, options, *settings.positional(), op.isa)
    for places in ((), ([5 + (1 << 32), 6, 7],)):
        torch.library.opcheck(op.ops.update.default, (*arguments, *places))
    numbers = torch.tensor([3.0, -0.5, *options], dtype=torch.float64)
    torch.library.opcheck(op.ops.update.numbers, (*tensors, numbers, *settings.settings(), op.isa))


def test_opcheck_of_the_rollback(cpu_adam):
    params, grads, states, _ = make(Case(lengths=(17, 64))).positional()
    torch.library.opcheck(cpu_adam.ops.rollback.default, (params, grads, states, 3, OPTIONS, cpu_adam.isa))


def test_opcheck_of_prepared_lists(cpu_adam):
    """Of what does not trace them: only the native side knows their tensors, so they stay outside graphs."""
    untraced = ("test_schema", "test_autograd_registration")
    arguments = (*make(Case(lengths=(17, 64))).positional(), [torch.tensor(0.0), torch.tensor(0.0)])
    torch.library.opcheck(cpu_adam.ops.prepare.default, arguments, test_utils=untraced)
    number = cpu_adam.ops.prepare(*arguments)
    grads = [torch.ones(17), torch.ones(64)]
    torch.library.opcheck(cpu_adam.ops.replace_grads.default, (number, grads), test_utils=untraced)
    cpu_adam.ops.forget(number)


def test_a_prepared_list_is_updated_once_by_each_call_of_a_compiled_function(cpu_adam):
    """Tracing must not run its ops, and a graph would drop them, since they have no tensors."""
    given, expected = make(Case(lengths=(100, 7))), make(Case(lengths=(100, 7)))
    steps = [torch.tensor(0.0), torch.tensor(0.0)]
    prepared = cpu_adam.prepare(given, steps)

    @torch.compile(backend="aot_eager")
    def train_step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        prepared.update(OPTIONS, Pass())
        return y + 1

    for step in (1, 2):
        assert torch.equal(train_step(torch.ones(3)), torch.full((3,), 3.0))
        cpu_adam.update_list(expected, step, OPTIONS)
        assert [float(done) for done in steps] == [step, step]
        assert_equal(given.params, expected.params)


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("changed", ["param", "copy", "grad"])
def test_autograd_notices_all_that_an_update_changes(cpu_adam, is_prepared, changed):
    copy = torch.nn.Parameter(torch.rand(8).bfloat16())
    param, grad = torch.nn.Parameter(torch.rand(8)), torch.rand(8).requires_grad_()
    tensors = TensorLists([param], [grad], [[torch.zeros(8)], [torch.zeros(8)]], [copy])
    leaf = {"param": param, "copy": copy, "grad": grad}[changed]
    loss = (leaf * leaf).sum()
    also = Pass(zero_grads=changed == "grad")
    if is_prepared:
        cpu_adam.prepare(tensors, [torch.tensor(0.0)]).update(OPTIONS, also)
    else:
        cpu_adam.update_list(tensors, 1, OPTIONS, also)
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()
