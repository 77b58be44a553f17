"""The list form: what is done in the same pass, against doing it apart; places in memory."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from op_builder.ops.optim.tensor_lists import TensorLists
from op_builder.system.cpu_isa import supported_isas
from tests.support.list_cases import (
    PACKED,
    STOCHASTIC,
    Case,
    all_cases,
    assert_same_bits,
    assert_stored,
    make,
    update_apart,
)
from tests.support.optimizer_reference import ADAM, KINDS, Kind, load

OPTIONS = list(ADAM.options.values())
STEP = 3


def updated(case: Case, isa: str) -> TensorLists:
    """The tensors after an update, which does what doing all apart on aligned tensors does and touches nothing else."""
    module, options = load(case.kind, isa), list(case.kind.options.values())
    also = case.settings(grad_scale=-0.37, zero_grads=True, seed=11)
    guarded, expected = make(case), make(dataclasses.replace(case, offset=0)).lists
    module.update_list(guarded.lists, STEP, options, also)
    guarded.assert_guards_untouched()
    new = update_apart(module, case, expected, STEP, options, also)
    assert_stored(guarded.lists, new, case)
    assert_same_bits(guarded.lists._replace(states=(), scales=()), expected._replace(states=(), scales=()), case)
    return guarded.lists


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_everything_in_one_pass_is_what_it_is_apart_with_every_instruction_set(kind: Kind) -> None:
    """And those with a fused multiply-add give the same bits."""
    for case in all_cases(kind):
        _, *fused = [updated(case, isa) for isa in supported_isas()]
        for lists in fused[1:]:
            assert_same_bits(lists, fused[0], case)


PLACES = (7, 3 << 32, (3 << 32) + 1, 0, -1, 2**63 - 1)


@pytest.mark.parametrize("storage", [STOCHASTIC, PACKED])
@pytest.mark.parametrize("places", [PLACES, ()], ids=["given", "indices"])
def test_random_bits_are_those_of_the_places(adam_of_isa, storage, places):
    case = Case(torch.bfloat16, storage=storage, lengths=(300, 5000, 17, 0, 700, 1))
    also = case.settings(seed=5)
    together, alone = make(case).lists, make(case).lists
    adam_of_isa.update_list(together._replace(places=places), STEP, OPTIONS, also)
    for i, place in enumerate(places or range(6)):
        states, scales = ([[each[i]] for each in lists] for lists in (alone.states, alone.scales))
        one = TensorLists([alone.params[i]], [alone.grads[i]], states, scales, (), [place])
        adam_of_isa.update_list(one, STEP, OPTIONS, also)
    assert_same_bits(together, alone)
