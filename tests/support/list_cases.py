"""Lists of tensors for an update with additional work in its pass, and the same in separate steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from op_builder.ops.optim import packed_states
from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.tensor_lists import QUANT_BLOCK, Pass, TensorLists
from tests.support.optimizer_reference import ADAM, FLOATS, LAMB, Kind, make_tensors
from tests.support.training_tensors import guarded

FLOAT32, AS_PARAM, STOCHASTIC, PACKED = STORAGES = ("float32", "as param", "stochastic", "8 bits")
LENGTHS = (0, 1, 15, 17, 255, 256, 257, 1000, 2049)
# Of 8-bit codes, by whether the state is non-negative: the place of zero; what the largest stands for before its scale.
ZERO = {False: 2.0**-7, True: 2.0**-15}
LARGEST = {sign: 1.9375 - zero for sign, zero in ZERO.items()}


@dataclass(frozen=True)
class Case:
    """What kind of tensors an update is given.

    Attributes:
        offset: how far behind an aligned place each tensor begins, in elements of its own.
    """

    param: torch.dtype = torch.float32
    grad: torch.dtype = torch.float32
    storage: str = FLOAT32
    copy: torch.dtype | None = None
    lengths: tuple[int, ...] = LENGTHS
    offset: int = 0
    seed: int = 0
    kind: Kind = ADAM

    @property
    def state(self) -> torch.dtype:
        """The type of the states' elements."""
        by_storage = {FLOAT32: torch.float32, STOCHASTIC: torch.bfloat16, PACKED: torch.uint8}
        return by_storage.get(self.storage, self.param)

    def settings(self, **arguments: Any) -> Pass:
        return Pass(stochastic=self.storage == STOCHASTIC, **arguments)


def storages_of(kind: Kind) -> tuple[str, ...]:
    return STORAGES if kind.packs else (FLOAT32, AS_PARAM)


def all_cases(kind: Kind) -> list[Case]:
    """Every combination of types; copies of another type and another alignment each time."""
    # Of five and seven, so that none always comes with the same of four storages.
    copies, offsets = itertools.cycle((None, *FLOATS, torch.bfloat16)), itertools.cycle((0, 1, 2, 3, 4, 5, 7))
    types = [
        *((*each, next(copies)) for each in itertools.product(FLOATS, FLOATS, storages_of(kind))),
        *((param, torch.float32, FLOAT32, copy) for param, copy in itertools.product(FLOATS, FLOATS)),
    ]
    return [Case(*each, offset=next(offsets), kind=kind) for each in types]


def make(case: Case) -> TensorLists:
    """The tensors of a case, of a training run's magnitudes, between guards; the same each time."""
    names = case.kind.states
    lists = TensorLists([], [], [[] for _ in names], [])
    for place, numel in enumerate(case.lengths):
        tensors = make_tensors(case.kind, numel, case.param, case.grad, seed=case.seed * 1000 + place)
        lists.params.append(guarded(tensors.param, case.offset))
        lists.grads.append(guarded(tensors.grad, case.offset))
        for k, state in enumerate(tensors.states):
            if case.storage == PACKED:
                packed = packed_states.encoded(state, names[k].endswith("sq"))
                lists.states[k].append(guarded(packed, case.offset))
            else:
                lists.states[k].append(guarded(state.to(case.state), case.offset))
        if case.copy is not None:
            lists.copies.append(guarded(torch.zeros(numel, dtype=case.copy), case.offset))
    return lists


def update_apart(
    module: HostOp, case: Case, lists: TensorLists, step: int, options: Sequence[float], also: Pass
) -> list[list[torch.Tensor]]:
    """Do what ``module.update_list`` should, with plain updates of one tensor each and functions of torch.

    Returns:
        The new states as they are before they are stored.
    """
    new: list[list[torch.Tensor]] = [[] for _ in lists.states]
    for i, (param, grad) in enumerate(zip(lists.params, lists.grads, strict=True)):
        scaled = grad.float() * torch.tensor(also.grad_scale)
        states = [state[i] for state in lists.states]
        if case.storage == PACKED:
            signs = [name.endswith("sq") for name in case.kind.states]
            states = [
                packed_states.decoded(state, param.shape, sign) for state, sign in zip(states, signs, strict=True)
            ]
        elif case.kind is not LAMB:  # its second pass finds the states as they are stored
            states = [state.float() for state in states]
        module.update_list(TensorLists([param], [scaled], [[state] for state in states]), step, options)
        if lists.copies:
            lists.copies[i].copy_(param)
        if also.zero_grads:
            grad.zero_()
        for members, state in zip(new, states, strict=True):
            members.append(state)
    return new


def assert_stored(lists: TensorLists, new: list[list[torch.Tensor]], case: Case) -> None:
    """Raise unless the states are those of :func:`update_apart`, rounded as their storage does."""
    for k, name in enumerate(case.kind.states):
        for i, exact in enumerate(new[k]):
            found = lists.states[k][i]
            if case.storage == PACKED:
                assert_near_8bit(found, exact, name.endswith("sq"))
            elif case.storage == STOCHASTIC:  # the next number towards zero, or away from it
                bits = exact.view(torch.int32)
                up = found.view(torch.int16).int() - (bits >> 16)
                assert ((up == 0) | (up == 1) & (bits & 0xFFFF != 0)).all(), f"{case} {name} {i}"
            else:
                assert torch.equal(found, exact.to(found.dtype)), f"{case} {name} {i}"


def step_of(scaled: torch.Tensor, non_negative: bool) -> torch.Tensor:
    """The distance between the 8-bit codes around a value: a sixteenth of the power of two at or below its place."""
    return 2.0 ** torch.floor(torch.log2(scaled + ZERO[non_negative])) / 16


def scales_of(packed: torch.Tensor, numel: int) -> torch.Tensor:
    """The scale of each element of an 8-bit state."""
    scales = torch.where(packed[numel:] > 0, 2.0 ** (packed[numel:].double() - 127), 0.0)
    return scales.repeat_interleave(QUANT_BLOCK)[:numel]


def assert_near_8bit(packed: torch.Tensor, exact: torch.Tensor, non_negative: bool) -> None:
    """Raise unless each scale is the smallest power of two for its block, and values are within a step."""
    exact, scale = exact.double(), scales_of(packed, len(exact))
    blocks = torch.nn.functional.pad(exact.abs(), (0, -len(exact) % QUANT_BLOCK)).view(-1, QUANT_BLOCK)
    if len(exact):
        wanted = 2.0 ** (blocks.amax(1) / LARGEST[non_negative]).log2().ceil()
        # Where the largest value is just below the limit, the scale may be the next.
        assert ((scale[::QUANT_BLOCK] / wanted).log2() - 0.5).abs().eq(0.5).all()
    step = step_of(exact.abs() / scale, non_negative) * scale
    error = (packed_states.decoded(packed, exact.shape, non_negative).double() - exact).abs()
    assert (error <= step * (1 + 2.0**-18)).all()  # the place is rounded to a float32


def copy_of(lists: TensorLists) -> list[torch.Tensor]:
    """Copies of all tensors."""
    return [tensor.clone() for members in lists.positional() for tensor in members]


def assert_unchanged(lists: TensorLists, before: Sequence[torch.Tensor]) -> None:
    assert all(map(torch.equal, copy_of(lists), before))


def assert_same_bits(actual: TensorLists, expected: TensorLists, case: object = "") -> None:
    roles = ("param", "grad", "state", "copy")
    for role, one, other in zip(roles, actual.positional(), expected.positional(), strict=True):
        for i, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            same = torch.equal(mine.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))
            assert same, f"{case} {role} {i} of {len(one)}, {mine.numel()}: {int((mine != theirs).sum())} differ"
