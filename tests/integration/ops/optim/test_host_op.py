"""The functions of one tensor of the ops on host tensors, and numbers that are out of range."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch

from op_builder import env
from op_builder.errors import EnvironmentValueError, OpArgumentError
from op_builder.ops.optim.host_op import HostOp
from op_builder.system import cpu_isa
from tests.support.optimizer_reference import ADAM, KINDS, SGD, Kind, as_lists, load, make_tensors, update

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


class Single:
    """The functions of one tensor of an optimizer, with ids of their own."""

    def __init__(self, kind: Kind, **fixed: Any) -> None:
        self.kind = kind
        module = HostOp(load(kind).ops)
        self.create = getattr(module, f"create_{kind.name}")
        self.destroy = getattr(module, f"destroy_{kind.name}")
        self.update = getattr(module, f"{kind.name}_update")
        self.create(0, **fixed)

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """Good arguments of an update, but for ``changes``."""
        tensors = dict(zip(self.kind.roles, make_tensors(self.kind, 24), strict=True))
        return {"optimizer_id": 0, "step": 3, **self.kind.of_one, **tensors, **changes}

    def refuses(self, text: str, **changes: Any) -> None:
        """Raise unless an update with ``changes`` is refused with a remedy and changes no tensor."""
        arguments, good = self.arguments(**changes), self.arguments()
        with pytest.raises(OpArgumentError, match=text) as caught:
            self.update(**arguments)
        assert caught.value.remedy
        assert all(torch.equal(arguments[role], good[role]) for role in self.kind.roles)
        self.update(**good)


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
    single = Single(kind, **fixed)
    arguments = single.arguments()
    expected = update(load(kind), make_tensors(kind, 24), {**kind.options, **fixed})
    single.update(*arguments.values())  # by position
    assert all(torch.equal(arguments[role], tensor) for role, tensor in zip(kind.roles, expected, strict=True))


@pytest.mark.parametrize("change", [{"momentum": 0.0}, {"dampening": 0.5}], ids=str)
def test_nesterov_without_momentum_or_with_dampening_is_refused(change):
    Single(SGD, nesterov=True).refuses("nesterov=True was given with", **change)
    with pytest.raises(OpArgumentError, match="nesterov=True was given with"):
        Single(SGD, nesterov=True, **change)


@every_kind
def test_numbers_out_of_range_are_refused(kind):
    single = Single(kind)
    bad = [(value, "{name} is {value}") for value in (math.nan, math.inf, -0.1)]
    bad += [(value, "not a number") for value in ("fast", None, torch.ones(2))]
    for name in (name for name, number in single.arguments().items() if isinstance(number, float)):
        for value, text in [*bad, *([(1.0, "{name} is 1.0")] if name.startswith("beta") else [])]:
            single.refuses(text.format(name=name, value=value), **{name: value})
            with pytest.raises(OpArgumentError, match=text.format(name=name, value=value)):
                single.create(1, **{"alpha" if name == "lr" else name: value})
    single.create(1)
    for step in (0, -3, 1.5, "1", None, True):
        single.refuses("step is", step=step)


@every_kind
def test_a_wrong_count_of_options_is_refused(kind):
    with pytest.raises(OpArgumentError) as caught:
        load(kind).update_list(as_lists([make_tensors(kind, 24)]), 1, [0.1])
    assert caught.value.remedy == f"Pass {len(kind.options)} numbers."
    assert tuple(kind.options) == load(kind).options
    assert kind.states == load(kind).states


@every_kind
def test_an_id_is_used_once_and_free_after_destroy(kind):
    single = Single(kind)
    with pytest.raises(OpArgumentError, match="id 0 is in use") as caught:
        single.create(0)
    assert f"destroy_{kind.name}" in caught.value.remedy
    single.destroy(0)
    for call in (lambda: single.destroy(0), lambda: single.update(**single.arguments())):
        with pytest.raises(OpArgumentError, match="optimizer with id 0"):
            call()
    single.create(0)
    single.update(**single.arguments())


@pytest.mark.parametrize("value", [True, "1", None, 1.0, []])
def test_an_id_is_an_int(value):
    single = Single(ADAM)
    for call in (single.create, single.destroy, lambda value: single.update(**single.arguments(optimizer_id=value))):
        with pytest.raises(OpArgumentError) as caught:
            call(value)
        assert f"optimizer_id is {value!r}, which is not an int" in str(caught.value)
        assert isinstance(caught.value, ValueError)


def test_create_logs_only_when_asked(caplog):
    single = Single(ADAM)
    with caplog.at_level("INFO", logger="op_builder"):
        single.create(1)
        assert not caplog.records
        single.create(2, should_log=True)
    assert "lr=0.001" in caplog.text


def test_the_learning_rate_may_be_a_tensor_of_one_element():
    single = Single(ADAM)
    given, same = single.arguments(lr=torch.tensor(0.25)), single.arguments(lr=0.25)
    single.update(**given)
    single.update(**same)
    assert torch.equal(given["param"], same["param"])


def test_binding_and_python_see_the_same_instruction_sets_and_others_are_refused(cpu_adam):
    assert tuple(cpu_adam.ops.supported_isas().split(",")) == cpu_isa.supported_isas()
    for name in ("sse9", "AVX2 ", "neon,avx2"):
        with env.scope(ACCEL_CPU_ISA=name), pytest.raises(EnvironmentValueError, match=r"ACCEL_CPU_ISA.*baseline"):
            HostOp(cpu_adam.ops)


@every_kind
def test_empty_lists_and_tensors_do_nothing(kind):
    load(kind).update_list(as_lists([make_tensors(kind, 0)]), 1, list(kind.options.values()))
    Single(kind).update(**Single(kind).arguments(**dict.fromkeys(kind.roles, torch.empty(0))))
