"""Tensors that do not fit, in every form of an update: a clear error, no tensor changed, the op usable afterwards."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import pytest
import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.optim.tensor_lists import Pass
from tests.support.fused_cases import FUSED_KINDS, apply
from tests.support.list_cases import PACKED, STOCHASTIC, Case, assert_same_bits, assert_unchanged, copy_of, make
from tests.support.optimizer_reference import (
    ADAM,
    KINDS,
    Kind,
    Tensors,
    as_lists,
    load,
    load_fused,
    make_tensors,
    update_one,
)

OPTIONS = list(ADAM.options.values())

# The forms of an update.


def of_list(kind: Kind, cases: list[Tensors]) -> None:
    load(kind).update_list(as_lists(cases), 3, list(kind.options.values()))


def prepared(kind: Kind, cases: list[Tensors]) -> None:
    steps = [torch.tensor(0.0) for _ in cases]
    load(kind).prepare(as_lists(cases), steps).update(list(map(float, kind.options.values())), Pass())


def of_one(kind: Kind, cases: list[Tensors]) -> None:
    update_one(kind, cases[-1])


def roll_back(kind: Kind, cases: list[Tensors]) -> None:
    update_one(kind, cases[-1], "rollback")


def fused(kind: Kind, cases: list[Tensors]) -> None:
    apply(load_fused(kind), kind, cases)


FORMS = [
    *itertools.product(KINDS, (of_one, of_list, prepared)),
    *itertools.product(FUSED_KINDS, (fused,)),
    (ADAM, roll_back),
]

# What is done to the tensor of a role among a parameter's tensors.

Spoil = Callable[[dict[str, torch.Tensor], str], object]


def changed(change: Callable[[torch.Tensor], object]) -> Spoil:
    return lambda tensors, role: tensors.update({role: change(tensors[role])})


def shrunk(left: int, begin: int = 0) -> Spoil:
    """In a storage of ``left`` bytes: sizes of tensors stay when their storage is resized."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        whole = torch.cat([torch.zeros(begin), tensor])
        tensor = whole[begin:]
        whole.untyped_storage().resize_(left)
        return tensor

    return changed(change)


def share(tensors: dict[str, torch.Tensor], role: str) -> None:
    storage = torch.rand(40)
    tensors["param"], tensors[role] = storage[:24], storage[16:]


OF_ANY_ROLE = [
    (changed(lambda x: x.to("meta")), "is on device meta"),
    (changed(lambda x: x.to_sparse()), "has layout torch.sparse_coo"),
    (changed(lambda x: x.repeat(2)[::2]), "is not contiguous"),
    (changed(lambda x: x.double()), "is of type Double"),
    (changed(lambda x: x.int()), "is of type Int"),
    (changed(lambda x: x.tolist()), "is of type list"),
    (changed(lambda _: None), "is of type NoneType"),
    (shrunk(0), "reaches to byte 96 of its storage, which has 0 bytes"),
    (shrunk(0, 3), "reaches to byte 108 of its storage, which has 0 bytes"),
    (shrunk(95), "reaches to byte 96 of its storage, which has 95 bytes"),
    (shrunk(4, 24), "reaches to byte 192 of its storage, which has 4 bytes"),
]
BUT_OF_PARAMS = [
    (changed(lambda x: x[:-1].clone()), "has 23 elements; 24 are required"),
    (share, "shares memory with its param"),
]
OF_STATES = [(changed(lambda x: x.bfloat16()), "is of type bfloat16"), (changed(torch._neg_view), "is a lazy negation")]


def refused(kind: Kind, form: Callable[..., None], role: str, spoil: Spoil, text: str) -> None:
    """Raise unless an update with a spoilt tensor is refused and changes no tensor; pytest shows the arguments."""
    cases = [make_tensors(kind, 24, seed=i) for i in range(3)]
    before = [case.clone() for case in cases]
    tensors = dict(zip(kind.roles, cases[2], strict=True))
    spoil(tensors, role)
    spoilt = Tensors(tensors["param"], tensors["grad"], tuple(tensors[name] for name in kind.states))
    place = 0 if form in (of_one, roll_back) else 2
    with pytest.raises(OpArgumentError, match=f"{role} of tensor {place} {text}") as caught:
        form(kind, [*cases[:2], spoilt])
    assert caught.value.remedy
    assert ("resize_(" in caught.value.remedy) == ("reaches" in text)
    for case, old in zip(cases, before, strict=True):
        assert all(map(torch.equal, case, old))


@pytest.mark.parametrize(("kind", "form"), FORMS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_tensor_that_does_not_fit_is_refused_and_no_tensor_is_changed(kind: Kind, form: Callable[..., None]) -> None:
    for role, (spoil, text) in (
        *itertools.product(kind.roles, OF_ANY_ROLE),
        *itertools.product(kind.roles[1:], BUT_OF_PARAMS),
        *itertools.product(kind.states, OF_STATES),
    ):
        refused(kind, form, role, spoil, text)
    form(kind, [make_tensors(kind, 24)])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_types_of_states_that_do_not_fit_together_are_refused(kind: Kind) -> None:
    tensors = make_tensors(kind, 24)
    if len(kind.states) > 1:
        mixed = Tensors(tensors.param.half(), tensors.grad, (tensors.states[0].half(), *tensors.states[1:]))
        with pytest.raises(OpArgumentError, match=f"{kind.states[0]} and {kind.states[1]}"):
            of_list(kind, [mixed])
    with pytest.raises(OpArgumentError, match="only bfloat16"):
        load(kind).update_list(as_lists([tensors]), 1, list(kind.options.values()), Pass(stochastic=True))


def test_what_is_behind_the_end_of_a_shrunk_storage_may_be_gone() -> None:
    """The tensor itself is whole."""
    whole, tensors = torch.zeros(124), make_tensors(ADAM, 24)
    whole.untyped_storage().resize_(24 * 4)
    of_one(ADAM, [Tensors(whole[:24], tensors.grad, tensors.states)])
    empty = [torch.zeros(9)[5:5] for _ in ADAM.roles]
    for tensor in empty:
        tensor.untyped_storage().resize_(0)
    of_one(ADAM, [Tensors(empty[0], empty[1], (empty[2], empty[3]))])


# What only lists have -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.packs], ids=str)
@pytest.mark.parametrize("storage", [STOCHASTIC, PACKED])
def test_packed_states_are_refused_where_there_are_none_and_the_remedy_is_named(kind: Kind, storage: str) -> None:
    case = Case(storage=storage, lengths=(300,), kind=kind)
    lists = make(case)
    before = copy_of(lists)
    with pytest.raises(OpArgumentError, match="states in bytes") as caught:
        load(kind).update_list(lists, 1, list(kind.options.values()), case.settings())
    assert "stochastic=False" in caught.value.remedy
    assert_unchanged(lists, before)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda lists: lists._replace(states=[]), "0 lists of states were given"),
        (lambda lists: lists._replace(states=lists.states[:1]), "1 lists of states were given"),
        (lambda lists: lists._replace(grads=lists.grads[:1]), "2 parameters came with 1 grad tensors"),
        (lambda lists: lists._replace(places=[0]), "2 parameters came with 1 places"),
        (lambda lists: lists._replace(places=[0, 1, 2]), "2 parameters came with 3 places"),
        (list, "tensors is of type list"),
    ],
)
def test_lists_that_do_not_fit_together_are_refused(cpu_adam, change, text: str) -> None:
    given = make(Case(lengths=(300, 20)))
    before, lists = copy_of(given), change(given)
    for call in (cpu_adam.update_list, lambda lists, *_: cpu_adam.prepare(lists, [torch.tensor(0.0)] * 2)):
        with pytest.raises(OpArgumentError, match=text) as caught:
            call(lists, 3, OPTIONS)
        assert caught.value.remedy
    assert_unchanged(given, before)


BAD_LISTS = [
    ("copies", 1, lambda lists: lists.params[1], "copy of tensor 1 shares memory with its param"),
    ("copies", 1, lambda _: torch.zeros(3), "copy of tensor 1 has 3 elements; 20 are required"),
    ("copies", 1, lambda _: torch.zeros(20).double(), "copy of tensor 1 is of type Double"),
    ("states", 1, lambda _: torch.zeros(20), "exp_avg and exp_avg_sq of tensor 1 are of different types"),
    ("states", 1, lambda _: torch.zeros(21).char(), "exp_avg of tensor 1 is of type Char"),
    ("states", 1, lambda _: torch.zeros(20).byte(), "exp_avg of tensor 1 has 20 elements; 21 are required"),
    ("states", 1, lambda lists: lists.states[1][1], "exp_avg_sq of tensor 1 shares memory with its exp_avg"),
]


@pytest.mark.parametrize(("role", "place", "spoilt", "text"), BAD_LISTS, ids=[text for *_, text in BAD_LISTS])
def test_copies_and_8bit_states_that_do_not_fit_are_refused(cpu_adam, role, place, spoilt, text) -> None:
    case = Case(storage=PACKED, copy=torch.bfloat16, lengths=(300, 20))
    lists = make(case)
    members = getattr(lists, role)
    (members if role == "copies" else members[0])[place] = spoilt(lists)
    before = copy_of(lists)
    with pytest.raises(OpArgumentError, match=text) as caught:
        cpu_adam.update_list(lists, 3, OPTIONS)
    assert caught.value.remedy
    assert_unchanged(lists, before)


# Memory that two parameters share: two threads would write it.

SHARED = [
    ("params", "params", 2, 0, "param of tensor 2 shares memory with param of tensor 0"),
    ("copies", "params", 0, 2, "param of tensor 2 shares memory with copy of tensor 0"),
    ("grads", "grads", 2, 0, "grad of tensor 2 shares memory with grad of tensor 0"),
    ("exp_avg_sq", "exp_avg", 0, 2, "exp_avg of tensor 2 shares memory with exp_avg_sq of tensor 0"),
    ("params", "exp_avg_sq", 2, 0, "param of tensor 2 shares memory with exp_avg_sq of tensor 0"),
]


@pytest.mark.parametrize(
    ("role", "with_role", "place", "with_place", "text"), SHARED, ids=[case[-1] for case in SHARED]
)
def test_what_two_parameters_write_must_not_be_the_same(cpu_adam, role, with_role, place, with_place, text) -> None:
    lists = make(Case(copy=torch.float32, lengths=(300, 20, 300)))
    members = {**lists._asdict(), **dict(zip(ADAM.states, lists.states, strict=True))}
    memory = torch.ones(900)
    members[role][place] = memory[300:600]
    members[with_role][with_place] = memory[1:301]
    before = copy_of(lists)
    prepared = cpu_adam.prepare(lists, [torch.tensor(0.0) for _ in lists.params])
    for update in (prepared.update, functools.partial(cpu_adam.update_list, lists, 3)):
        with pytest.raises(OpArgumentError, match=text) as caught:
            update(OPTIONS, Pass(zero_grads=True))
        assert caught.value.remedy
    assert_unchanged(lists, before)
    members[role][place] = torch.ones(300)
    cpu_adam.update_list(lists, 3, OPTIONS, Pass(zero_grads=True))


def test_neighbours_in_memory_and_empty_tensors_share_nothing(cpu_adam) -> None:
    case = Case(copy=torch.bfloat16, lengths=(300, 0, 20, 0, 300))
    lists, expected = make(case), make(case)
    for role in ("params", "grads", "copies"):
        members = getattr(lists, role)
        members[:] = torch.cat(members).split(case.lengths)
    for each in (lists, expected):
        cpu_adam.update_list(each, 3, OPTIONS, Pass(zero_grads=True))
    assert_same_bits(lists, expected)
