"""CPU Adam as torch ops: schemas, tracing, autograd, the GIL."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import torch

from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.tensor_lists import QUANT_BLOCK, Pass, TensorLists
from op_builder.system import cpu_isa
from tests.support.adam_reference import Options, random_tensors
from tests.support.compilers import needs_gxx
from tests.support.optimizer_reference import as_lists

OPTIONS = Options().listed()
PLAIN = Pass().positional()


@pytest.fixture
def adam(cpu_adam):
    module = HostOp(cpu_adam.ops)
    module.create_adam(0)
    return module


def lists(*lengths: int, dtype: torch.dtype = torch.float32) -> TensorLists:
    return as_lists([random_tensors(numel, dtype, dtype, dtype, seed=numel) for numel in lengths])


def packed_lists(*lengths: int) -> TensorLists:
    def blocks(dtype: torch.dtype, per: int) -> list[list[torch.Tensor]]:
        return [[torch.zeros(-(-numel // per), dtype=dtype) for numel in lengths] for _ in range(2)]

    plain = lists(*lengths)
    return TensorLists(plain.params, plain.grads, blocks(torch.uint8, 1), blocks(torch.float32, QUANT_BLOCK))


def with_copies(given: TensorLists) -> TensorLists:
    copies = [torch.zeros_like(param, dtype=torch.bfloat16) for param in given.params]
    return TensorLists(given.params, given.grads, given.states, given.scales, copies)


@pytest.mark.parametrize(
    ("given", "also"),
    [
        pytest.param(with_copies(packed_lists(17, 300)), Pass(seed=3), id="8 bits"),
        pytest.param(lists(17, 300, dtype=torch.bfloat16), Pass(stochastic=True, seed=4), id="stochastic"),
    ],
)
def test_opcheck_of_the_update(cpu_adam, given, also):
    arguments = (*given.positional(), 3, list(OPTIONS), *also.positional(), cpu_adam.isa)
    torch.library.opcheck(cpu_adam.ops.update.default, arguments)
    places = [5 + (1 << 32) + i for i in range(len(given.params))]
    torch.library.opcheck(cpu_adam.ops.update.default, (*arguments, places))


def test_opcheck_of_the_rollback(cpu_adam):
    params, grads, states, _, _ = lists(17, 64).positional()
    torch.library.opcheck(cpu_adam.ops.rollback.default, (params, grads, states, 3, list(OPTIONS), 1.0, cpu_adam.isa))


# The ops of prepared lists work on tensors that only the native side knows. Tracing cannot see those, so
# test_aot_dispatch_*, which compares a traced run with an eager one, does not apply: a number that
# `prepare` gave while tracing would name no list later. (A compiled function calls them outside its
# graph: test_a_prepared_list_works_inside_a_compiled_function.)
UNTRACED = ("test_schema", "test_autograd_registration", "test_faketensor")


def test_opcheck_of_preparing(cpu_adam):
    steps = [torch.tensor(0.0), torch.tensor(0.0)]
    arguments = (*lists(17, 64).positional(), steps)
    for places in ((), ([7, 1 << 32],)):
        torch.library.opcheck(cpu_adam.ops.prepare.default, (*arguments, *places), test_utils=UNTRACED[:2])


def test_opcheck_of_replacing_gradients(cpu_adam):
    given = lists(17, 64)
    number = cpu_adam.ops.prepare(*given.positional(), [torch.tensor(0.0), torch.tensor(0.0)])
    arguments = (number, [torch.ones(17), torch.ones(64)])
    torch.library.opcheck(cpu_adam.ops.replace_grads.default, arguments, test_utils=UNTRACED)
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


def test_the_raw_op_refuses_bad_input_as_a_value_error(cpu_adam):
    tensors = lists(17).positional()
    with pytest.raises(ValueError, match="avx9"):
        cpu_adam.ops.update(*tensors, 3, list(OPTIONS), *PLAIN, "avx9")
    with pytest.raises(ValueError, match="step is 0"):
        cpu_adam.ops.update(*tensors, 0, list(OPTIONS), *PLAIN, cpu_adam.isa)
    with pytest.raises(ValueError, match="Prepared list 123456789 does not exist"):
        cpu_adam.ops.update_prepared(123456789, list(OPTIONS), *PLAIN, cpu_adam.isa)


@pytest.mark.parametrize("place", range(5))
def test_the_raw_op_refuses_lists_of_unequal_length(cpu_adam, place):
    tensors = list(with_copies(packed_lists(17, 20)).positional())
    tensors[place] = list(tensors[place])[:-1]
    with pytest.raises(ValueError, match="parameters came with"):
        cpu_adam.ops.update(*tensors, 3, list(OPTIONS), *PLAIN, cpu_adam.isa)


def test_binding_and_python_see_the_same_instruction_sets(cpu_adam):
    assert tuple(cpu_adam.ops.supported_isas().split(",")) == cpu_isa.supported_isas()


@needs_gxx
def test_a_prepared_list_works_inside_a_compiled_function(cpu_adam):
    """Its ops have no tensors, so a graph would drop them as doing nothing."""
    results = []
    for wrap in (lambda function: function, torch.compile):
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
