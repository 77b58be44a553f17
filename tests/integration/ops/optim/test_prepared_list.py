"""Prepared lists: the bits of the list form, tensors looked at anew in every update, steps counted."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.optim.tensor_lists import Pass, TensorLists
from tests.support.list_cases import (
    AS_PARAM,
    FLOAT32,
    FLOATS,
    PACKED,
    STOCHASTIC,
    STORAGES,
    Case,
    assert_same_bits,
    make,
)
from tests.support.optimizer_reference import ADAM, KINDS, load

OPTIONS = list(ADAM.options.values())
SMALL = (0, 1, 17, 300)


def steps_of(count: int) -> list[torch.Tensor]:
    return [torch.tensor(0.0) for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("storage", [FLOAT32, AS_PARAM])
def test_parameters_may_be_at_different_steps(kind, storage):
    """Each is updated as at its own step; nothing is random here, so its place does not count."""
    done = (0, 5, 5, 1, 0)
    case = Case(torch.bfloat16, storage=storage, lengths=(17, 600, 0, 300, 40_000), kind=kind)
    kept, alone, options = make(case), make(case), list(map(float, kind.options.values()))
    steps = [torch.full((1,) * i, step, dtype=torch.float32) for i, step in enumerate(done)]
    prepared = load(kind).prepare(kept, steps)
    for update in (1, 2):
        prepared.update(options, Pass())
        for i, before in enumerate(done):
            one = TensorLists([alone.params[i]], [alone.grads[i]], [[state[i]] for state in alone.states])
            load(kind).update_list(one, before + update, options)
        assert_same_bits(kept, alone)
        assert [int(step) for step in steps] == [before + update for before in done]


@pytest.mark.parametrize("storage", [STOCHASTIC, PACKED])
def test_random_bits_are_those_of_the_parameters_own_step(cpu_adam, storage):
    case = Case(storage=storage, lengths=(2000, 2000))
    kept = make(case)
    cpu_adam.prepare(kept, [torch.tensor(4.0), torch.tensor(6.0)]).update(OPTIONS, case.settings(seed=2))
    for place, step in enumerate((5, 7)):
        expected = make(case)
        cpu_adam.update_list(expected, step, OPTIONS, case.settings(seed=2))
        assert torch.equal(kept.states[0][place], expected.states[0][place])


@pytest.mark.parametrize("lengths", [SMALL, (5,) * 700], ids=["few", "on all threads"])
def test_memory_that_moved_is_noticed(adam_of_isa, lengths):
    case = Case(torch.bfloat16, torch.bfloat16, FLOAT32, torch.float32, lengths)
    lists, expected = make(case), make(case)
    prepared = adam_of_isa.prepare(lists, steps_of(len(lengths)))
    for step, each in enumerate(([], lists.params, lists.grads, *lists.states, lists.copies), start=1):
        members = each[-4:]
        old = [tensor.data for tensor in members]
        kept = [tensor.clone() for tensor in old]
        for tensor in members:
            tensor.data = tensor.data.clone()
        prepared.update(OPTIONS, Pass())
        adam_of_isa.update_list(expected, step, OPTIONS)
        assert_same_bits(lists, expected)
        assert all(map(torch.equal, old, kept))


ROLES = ("param", "grad", "exp_avg", "exp_avg_sq", "copy", "step")


def data(change):
    """Give the tensor other memory."""
    return lambda _prepared, lists, tensor: setattr(tensor, "data", change(lists))


def new_grad(change):
    """Replace the gradient."""
    return lambda prepared, lists, _tensor: prepared.replace_grads([*lists.grads[:3], change(lists)])


def storage(*sizes):
    """Resize the tensor's storage: one that is freed and allocated again a bit smaller often has the same address."""

    def spoil(_prepared, _lists, tensor):
        size = tensor.untyped_storage().nbytes()
        for left in sizes:
            tensor.untyped_storage().resize_(left % size)

    return spoil


NO_COUNTS = [
    *((torch.tensor(value), "step of tensor 3 is") for value in (-1.0, 0.5, math.nan, math.inf, 2.0**54)),
    *(
        (step, "step of tensor 3 is not a tensor of one float32")
        for step in (torch.tensor(0), torch.zeros(2), torch.zeros(0), torch.tensor(0.0).half())
    ),
]
SPOILT = [
    *(("step", data(lambda _, step=step: step), text) for step, text in NO_COUNTS),
    ("param", data(lambda _: torch.zeros(299)), "grad of tensor 3 has 300 elements; 299 are required"),
    ("param", data(lambda _: torch.zeros(300).double()), "param of tensor 3 is of type Double"),
    ("param", data(lambda lists: lists.grads[3].data), "grad of tensor 3 shares memory"),
    ("exp_avg", lambda _prepared, _lists, tensor: tensor.resize_(299), "exp_avg of tensor 3 has 299 elements"),
    ("grad", new_grad(lambda _: torch.zeros(299)), "grad of tensor 3 has 299 elements; 300 are required"),
    ("grad", new_grad(lambda _: torch.zeros(300).double()), "grad of tensor 3 is of type Double"),
    ("grad", new_grad(lambda _: torch.zeros(600)[::2]), "grad of tensor 3 is not contiguous"),
    ("grad", new_grad(lambda lists: lists.params[3].data), "grad of tensor 3 shares memory with its param"),
    ("grad", new_grad(lambda lists: lists.states[1][3]), "exp_avg_sq of tensor 3 shares memory with its grad"),
    *((role, storage(0), f"{role} of tensor 3 reaches to byte .* has 0 bytes") for role in ROLES),
    *((role, storage(0, 1, -1), f"{role} of tensor 3 reaches to byte (1200|4) .* (1199|3) bytes") for role in ROLES),
]


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(("role", "spoil", "text"), SPOILT, ids=[text for *_, text in SPOILT])
def test_what_does_not_fit_is_refused_before_anything_is_written_until_it_is_repaired(
    cpu_adam, role, spoil, text, is_known
):
    lists = make(Case(copy=torch.float32, lengths=SMALL))
    steps = steps_of(4)
    members = (lists.params, lists.grads, *lists.states, lists.copies, steps)
    for tensor in itertools.chain(*members):
        tensor.data = tensor.clone()  # in a storage of its own
    prepared = cpu_adam.prepare(lists, steps)
    if is_known:  # then only what has changed is looked at
        prepared.update(OPTIONS, Pass())
    spoilt = members[ROLES.index(role)][3]
    others = [tensor for tensor in itertools.chain(*members) if tensor is not spoilt]
    before = [tensor.clone() for tensor in others]
    whole, values, size = spoilt.data, spoilt.clone(), spoilt.nbytes
    spoil(prepared, lists, spoilt)
    for _ in range(2):  # a refusal leaves nothing half checked
        with pytest.raises(OpArgumentError, match=text):
            prepared.update(OPTIONS, Pass())
    if role == "grad" and "elements" not in text and "shares" not in text:
        with pytest.raises(OpArgumentError, match=text):
            prepared.grad_norm()
    assert all(map(torch.equal, others, before))
    whole.untyped_storage().resize_(size)
    spoilt.data = whole.copy_(values)
    if role == "grad":
        prepared.replace_grads(lists.grads)
    prepared.update(OPTIONS, Pass())
    assert all(step == 1 + is_known for step in steps)


def test_other_settings_are_checked_anew(cpu_adam):
    case = Case(torch.bfloat16, torch.bfloat16, AS_PARAM, lengths=(2000,))
    lists, expected = make(case), make(case)
    prepared = cpu_adam.prepare(lists, steps_of(1))
    for step, stochastic in enumerate((False, True, True, False), start=1):
        prepared.update(OPTIONS, Pass(stochastic=stochastic, seed=3))
        cpu_adam.update_list(expected, step, OPTIONS, Pass(stochastic=stochastic, seed=3))
        assert_same_bits(lists, expected)


@pytest.mark.parametrize(
    ("grads", "text"),
    [
        ([torch.zeros(17)], "2 parameters came with 1 grad tensors"),
        ([torch.zeros(17), torch.zeros(300, device="meta")], "grad of tensor 1 is on device meta"),
        ([torch.zeros(17), None], "grad of tensor 1 is of type NoneType"),
    ],
)
def test_gradients_that_cannot_be_taken_are_refused_at_once(cpu_adam, grads, text):
    lists, expected = make(Case(lengths=(17, 300))), make(Case(lengths=(17, 300)))
    prepared = cpu_adam.prepare(lists, steps_of(2))
    with pytest.raises(OpArgumentError, match=text):
        prepared.replace_grads(grads)
    prepared.update(OPTIONS, Pass())  # with those it had
    cpu_adam.update_list(expected, 1, OPTIONS)
    assert_same_bits(lists, expected)
    assert prepared.replace_grads([torch.ones(17), torch.ones(600)[::2]]) == [1]  # which is not contiguous


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("lengths", [SMALL, (5,) * 700], ids=["few", "on all threads"])
def test_new_gradients_in_every_update_have_the_bits_of_the_list_form(adam_of_isa, storage, lengths):
    case = Case(storage=storage, copy=torch.float16, lengths=lengths)
    kept, given_anew = make(case), make(case)
    prepared = adam_of_isa.prepare(kept, steps_of(len(lengths)))
    for step, dtype in enumerate([*FLOATS, *FLOATS], 1):  # of another type each time, too
        also = case.settings(zero_grads=step % 2 == 0, seed=step)
        grads = [torch.linspace(-step, 1, numel).to(dtype) for numel in lengths]
        kept, given_anew = kept._replace(grads=grads), given_anew._replace(grads=[grad.clone() for grad in grads])
        prepared.replace_grads(grads)
        prepared.update(OPTIONS, also)
        adam_of_isa.update_list(given_anew, step, OPTIONS, also)
        assert_same_bits(kept, given_anew)


def test_replaced_gradients_may_share_memory_unless_they_are_zeroed(cpu_adam):
    steps = steps_of(2)
    prepared = cpu_adam.prepare(make(Case(lengths=(17, 17))), steps)
    prepared.update(OPTIONS, Pass(zero_grads=True))
    shared = torch.ones(30)
    prepared.replace_grads([shared[:17], shared[13:]])
    for done in (1, 2):
        with pytest.raises(OpArgumentError, match="tensor 1 shares"):
            prepared.update(OPTIONS, Pass(zero_grads=True))
        assert (shared == 1).all()
        assert all(step == done for step in steps)
        prepared.update(OPTIONS, Pass())


def test_gradients_that_were_spoiled_and_put_right_are_checked_again(cpu_adam):
    """The first of them had been taken when the second was refused."""
    lists, expected = make(Case(lengths=(17, 300))), make(Case(lengths=(17, 300)))
    prepared = cpu_adam.prepare(lists, steps_of(2))
    for step in (1, 2, 3):
        prepared.update(OPTIONS, Pass())
        cpu_adam.update_list(expected, step, OPTIONS)
    intact = [grad.data for grad in lists.grads]
    lists.grads[0].data, lists.grads[1].data = torch.zeros(17), torch.zeros(299)
    with pytest.raises(OpArgumentError, match="299 elements"):
        prepared.update(OPTIONS, Pass())
    for grad, data in zip(lists.grads, intact, strict=True):
        grad.data = data
    prepared.update(OPTIONS, Pass())
    cpu_adam.update_list(expected, 4, OPTIONS)
    assert_same_bits(lists, expected)


def test_released_gradients_are_missed(cpu_adam):
    lists = make(Case(lengths=SMALL))
    steps = steps_of(4)
    prepared = cpu_adam.prepare(lists, steps)
    prepared.update(OPTIONS, Pass())
    prepared.release_grads()
    params = [param.clone() for param in lists.params]
    with pytest.raises(OpArgumentError, match="0 grad tensors"):
        prepared.update(OPTIONS, Pass(zero_grads=True))
    with pytest.raises(OpArgumentError, match="gradients were released"):
        prepared.grad_norm()
    assert all(torch.equal(now, then) for now, then in zip(lists.params, params, strict=True))
    assert all(step == 1 for step in steps)
    prepared.replace_grads([torch.ones(numel) for numel in SMALL])
    prepared.update(OPTIONS, Pass())
    assert all(step == 2 for step in steps)


def test_a_list_of_nothing_does_nothing_and_every_parameter_needs_its_tensors(cpu_adam):
    prepared = cpu_adam.prepare(TensorLists([], [], [[], []]), [])
    prepared.update(OPTIONS, Pass())
    prepared.replace_grads([])
    prepared.release_grads()
    assert prepared.grad_norm() == 0.0
    with pytest.raises(OpArgumentError, match="1 grad tensors"):
        prepared.replace_grads([torch.zeros(3)])
    for count in (0, 3, 5):
        with pytest.raises(OpArgumentError, match=f"{count} step tensors"):
            cpu_adam.prepare(make(Case(lengths=SMALL)), steps_of(count))
