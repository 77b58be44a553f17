"""CPU Adam as torch ops: schemas, tracing, autograd, the GIL."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import torch

from op_builder.ops.optim.tensor_lists import Pass, TensorLists
from op_builder.system import cpu_isa
from tests.support.list_cases import Case, make
from tests.support.optimizer_reference import ADAM

OPTIONS = list(ADAM.options.values())
PLAIN = Pass().positional()


def lists(*lengths: int) -> TensorLists:
    return make(Case(lengths=lengths)).lists


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("update", ["params", "grads", "states", "scales", "copies"]),
        ("rollback", ["params", "states"]),
    ],
)
def test_ops_return_nothing_and_mark_what_they_change(cpu_adam, name, expected):
    schema = getattr(cpu_adam.ops, name).default._schema
    assert not schema.returns
    changed = [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    assert changed == expected


def test_binding_and_python_see_the_same_instruction_sets(cpu_adam):
    assert tuple(cpu_adam.ops.supported_isas().split(",")) == cpu_isa.supported_isas()


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


@pytest.mark.parametrize("is_prepared", [False, True])
def test_other_python_threads_run_during_an_update(cpu_adam, is_prepared):
    numel = 1 << 19
    given = TensorLists([torch.ones(numel)], [torch.ones(numel)], [[torch.zeros(numel)], [torch.zeros(numel)]])
    prepared = cpu_adam.prepare(given, [torch.tensor(0.0)])
    raw = (*given.positional(), 1, list(OPTIONS), *PLAIN, cpu_adam.isa)
    watched, inside = threading.Event(), threading.Event()

    def update() -> None:
        watched.wait()  # without a GIL all updates may be over before start() returns
        for _ in range(100):
            inside.set()
            if is_prepared:
                prepared.update(OPTIONS, Pass())
            else:
                cpu_adam.ops.update.default(*raw)
            inside.clear()

    worker = threading.Thread(target=update)
    seen = 0
    interval = sys.getswitchinterval()
    # Nobody is made to give the GIL away: this thread runs while the other is `inside` only if the op does.
    sys.setswitchinterval(1000)
    try:
        worker.start()
        watched.set()
        while worker.is_alive():
            seen += inside.is_set()
            time.sleep(1e-4)
    finally:
        sys.setswitchinterval(interval)
        worker.join()
    assert seen >= 3
