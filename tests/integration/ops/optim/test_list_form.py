"""The list form: what rides along in the pass, against doing it apart; threads; places in memory."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from op_builder.errors import OpArgumentError
from op_builder.ops.optim.tensor_lists import Pass, TensorLists
from op_builder.system.cpu_isa import supported_isas
from tests.support.list_cases import (
    PACKED,
    STOCHASTIC,
    Case,
    all_cases,
    assert_same_bits,
    assert_unchanged,
    copy_of,
    make,
    storages_of,
    update_apart,
)
from tests.support.optimizer_reference import ADAM, FLOATS, KINDS, Kind, load, threads

OPTIONS = list(ADAM.options.values())
STEP = 3


def check(case: Case, also: Pass, isa: str | None = None, step: int = STEP, count: int = 1) -> None:
    """Raise unless an update has the bits of doing all apart on aligned tensors, and touches nothing else."""
    module, options = load(case.kind, isa), list(case.kind.options.values())
    guarded = make(case)  # not with the threads: torch's own functions differ in the last bit with them
    with threads(count):
        module.update_list(guarded.lists, step, options, also)
    guarded.assert_guards_untouched()
    expected = make(dataclasses.replace(case, offset=0)).lists
    update_apart(module, case, expected, step, options, also)
    assert_same_bits(guarded.lists, expected, case)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("isa", supported_isas())
def test_everything_in_one_pass_is_bit_for_bit_what_it_is_apart(kind: Kind, isa: str) -> None:
    for case in all_cases(kind):
        check(case, case.settings(grad_scale=-0.37, zero_grads=True, seed=11), isa)


lengths = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 1100), st.sampled_from((20_000, 40_000))), max_size=8)
cases = st.sampled_from(KINDS).flatmap(
    lambda kind: st.builds(
        Case,
        param=st.sampled_from(FLOATS),
        grad=st.sampled_from(FLOATS),
        storage=st.sampled_from(storages_of(kind)),
        copy=st.sampled_from((None, *FLOATS)),
        lengths=lengths.map(tuple),
        offset=st.integers(0, 3),
        seed=st.integers(0, 1000),
        kind=st.just(kind),
    )
)
passes = st.fixed_dictionaries(
    {
        "grad_scale": st.floats(-2, 2, width=32),
        "zero_grads": st.booleans(),
        "seed": st.integers(-(2**63), 2**63 - 1),
    }
)


@settings(deadline=None, max_examples=60)
@given(cases, passes, st.integers(1, 2**40), st.integers(1, 4))
def test_any_list_gives_the_bits_of_doing_all_apart(case, arguments, step, count):
    check(case, case.settings(**arguments), None, step, count)


PLACES = (7, 3 << 32, (3 << 32) + 1, 0, -1, 2**63 - 1)


@pytest.mark.parametrize("storage", [STOCHASTIC, PACKED])
def test_random_bits_are_those_of_the_given_places(adam_of_isa, storage):
    case = Case(torch.bfloat16, storage=storage, lengths=(300, 5000, 17, 0, 700, 1))
    also = case.settings(seed=5)
    actual, expected = (make(case).lists._replace(places=PLACES) for _ in range(2))
    adam_of_isa.update_list(actual, STEP, OPTIONS, also)
    update_apart(adam_of_isa, case, expected, STEP, OPTIONS, also)
    assert_same_bits(actual, expected)


@pytest.mark.parametrize("places", [[0], [0, 1, 2]], ids=len)
def test_a_place_for_each_parameter_is_needed(cpu_adam, places):
    given = make(Case(lengths=(300, 20))).lists
    before = copy_of(given)
    lists = given._replace(places=places)
    steps = [torch.tensor(0.0) for _ in range(2)]
    for call in (lambda: cpu_adam.update_list(lists, STEP, OPTIONS), lambda: cpu_adam.prepare(lists, steps)):
        with pytest.raises(OpArgumentError, match=f"2 parameters came with {len(places)} places") as caught:
            call()
        assert caught.value.remedy
    assert_unchanged(given, before)


BAD_LISTS = [
    ("copies", 1, lambda lists: lists.params[1], "copy of tensor 1 shares memory with its param"),
    ("copies", 1, lambda _: torch.zeros(3), "copy of tensor 1 has 3 elements; 20 are required"),
    ("copies", 1, lambda _: torch.zeros(20).double(), "copy of tensor 1 is of type Double"),
    ("scales", 1, lambda _: torch.zeros(2), "scale of tensor 1 has 2 elements; 1 are required for a parameter of 20"),
    ("scales", 1, lambda _: torch.zeros(1).half(), "scale of tensor 1 is of type float16"),
    ("scales", 1, lambda lists: lists.scales[1][1], "scale of tensor 1 shares memory with its scale"),
    ("scales", 0, lambda _: torch.zeros(4)[::2], "scale of tensor 0 is not contiguous"),
    ("states", 1, lambda _: torch.zeros(20), "exp_avg of tensor 1 is of type Float; states with scales are bytes"),
    ("states", 1, lambda _: torch.zeros(20).char(), "exp_avg of tensor 1 is of type Char"),
    ("states", 1, lambda _: torch.zeros(21).byte(), "exp_avg of tensor 1 has 21 elements"),
]


@pytest.mark.parametrize(("role", "place", "spoilt", "text"), BAD_LISTS, ids=[text for *_, text in BAD_LISTS])
def test_lists_that_do_not_fit_are_refused_before_anything_is_written(cpu_adam, role, place, spoilt, text):
    case = Case(storage=PACKED, copy=torch.bfloat16, lengths=(300, 20))
    before, lists = make(case).lists, make(case).lists
    members = getattr(lists, role)
    (members if role == "copies" else members[0])[place] = spoilt(lists)
    with pytest.raises(OpArgumentError, match=text) as caught:
        cpu_adam.update_list(lists, STEP, OPTIONS)
    assert caught.value.remedy
    assert torch.equal(lists.params[0], before.params[0])
    assert torch.equal(lists.states[1][0], before.states[1][0])
    assert torch.equal(lists.copies[0], before.copies[0])


# Memory that two parameters share: two threads would write it.

SHARED = [
    ("params", "params", 2, 0, "param of tensor 2 shares memory with param of tensor 0"),
    ("copies", "params", 0, 2, "param of tensor 2 shares memory with copy of tensor 0"),
    ("grads", "grads", 2, 0, "grad of tensor 2 shares memory with grad of tensor 0"),
    ("second_state", "first_state", 0, 2, "exp_avg of tensor 2 shares memory with exp_avg_sq of tensor 0"),
    ("params", "second_state", 2, 0, "param of tensor 2 shares memory with exp_avg_sq of tensor 0"),
]


def members_of(lists: TensorLists, role: str) -> list[torch.Tensor]:
    """The tensors of a role, which may be one of the states."""
    states = {"first_state": 0, "second_state": 1}
    return lists.states[states[role]] if role in states else getattr(lists, role)


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize(
    ("role", "with_role", "place", "with_place", "text"), SHARED, ids=[case[-1] for case in SHARED]
)
def test_what_two_parameters_write_must_not_be_the_same(
    cpu_adam, role, with_role, place, with_place, text, is_prepared
):
    case = Case(copy=torch.float32, lengths=(300, 20, 300))
    lists = make(case).lists
    memory = torch.ones(900)
    members_of(lists, role)[place] = memory[300:600]
    members_of(lists, with_role)[with_place] = memory[1:301]
    before = copy_of(lists)

    def update(also: Pass) -> None:
        if is_prepared:
            cpu_adam.prepare(lists, [torch.tensor(0.0) for _ in lists.params]).update(OPTIONS, also)
        else:
            cpu_adam.update_list(lists, STEP, OPTIONS, also)

    with pytest.raises(OpArgumentError, match=text) as caught:
        update(Pass(zero_grads=True))
    assert caught.value.remedy
    assert_unchanged(lists, before)
    members_of(lists, role)[place] = torch.ones(300)
    update(Pass(zero_grads=True))


def test_neighbours_in_memory_and_empty_tensors_share_nothing(cpu_adam):
    case = Case(copy=torch.bfloat16, lengths=(300, 0, 20, 0, 300))
    lists, expected = make(case).lists, make(case).lists
    for role in ("params", "grads", "copies"):
        members = getattr(lists, role)
        flat = torch.cat(members)
        members[:] = flat.split(case.lengths)
    also = Pass(zero_grads=True)
    cpu_adam.update_list(lists, STEP, OPTIONS, also)
    cpu_adam.update_list(expected, STEP, OPTIONS, also)
    assert_same_bits(lists, expected)
