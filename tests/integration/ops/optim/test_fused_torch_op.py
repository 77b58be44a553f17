"""The fused optimizers as torch ops: schema, tracing, autograd, prepared lists."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from op_builder.ops.optim.fused_op import Control
from tests.support.adam_reference import Options, Tensors
from tests.support.fused_cases import CHUNK, assert_same, lists_of, mixed_cases, positional
from tests.support.optimizer_reference import (
    ADAM,
    AMSGRAD,
    LAMB,
    LION,
    Kind,
    as_lists,
    assert_same_bits,
    load_fused,
    make_tensors,
)

every_kind = pytest.mark.parametrize("kind", [ADAM, AMSGRAD, LION, LAMB], ids=str)


def make_cases(kind: Kind, lengths: Iterable[int]) -> list[Tensors]:
    return [make_tensors(kind, n, seed=n) for n in lengths]


def flat(cases: list[Tensors]) -> tuple[list[torch.Tensor], ...]:
    """Parameters, gradients and states as the raw ops take them."""
    grads, params, *states = lists_of(cases)
    return params, grads, [tensor for column in states for tensor in column]


def options_of(kind: Kind) -> list[float]:
    return [float(value) for value in kind.options.values()]


@every_kind
@pytest.mark.parametrize("in_tensors", [False, True])
def test_opcheck(kind: Kind, in_tensors: bool) -> None:
    module, tensors = load_fused(kind), flat(make_cases(kind, (17, 0, 64)))
    steps = [torch.tensor(1.0) for _ in range(3)] if in_tensors else []
    control = [torch.tensor(1e-2), torch.zeros(1, dtype=torch.int32), torch.ones(()), torch.zeros(1)]
    given = (*tensors, steps, *(control if in_tensors else [None] * 4), options_of(kind), 3, False, CHUNK, module.isa)
    torch.library.opcheck(module.ops.update.default, given)


@every_kind
def test_opcheck_of_prepared_lists(kind: Kind) -> None:
    """Of what does not trace them: see test_cpu_adam_torch_op.py."""
    ops = load_fused(kind).ops
    given = (*flat(make_cases(kind, (17, 64))), [torch.tensor(0.0), torch.tensor(0.0)])
    untraced = ("test_schema", "test_autograd_registration")
    torch.library.opcheck(ops.prepare.default, given, test_utils=untraced)
    number = ops.prepare.default(*given)
    grads = [torch.ones(17), torch.ones(64)]
    torch.library.opcheck(ops.replace_grads.default, (number, grads), test_utils=(*untraced, "test_faketensor"))
    ops.forget.default(number)


@every_kind
def test_ops_return_nothing_and_mark_what_they_change(kind: Kind) -> None:
    module = load_fused(kind)
    assert module.devices == ("cpu",)  # a build without CUDA
    schema = module.ops.update.default._schema
    assert not schema.returns
    changed = [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    assert changed == ["params", "states", "steps"]


def test_the_capturable_form_compiles_as_one_graph() -> None:
    adam = load_fused(ADAM)

    def train_step(param, grad, exp_avg, exp_avg_sq, lr, step):
        adam.multi_tensor_adam_capturable(
            CHUNK, None, [[grad * 2], [param], [exp_avg], [exp_avg_sq]], lr, 0.9, 0.999, 1e-8, step, 1, True, 0.01
        )
        return param + step

    lr, steps = torch.tensor(1e-2), (torch.tensor(2.0), torch.tensor(2.0))
    eager, compiled = make_tensors(ADAM, 1000), make_tensors(ADAM, 1000)
    expected = train_step(*eager, lr, steps[0])
    in_graph = torch.compile(train_step, fullgraph=True, backend="aot_eager")
    assert torch.equal(in_graph(*compiled, lr, steps[1]), expected)
    assert steps[1] == 3
    assert_same_bits(compiled, eager)


def test_autograd_notices_an_update_between_forward_and_backward() -> None:
    leaf = torch.nn.Parameter(torch.rand(8))
    loss = (leaf * leaf).sum()
    lists = [[torch.ones(8)], [leaf], [torch.zeros(8)], [torch.zeros(8)]]
    load_fused(ADAM).multi_tensor_adam(CHUNK, None, lists, *positional(Options()))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every_kind
def test_new_gradients_in_every_update_do_what_a_call_with_all_tensors_does(kind: Kind) -> None:
    module, lengths = load_fused(kind), (5, 1000, 0)
    cases, twins = make_cases(kind, lengths), make_cases(kind, lengths)
    steps, counters = ([torch.tensor(2.0) for _ in lengths] for _ in range(2))
    prepared = module.prepare(as_lists(cases), steps)
    for seed, dtype in enumerate([torch.float32, torch.bfloat16, torch.float16]):
        grads = [make_tensors(kind, n, seed=seed + 7).grad.to(dtype) for n in lengths]
        prepared.replace_grads(grads)
        prepared.update(options_of(kind), Control())
        module.update_list(as_lists(twins)._replace(grads=grads), options_of(kind), counters)
    assert_same(steps, counters)
    for case, twin in zip(cases, twins, strict=True):
        assert_same_bits(case, twin)


def test_lists_of_nothing_do_nothing() -> None:
    adam = load_fused(ADAM)
    adam.multi_tensor_adam(CHUNK, None, [[], [], [], []], *positional(Options()))
    adam.multi_tensor_adam(CHUNK, None, lists_of(mixed_cases(lengths=(0,))), *positional(Options()))
