"""The optimizers on host tensors as torch ops: schemas, tracing, autograd."""

from __future__ import annotations

import pytest
import torch

from op_builder.ops.optim.tensor_lists import Pass, TensorLists
from tests.support.list_cases import AS_PARAM, PACKED, STOCHASTIC, Case, make
from tests.support.optimizer_reference import ADAM, KINDS, load

OPTIONS = list(ADAM.options.values())


def lists(*lengths: int) -> TensorLists:
    return make(Case(lengths=lengths)).lists


@pytest.mark.parametrize(
    ("kind", "storage"), [*((kind, AS_PARAM) for kind in KINDS), (ADAM, PACKED), (ADAM, STOCHASTIC)], ids=str
)
def test_opcheck_of_the_update(kind, storage):
    case = Case(torch.bfloat16, torch.bfloat16, storage, torch.bfloat16, (17, 0, 300), kind=kind)
    op, tensors = load(kind), make(case).lists.positional()
    options, settings = list(map(float, kind.options.values())), case.settings(grad_scale=-0.5, zero_grads=True, seed=3)
    arguments = (*tensors, 3, options, *settings.positional(), op.isa)
    for places in ((), ([5 + (1 << 32), 6, 7],)):
        torch.library.opcheck(op.ops.update.default, (*arguments, *places))
    numbers = torch.tensor([3.0, -0.5, *options], dtype=torch.float64)
    torch.library.opcheck(op.ops.update.numbers, (*tensors, numbers, *settings.settings(), op.isa))


def test_opcheck_of_the_rollback(cpu_adam):
    params, grads, states, _, _ = lists(17, 64).positional()
    torch.library.opcheck(cpu_adam.ops.rollback.default, (params, grads, states, 3, list(OPTIONS), 1.0, cpu_adam.isa))


def test_opcheck_of_prepared_lists(cpu_adam):
    """Of what does not trace them: they are tensors that only the native side knows, which tracing cannot see.

    A number that ``prepare`` gave while tracing would name no list later. A compiled function calls these ops outside
    its graph: test_a_prepared_list_works_inside_a_compiled_function.
    """
    untraced = ("test_schema", "test_autograd_registration")
    arguments = (*lists(17, 64).positional(), [torch.tensor(0.0), torch.tensor(0.0)])
    for places in ((), ([7, 1 << 32],)):
        torch.library.opcheck(cpu_adam.ops.prepare.default, (*arguments, *places), test_utils=untraced)
    number = cpu_adam.ops.prepare(*arguments)
    grads = [torch.ones(17), torch.ones(64)]
    tests = (*untraced, "test_faketensor")
    torch.library.opcheck(cpu_adam.ops.replace_grads.default, (number, grads), test_utils=tests)
    cpu_adam.ops.forget(number)


def test_a_prepared_list_works_inside_a_compiled_function(cpu_adam):
    """Its ops have no tensors, so a graph would drop them as doing nothing."""
    results = []
    for wrap in (lambda function: function, torch.compile(backend="aot_eager")):
        given = lists(100, 7)
        steps = [torch.tensor(0.0), torch.tensor(0.0)]
        prepared = cpu_adam.prepare(given, steps)

        def train_step(x, prepared=prepared):
            y = x * 2
            prepared.update(OPTIONS, Pass())
            return y + 1

        assert torch.equal(wrap(train_step)(torch.ones(3)), torch.full((3,), 3.0))
        assert [float(step) for step in steps] == [1, 1]
        results.append([tensor.clone() for tensor in given.params])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("changed", ["param", "copy", "grad"])
def test_autograd_notices_all_that_an_update_changes(cpu_adam, is_prepared, changed):
    copy = torch.nn.Parameter(torch.rand(8).bfloat16())
    param, grad = torch.nn.Parameter(torch.rand(8)), torch.rand(8).requires_grad_()
    tensors = TensorLists([param], [grad], [[torch.zeros(8)], [torch.zeros(8)]], (), [copy])
    leaf = {"param": param, "copy": copy, "grad": grad}[changed]
    loss = (leaf * leaf).sum()
    also = Pass(zero_grads=changed == "grad")
    if is_prepared:
        cpu_adam.prepare(tensors, [torch.tensor(0.0)]).update(OPTIONS, also)
    else:
        cpu_adam.update_list(tensors, 1, OPTIONS, also)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
