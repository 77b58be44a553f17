"""CPU Adam as a torch op: schema, tracing, autograd."""

from __future__ import annotations

import pytest
import torch
from adam_reference import Options, Tensors, random_tensors

from op_builder import cpu_isa
from op_builder.ops.native.cpu_adam import CPUAdamModule

OPTIONS = (3, 1e-2, 0.9, 0.999, 1e-8, 0.01, True, True)


@pytest.fixture
def adam(cpu_adam):
    module = CPUAdamModule(cpu_adam.ops)
    module.create_adam(0)
    return module


def lists(*lengths: int, dtype: torch.dtype = torch.float32) -> list[list[torch.Tensor]]:
    return [list(column) for column in zip(*(random_tensors(n, dtype, dtype) for n in lengths), strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_opcheck_of_the_update(cpu_adam, dtype):
    torch.library.opcheck(cpu_adam.ops.adam_update.default, (*lists(17, 0, 64, dtype=dtype), *OPTIONS, cpu_adam.isa))


def test_opcheck_of_the_rollback(cpu_adam):
    torch.library.opcheck(cpu_adam.ops.adam_rollback.default, (*lists(17, 64), *OPTIONS, cpu_adam.isa))


def test_ops_return_nothing_and_mark_what_they_change(cpu_adam):
    schema = cpu_adam.ops.adam_update.default._schema
    assert not schema.returns
    changed = [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    assert changed == ["params", "exp_avgs", "exp_avg_sqs"]


def test_the_raw_op_refuses_bad_input_as_a_value_error(cpu_adam):
    with pytest.raises(ValueError, match="avx9"):
        cpu_adam.ops.adam_update(*lists(17), *OPTIONS, "avx9")
    with pytest.raises(ValueError, match="step is 0"):
        cpu_adam.ops.adam_update(*lists(17), 0, *OPTIONS[1:], cpu_adam.isa)


def test_binding_and_python_see_the_same_instruction_sets(cpu_adam):
    assert tuple(cpu_adam.ops.supported_isas().split(",")) == cpu_isa.supported_isas()


def test_compiles_as_one_graph(adam):
    def train_step(param, grad, exp_avg, exp_avg_sq):
        adam.adam_update(0, *Options().positional(), param, grad * 2, exp_avg, exp_avg_sq)
        return param + 1

    eager, compiled = random_tensors(1000), random_tensors(1000)
    expected = train_step(*eager)
    result = torch.compile(train_step, fullgraph=True)(*compiled)
    assert torch.equal(result, expected)
    assert all(torch.equal(one, other) for one, other in zip(compiled, eager, strict=True))


def test_a_leaf_that_requires_grad_is_updated_in_place(adam):
    tensors = random_tensors(40)
    leaf = torch.nn.Parameter(tensors.param.clone())
    adam.adam_update(0, *Options().positional(), leaf, *list(tensors)[1:])
    assert leaf.is_leaf
    assert leaf.grad_fn is None
    assert not torch.equal(leaf, tensors.param)


def test_autograd_notices_an_update_between_forward_and_backward(adam):
    leaf = torch.nn.Parameter(torch.rand(8))
    loss = (leaf * leaf).sum()
    adam.adam_update(0, *Options().positional(), leaf, torch.ones(8), torch.zeros(8), torch.zeros(8))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_works_in_inference_mode(adam):
    with torch.inference_mode():
        tensors = random_tensors(8)
        before = tensors.param.clone()
        adam.adam_update(0, *Options().positional(), *Tensors(*tensors))
        assert not torch.equal(tensors.param, before)
