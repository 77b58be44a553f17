"""The fused optimizers as torch ops: schema, tracing, autograd, prepared lists."""

from __future__ import annotations

import pytest
import torch

from op_builder.cpu import FusedAdamBuilder, FusedAmsgradBuilder, FusedLambBuilder, FusedLionBuilder
from op_builder.errors import OpArgumentError
from op_builder.ops.optim.fused_op import Control
from op_builder.ops.optim.tensor_lists import TensorLists
from tests.support.adam_reference import Options, random_tensors
from tests.support.fused_cases import CHUNK, assert_same, lists_of, mixed_cases, positional

OPTIONS = {
    "fused_amsgrad": [1e-2, 0.9, 0.999, 1e-8, 0.01, 1.0, 1.0],
    "fused_adam": [1e-2, 0.9, 0.999, 1e-8, 0.01, 1.0, 1.0],
    "fused_lion": [1e-2, 0.9, 0.99, 0.01],
    "fused_lamb": [1e-2, 0.9, 0.999, 1e-6, 0.01, 1.0],
}


BUILDERS = [FusedAdamBuilder, FusedAmsgradBuilder, FusedLionBuilder, FusedLambBuilder]


@pytest.fixture(scope="module", params=BUILDERS, ids=lambda b: b.NAME)
def fused(request: pytest.FixtureRequest):
    """(module, options) of each op."""
    return request.param().load(), OPTIONS[request.param.NAME]


@pytest.fixture(scope="module")
def adam():
    return FusedAdamBuilder().load()


def states_of(module, cases):
    """A list for each of the module's states."""
    largest = [random_tensors(case.param.numel(), seed=100 + i).exp_avg_sq for i, case in enumerate(cases)]
    states = [case.exp_avg for case in cases], [case.exp_avg_sq for case in cases], largest
    return list(states[: len(module.states)])


def arguments(module, options, lengths=(17, 0, 64), steps: bool = False, control: bool = False):
    """Everything that the raw op ``update`` takes."""
    cases = [random_tensors(n, seed=n) for n in lengths]
    flat = [tensor for column in states_of(module, cases) for tensor in column]
    counters = [torch.tensor(1.0) for _ in cases] if steps else []
    tensors = [torch.tensor(1e-2), torch.zeros(1, dtype=torch.int32), torch.ones(()), torch.zeros(1)]
    given = tensors if control else [None] * 4
    return (
        *([c.param for c in cases], [c.grad for c in cases], flat, counters, *given),
        *(options, 3, False, CHUNK, module.isa),
    )


@pytest.mark.parametrize(("steps", "control"), [(False, False), (True, True)])
def test_opcheck(fused, steps, control):
    module, options = fused
    torch.library.opcheck(module.ops.update.default, arguments(module, options, steps=steps, control=control))


def test_opcheck_of_prepared_lists(fused):
    """Of what does not trace them: see test_cpu_adam_torch_op.py."""
    module, _ = fused
    cases = [random_tensors(n, seed=n) for n in (17, 64)]
    states = [tensor for column in states_of(module, cases) for tensor in column]
    given = ([c.param for c in cases], [c.grad for c in cases], states, [torch.tensor(0.0) for _ in cases])
    untraced = ("test_schema", "test_autograd_registration")
    torch.library.opcheck(module.ops.prepare.default, given, test_utils=untraced)
    number = module.ops.prepare.default(*given)
    grads = [torch.ones(17), torch.ones(64)]
    torch.library.opcheck(module.ops.replace_grads.default, (number, grads), test_utils=(*untraced, "test_faketensor"))
    module.ops.forget.default(number)


def test_ops_return_nothing_and_mark_what_they_change(fused):
    schema = fused[0].ops.update.default._schema
    assert not schema.returns
    changed = [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    assert changed == ["params", "states", "steps"]


def test_the_capturable_form_compiles_as_one_graph(adam):
    def train_step(param, grad, exp_avg, exp_avg_sq, lr, step):
        adam.multi_tensor_adam_capturable(
            CHUNK, None, [[grad * 2], [param], [exp_avg], [exp_avg_sq]], lr, 0.9, 0.999, 1e-8, step, 1, True, 0.01
        )
        return param + step

    lr = torch.tensor(1e-2)
    eager, compiled = random_tensors(1000), random_tensors(1000)
    steps = torch.tensor(2.0), torch.tensor(2.0)
    expected = train_step(*eager, lr, steps[0])
    assert torch.equal(
        torch.compile(train_step, fullgraph=True, backend="aot_eager")(*compiled, lr, steps[1]), expected
    )
    assert steps[1] == 3
    assert_same(list(compiled), list(eager))


def test_autograd_notices_an_update_between_forward_and_backward(adam):
    leaf = torch.nn.Parameter(torch.rand(8))
    loss = (leaf * leaf).sum()
    lists = [[torch.ones(8)], [leaf], [torch.zeros(8)], [torch.zeros(8)]]
    adam.multi_tensor_adam(CHUNK, None, lists, *positional(Options()))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def prepared_case(module, lengths=(5, 1000, 0)):
    cases = [random_tensors(n, seed=n) for n in lengths]
    tensors = TensorLists([c.param for c in cases], [c.grad for c in cases], states_of(module, cases))
    steps = [torch.tensor(2.0) for _ in cases]
    return cases, tensors, steps


def test_gradients_of_a_prepared_list_are_replaced_and_let_go(adam):
    _, tensors, steps = prepared_case(adam)
    prepared = adam.prepare(tensors, steps)
    prepared.release_grads()
    with pytest.raises(OpArgumentError, match="3 parameters came with 0 grad tensors"):
        prepared.update(OPTIONS["fused_adam"], Control())
    with pytest.raises(OpArgumentError, match="3 parameters came with 1 grad tensors"):
        prepared.replace_grads([torch.ones(5)])
    prepared.replace_grads([torch.ones_like(param) for param in tensors.params])
    prepared.update(OPTIONS["fused_adam"], Control())
    assert all(step == 3 for step in steps)


def test_new_gradients_in_every_update_do_what_a_call_with_all_tensors_does(fused):
    module, options = fused
    (cases, tensors, steps), (same, twins, counters) = prepared_case(module), prepared_case(module)
    prepared = module.prepare(tensors, steps)
    for seed, dtype in enumerate([torch.float32, torch.bfloat16, torch.float16]):
        grads = [random_tensors(case.param.numel(), seed=seed + 7).grad.to(dtype) for case in cases]
        prepared.replace_grads(grads)
        prepared.update(options, Control())
        module.update_list(twins._replace(grads=grads), options, counters)
    assert_same(steps, counters)
    assert_same([case.param for case in cases], [twin.param for twin in same])
    for one, other in zip(tensors.states, twins.states, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(
    ("grad", "text"),
    [
        (lambda _: torch.ones(999), "grad of tensor 1 has 999 elements"),
        (lambda _: torch.ones(1000).double(), "grad of tensor 1 is of type Double"),
        (lambda case: case.param, "grad of tensor 1 shares memory with its param"),
    ],
)
def test_replaced_gradients_that_do_not_fit_are_refused_and_nothing_changed(adam, grad, text):
    cases, tensors, steps = prepared_case(adam)
    prepared = adam.prepare(tensors, steps)
    prepared.update(OPTIONS["fused_adam"], Control())
    before = [case.clone() for case in cases]
    prepared.replace_grads([tensors.grads[0], grad(cases[1]), tensors.grads[2]])
    for _ in range(2):
        with pytest.raises(OpArgumentError, match=text):
            prepared.update(OPTIONS["fused_adam"], Control())
        for case, old in zip(cases, before, strict=True):
            assert_same(list(case), list(old))
    prepared.replace_grads(tensors.grads)
    prepared.update(OPTIONS["fused_adam"], Control())
    assert all(step == 4 for step in steps)


def test_an_op_built_for_the_cpu_has_no_cuda_in_it(fused):
    assert fused[0].devices == ("cpu",)


def test_lists_of_nothing_do_nothing(adam):
    adam.multi_tensor_adam(CHUNK, None, [[], [], [], []], *positional(Options()))
    adam.multi_tensor_adam(CHUNK, None, lists_of(mixed_cases(lengths=(0,))), *positional(Options()))
