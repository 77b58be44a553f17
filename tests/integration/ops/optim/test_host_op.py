"""The ops of all optimizers on host tensors: schemas, the functions of one tensor, bad input."""

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
from op_builder.ops.optim.tensor_lists import Pass, TensorLists
from tests.support.list_cases import AS_PARAM, PACKED, STOCHASTIC, Case, make
from tests.support.optimizer_reference import (
    ADAM,
    KINDS,
    SGD,
    Kind,
    Tensors,
    as_lists,
    load,
    make_tensors,
    update,
)

every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)

#: The functions of one tensor; those of Adam, Adagrad and Lion are fixed by the interface, the others are like them.
SIGNATURES = {
    "create_adam": (
        "optimizer_id alpha=0.001 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.0 adamw_mode=True should_log=False"
    ),
    "adam_update": "optimizer_id step lr beta1 beta2 eps weight_decay bias_correction param grad exp_avg exp_avg_sq",
    "create_amsgrad": (
        "optimizer_id alpha=0.001 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.0 adamw_mode=True should_log=False"
    ),
    "amsgrad_update": (
        "optimizer_id step lr beta1 beta2 eps weight_decay bias_correction param grad exp_avg exp_avg_sq max_exp_avg_sq"
    ),
    "create_adagrad": "optimizer_id alpha=0.01 eps=1e-08 weight_decay=0.0 should_log=False",
    "adagrad_update": "optimizer_id step lr eps weight_decay param grad exp_avg_sq",
    "create_lion": "optimizer_id alpha=0.001 beta1=0.9 beta2=0.999 weight_decay=0.0 should_log=False",
    "lion_update": "optimizer_id step lr beta1 beta2 weight_decay param grad exp_avg",
    "create_lamb": "optimizer_id alpha=0.001 beta1=0.9 beta2=0.999 eps=1e-06 weight_decay=0.0 should_log=False",
    "lamb_update": ("optimizer_id step lr beta1 beta2 eps weight_decay bias_correction param grad exp_avg exp_avg_sq"),
    "create_sgd": (
        "optimizer_id alpha=0.001 momentum=0.9 dampening=0.0 weight_decay=0.0 nesterov=False should_log=False"
    ),
    "sgd_update": "optimizer_id step lr momentum dampening weight_decay param grad momentum_buffer",
}


class Single:
    """The functions of one tensor of an optimizer, with an id of its own."""

    def __init__(self, kind: Kind, **fixed: Any) -> None:
        self.kind = kind
        shared = load(kind)
        self.module: HostOp = type(shared)(shared.ops)
        self.create(0, **fixed)

    @property
    def create(self) -> Callable[..., None]:
        return getattr(self.module, f"create_{self.kind.name}")

    @property
    def destroy(self) -> Callable[..., None]:
        return getattr(self.module, f"destroy_{self.kind.name}")

    @property
    def update(self) -> Callable[..., None]:
        return getattr(self.module, f"{self.kind.name}_update")

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """Good arguments of an update, but for ``changes``."""
        left_out = (*self.kind.fixed, *self.kind.unnamed)
        options = {name: value for name, value in self.kind.options.items() if name not in left_out}
        tensors = dict(zip(self.kind.roles, make_tensors(self.kind, 24), strict=True))
        return {"optimizer_id": 0, "step": 3, **options, **tensors, **changes}

    def refuses(self, text: str, **changes: Any) -> None:
        """Raise unless an update with ``changes`` is refused with a remedy and changes no tensor."""
        arguments = self.arguments(**changes)
        tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
        before = {name: value.clone() for name, value in tensors.items()}
        with pytest.raises(OpArgumentError, match=text) as caught:
            self.update(**arguments)
        assert caught.value.remedy
        for name, value in before.items():
            if value.device.type == "cpu":
                assert torch.equal(tensors[name].to_dense(), value.to_dense())
        self.update(**self.arguments())


@pytest.mark.parametrize("name", SIGNATURES)
def test_functions_of_one_tensor_take_what_the_interface_says(name):
    (kind,) = (kind for kind in KINDS if kind.name in name)
    parameters = list(inspect.signature(getattr(load(kind), name)).parameters.values())
    said = [
        parameter.name if parameter.default is inspect.Parameter.empty else f"{parameter.name}={parameter.default}"
        for parameter in parameters
    ]
    assert " ".join(said) == SIGNATURES[name]
    for arguments, keywords in (((), {}), ((1,) * 20, {}), ((1,), {"optimizer_id": 1}), ((1,), {"other": 1})):
        with pytest.raises(TypeError, match=rf"{name}\(\) takes \(optimizer_id, "):
            getattr(load(kind), name)(*arguments, **keywords)


@every_kind
def test_a_function_of_one_tensor_does_what_the_list_form_does(kind):
    single = Single(kind)
    arguments = single.arguments()
    expected = update(load(kind), make_tensors(kind, 24), kind.options)
    single.update(*arguments.values())  # by position
    actual = Tensors(*(arguments[name] for name in ("param", "grad")), tuple(arguments[name] for name in kind.states))
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


@pytest.mark.parametrize("change", [{"momentum": 0.0}, {"dampening": 0.5}], ids=str)
def test_nesterov_without_momentum_or_with_dampening_is_refused(change):
    Single(SGD, nesterov=True).refuses("nesterov=True was given with", **change)
    with pytest.raises(OpArgumentError, match="nesterov=True was given with"):
        Single(SGD, nesterov=True, **change)


def test_the_id_fixes_nesterov():
    single = Single(SGD, nesterov=True)
    arguments = single.arguments()
    expected = update(load(SGD), make_tensors(SGD, 24), {**SGD.options, "nesterov": True})
    single.update(**arguments)
    assert torch.equal(arguments["param"], expected.param)


BAD_NUMBERS = [
    *((value, "{name} is {value}") for value in (math.nan, math.inf, -0.1)),
    *((value, "not a number") for value in ("fast", None, torch.ones(2))),
]


@every_kind
@pytest.mark.parametrize(("value", "text"), BAD_NUMBERS, ids=lambda value: str(value)[:10])
def test_numbers_out_of_range_are_refused(kind, value, text):
    single = Single(kind)
    for name, number in single.arguments().items():
        if isinstance(number, float):
            single.refuses(text.format(name=name, value=value), **{name: value})
            with pytest.raises(OpArgumentError, match=text.format(name=name, value=value)):
                single.create(1, **{"alpha" if name == "lr" else name: value})
    single.create(1)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "beta1" in kind.options], ids=str)
@pytest.mark.parametrize("beta", ["beta1", "beta2"])
def test_a_beta_is_below_one(kind, beta):
    Single(kind).refuses(f"{beta} is 1.0", **{beta: 1.0})


@every_kind
def test_a_step_counts_from_one(kind):
    for step in (0, -3, 1.5, "1", None, True):
        Single(kind).refuses("step is", step=step)


BAD_TENSORS = {
    "meta": (lambda x: x.to("meta"), "is on device meta"),
    "sparse": (lambda x: x.to_sparse(), "has layout torch.sparse_coo"),
    "strided": (lambda x: x.repeat(2)[::2], "is not contiguous"),
    "double": (lambda x: x.double(), "is of type Double"),
    "int": (lambda x: x.to(torch.int32), "is of type Int"),
    "list": (lambda x: x.tolist(), "is of type list"),
    "none": (lambda _: None, "is of type NoneType"),
}


@every_kind
@pytest.mark.parametrize(("change", "text"), BAD_TENSORS.values(), ids=BAD_TENSORS)
def test_tensors_that_do_not_fit_are_refused(kind, change, text):
    for role, tensor in zip(kind.roles, make_tensors(kind, 24), strict=True):
        Single(kind).refuses(f"{role} of tensor 0 {text}", **{role: change(tensor)})


@every_kind
def test_tensors_of_unequal_length_or_in_one_memory_are_refused(kind):
    tensors = dict(zip(kind.roles, make_tensors(kind, 24), strict=True))
    storage = torch.rand(40)
    for role in kind.roles[1:]:
        Single(kind).refuses(f"{role} of tensor 0 has 23 elements", **{role: tensors[role][:-1].clone()})
        Single(kind).refuses(
            f"{role} of tensor 0 shares memory with its param", **{"param": storage[:24], role: storage[16:]}
        )


@every_kind
def test_states_of_other_types_are_refused(kind):
    tensors = dict(zip(kind.roles, make_tensors(kind, 24), strict=True))
    for role in kind.states:
        Single(kind).refuses(f"{role} of tensor 0 is of type bfloat16", **{role: tensors[role].bfloat16()})
    if len(kind.states) > 1:
        half = {role: tensors[role].bfloat16() for role in ("param", kind.states[0])}
        Single(kind).refuses(f"{kind.states[0]} and {kind.states[1]} of tensor 0 are of different types", **half)
    lists = as_lists([make_tensors(kind, 24)])
    with pytest.raises(OpArgumentError, match="is of type float32; only bfloat16 is rounded at random"):
        load(kind).update_list(lists, 1, list(kind.options.values()), Pass(stochastic=True))


@every_kind
def test_one_bad_tensor_in_a_list_leaves_all_others_untouched(kind):
    members = [make_tensors(kind, 24) for _ in range(5)]
    before = [one.clone() for one in members]
    bad = Tensors(members[4].param, members[4].grad, tuple(state.double() for state in members[4].states))
    with pytest.raises(OpArgumentError, match=f"{kind.states[0]} of tensor 4"):
        load(kind).update_list(as_lists([*members[:4], bad]), 1, list(kind.options.values()))
    for one, other in zip(members, before, strict=True):
        assert all(map(torch.equal, one, other))


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


@pytest.mark.parametrize("name", ["sse9", "AVX2 ", "neon,avx2"])
def test_an_unknown_instruction_set_is_refused_with_the_allowed_ones(name):
    with (
        env.scope(ACCEL_CPU_ISA=name),
        pytest.raises(EnvironmentValueError, match=r"ACCEL_CPU_ISA.*baseline"),
    ):
        HostOp(load(ADAM).ops)


@pytest.mark.parametrize(
    ("lists", "text"),
    [
        (TensorLists([], [], [[]]), "1 lists of states were given"),
        (TensorLists([], [], []), "0 lists of states were given"),
        (TensorLists([], [], [[], []], scales=[[]]), "1 lists of scales were given"),
    ],
)
def test_every_state_has_a_list(lists, text):
    with pytest.raises(OpArgumentError, match=text) as caught:
        load(ADAM).update_list(lists, 1, list(ADAM.options.values()))
    assert caught.value.remedy == "Pass 2: exp_avg, exp_avg_sq."


@pytest.mark.parametrize("role", ADAM.roles)
@pytest.mark.parametrize(("left", "begin"), [(0, 0), (0, 3), (95, 0), (4, 24)])
def test_memory_that_was_freed_or_shrunk_is_refused(role, left, begin):
    """Sizes of tensors stay when their storage is resized."""
    single = Single(ADAM)
    given = single.arguments()
    whole = torch.cat([torch.zeros(begin), given[role]])
    given[role] = whole[begin:]
    before = {name: given[name].clone() for name in ADAM.roles}
    whole.untyped_storage().resize_(left)
    tensors = Tensors(given["param"], given["grad"], tuple(given[name] for name in ADAM.states))
    end = (begin + 24) * 4
    for call in (
        lambda: single.update(**given),
        lambda: single.module.adam_rollback(**given),
        lambda: single.module.update_list(as_lists([tensors]), 1, list(ADAM.options.values())),
    ):
        with pytest.raises(OpArgumentError, match=f"reaches to byte {end} of its storage, which has {left} bytes") as e:
            call()
        assert "llocate it again" in e.value.remedy
        assert f"resize_({end})" in e.value.remedy
    whole.untyped_storage().resize_(end)
    given[role].copy_(before[role])
    assert all(torch.equal(given[name], before[name]) for name in ADAM.roles)
    single.update(**given)


def test_what_is_behind_the_end_of_a_shrunk_storage_may_be_gone():
    """The tensor itself is whole."""
    single = Single(ADAM)
    whole = torch.zeros(124)
    whole.untyped_storage().resize_(24 * 4)
    single.update(**single.arguments(param=whole[:24]))
    empty = {role: torch.zeros(9)[5:5] for role in ADAM.roles}
    for tensor in empty.values():
        tensor.untyped_storage().resize_(0)
    single.update(**single.arguments(**empty))


@every_kind
def test_empty_lists_and_tensors_do_nothing(kind):
    load(kind).update_list(as_lists([make_tensors(kind, 0)]), 1, list(kind.options.values()))
    Single(kind).update(**Single(kind).arguments(**dict.fromkeys(kind.roles, torch.empty(0))))


@pytest.mark.parametrize(
    ("kind", "storage"), [*((kind, AS_PARAM) for kind in KINDS), (ADAM, PACKED), (ADAM, STOCHASTIC)], ids=str
)
def test_opcheck_of_the_update(kind, storage):
    case = Case(torch.bfloat16, torch.bfloat16, storage, torch.bfloat16, (17, 0, 300), kind=kind)
    settings = case.settings(grad_scale=-0.5, zero_grads=True, seed=3).positional()
    options = [float(value) for value in kind.options.values()]
    arguments = (*make(case).lists.positional(), 3, options, *settings, load(kind).isa)
    torch.library.opcheck(load(kind).ops.update.default, arguments)
    torch.library.opcheck(load(kind).ops.update.default, (*arguments, [5 + (1 << 32), 6, 7]))
