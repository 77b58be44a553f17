"""The functions of one tensor of the ops on host tensors, and numbers that are out of range."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from op_builder import env
from op_builder.errors import EnvironmentValueError, OpArgumentError
from op_builder.ops.optim.host_op import HostOp
from op_builder.system import cpu_isa
from tests.support.optimizer_reference import ADAM, KINDS, SGD, Kind, as_lists, load, make_tensors, update, update_one

every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)

#: The functions of one tensor; those of Adam, Adagrad and Lion are fixed by the interface, the others are like them.
SIGNATURES = {
    "create_adam": (
        "optimizer_id alpha=0.001 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.0 adamw_mode=True should_log=False"
    ),
    "adam_update": "optimizer_id step lr beta1 beta2 eps weight_decay bias_correction param grad exp_avg exp_avg_sq",
    "adam_rollback": "optimizer_id step lr beta1 beta2 eps weight_decay bias_correction param grad exp_avg exp_avg_sq",
    "create_adagrad": "optimizer_id alpha=0.01 eps=1e-08 weight_decay=0.0 should_log=False",
    "adagrad_update": "optimizer_id step lr eps weight_decay param grad exp_avg_sq",
    "create_lion": "optimizer_id alpha=0.001 beta1=0.9 beta2=0.999 weight_decay=0.0 should_log=False",
    "lion_update": "optimizer_id step lr beta1 beta2 weight_decay param grad exp_avg",
    "create_sgd": (
        "optimizer_id alpha=0.001 momentum=0.9 dampening=0.0 weight_decay=0.0 nesterov=False should_log=False"
    ),
    "sgd_update": "optimizer_id step lr momentum dampening weight_decay param grad momentum_buffer",
}


def functions(kind: Kind) -> tuple[Callable[..., None], ...]:
    """Those that create an optimizer, update and destroy it, with ids of their own."""
    module = HostOp(load(kind).ops)
    names = (f"create_{kind.name}", f"{kind.name}_update", f"destroy_{kind.name}")
    return tuple(getattr(module, name) for name in names)


def refused(kind: Kind, text: str, **changes: Any) -> None:
    """Raise unless an update with ``changes`` is refused with a remedy and changes no tensor."""
    tensors = make_tensors(kind, 24)
    with pytest.raises(OpArgumentError, match=text) as caught:
        update_one(kind, tensors, **changes)
    assert caught.value.remedy
    assert all(map(torch.equal, tensors, make_tensors(kind, 24)))


@pytest.mark.parametrize("name", SIGNATURES)
def test_functions_of_one_tensor_take_what_the_interface_says(name):
    (kind,) = (kind for kind in KINDS if kind.name in name)
    parameters = list(inspect.signature(getattr(load(kind), name)).parameters.values())
    found = [
        parameter.name if parameter.default is inspect.Parameter.empty else f"{parameter.name}={parameter.default}"
        for parameter in parameters
    ]
    assert " ".join(found) == SIGNATURES[name]
    for arguments, keywords in (((), {}), ((1,) * 20, {}), ((1,), {"optimizer_id": 1}), ((1,), {"other": 1})):
        with pytest.raises(TypeError, match=rf"{name}\(\) takes \(optimizer_id, "):
            getattr(load(kind), name)(*arguments, **keywords)


@pytest.mark.parametrize(("kind", "fixed"), [*((kind, {}) for kind in KINDS), (SGD, {"nesterov": True})], ids=str)
def test_a_function_of_one_tensor_does_what_the_list_form_does(kind, fixed):
    """The id fixes some options."""
    tensors = make_tensors(kind, 24)
    expected = update(load(kind), tensors, {**kind.options, **fixed})
    update_one(kind, tensors, **fixed)
    assert all(map(torch.equal, tensors, expected))


@pytest.mark.parametrize("change", [{"momentum": 0.0}, {"dampening": 0.5}], ids=str)
def test_nesterov_without_momentum_or_with_dampening_is_refused(change):
    refused(SGD, "nesterov=True was given with", nesterov=True, **change)
    with pytest.raises(OpArgumentError, match="nesterov=True was given with"):
        functions(SGD)[0](0, nesterov=True, **change)


@every_kind
def test_numbers_out_of_range_are_refused(kind):
    create, _, _ = functions(kind)
    bad = [(value, "{name} is {value}") for value in (math.nan, math.inf, -0.1)]
    bad += [(value, "not a number") for value in ("fast", None, torch.ones(2))]
    for name in (name for name, number in kind.of_one.items() if isinstance(number, float)):
        for value, text in [*bad, *([(1.0, "{name} is 1.0")] if name.startswith("beta") else [])]:
            refused(kind, text.format(name=name, value=value), **{name: value})
            with pytest.raises(OpArgumentError, match=text.format(name=name, value=value)):
                create(1, **{"alpha" if name == "lr" else name: value})
    create(1)
    for step in (0, -3, 1.5, "1", None, True):
        refused(kind, "step is", step=step)


@every_kind
def test_a_wrong_count_of_options_is_refused(kind):
    with pytest.raises(OpArgumentError) as caught:
        load(kind).update_list(as_lists([make_tensors(kind, 24)]), 1, [0.1])
    assert caught.value.remedy == f"Pass {len(kind.options)} numbers."
    assert tuple(kind.options) == load(kind).options
    assert kind.states == load(kind).states


@every_kind
def test_an_id_is_used_once_and_free_after_destroy(kind):
    create, update, destroy = functions(kind)
    numbers, tensors = kind.of_one.values(), make_tensors(kind, 24)
    create(0)
    with pytest.raises(OpArgumentError, match="in use") as caught:
        create(0)
    assert f"destroy_{kind.name}" in caught.value.remedy
    destroy(0)
    for call in (lambda: destroy(0), lambda: update(0, 3, *numbers, *tensors)):
        with pytest.raises(OpArgumentError, match="optimizer with id 0"):
            call()
    create(0)
    update(0, 3, *numbers, *tensors)


@pytest.mark.parametrize("value", [True, "1", None, 1.0, []])
def test_an_id_is_an_int(value):
    create, update, destroy = functions(ADAM)
    for call in (create, destroy, lambda value: update(value, 3, *ADAM.of_one.values(), *make_tensors(ADAM, 24))):
        with pytest.raises(OpArgumentError) as caught:
            call(value)
        assert f"optimizer_id is {value!r}, which is not an int" in str(caught.value)
        assert isinstance(caught.value, ValueError)


def test_create_logs_only_when_asked(caplog):
    create, _, _ = functions(ADAM)
    with caplog.at_level("INFO", logger="op_builder"):
        create(1)
        assert not caplog.records
        create(2, should_log=True)
    assert "lr=0.001" in caplog.text


def test_arguments_may_be_named_and_the_learning_rate_a_tensor_of_one_element():
    create, update, _ = functions(ADAM)
    create(0)
    tensors, same = make_tensors(ADAM, 24), make_tensors(ADAM, 24)
    named = dict(zip(ADAM.roles, tensors, strict=True))
    update(optimizer_id=0, step=3, **{**ADAM.of_one, "lr": torch.tensor(0.25)}, **named)
    update_one(ADAM, same, lr=0.25)
    assert all(map(torch.equal, tensors, same))


def test_binding_and_python_see_the_same_instruction_sets_and_others_are_refused(cpu_adam):
    assert tuple(cpu_adam.ops.supported_isas().split(",")) == cpu_isa.supported_isas()
    for name in ("sse9", "AVX2 ", "neon,avx2"):
        with env.scope(ACCEL_CPU_ISA=name), pytest.raises(EnvironmentValueError, match=r"ACCEL_CPU_ISA.*baseline"):
            HostOp(cpu_adam.ops)
