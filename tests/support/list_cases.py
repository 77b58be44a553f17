"""Lists of tensors for an update, what rides along in it, and the same done apart, step by step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.tensor_lists import Pass, TensorLists
from tests.support.optimizer_reference import ADAM, FLOATS, LAMB, Kind, make_tensors
from tests.support.packed_reference import decode_8bit, encode_8bit, random16, random_key, stochastic_bfloat16

FLOAT32, AS_PARAM, STOCHASTIC, PACKED = STORAGES = ("float32", "as param", "stochastic", "8 bits")
LENGTHS = (0, 1, 15, 17, 255, 256, 257, 1000, 2049)
GUARD_BYTES = 64
GUARD = 0xA5


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

    def __str__(self) -> str:
        names = [str(dtype)[6:] for dtype in (self.param, self.grad, self.copy) if dtype is not None]
        return "-".join((self.kind.name, *names, self.storage))

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


@dataclass
class Guarded:
    """Tensors that lie between guard bytes."""

    lists: TensorLists
    storages: list[tuple[torch.Tensor, int, int]] = field(default_factory=list)

    def assert_guards_untouched(self) -> None:
        for storage, begin, end in self.storages:
            assert (storage[:begin] == GUARD).all()
            assert (storage[end:] == GUARD).all()


def make(case: Case) -> Guarded:
    """The tensors of a case, of a training run's magnitudes; the same each time."""
    names = case.kind.states
    guarded = Guarded(TensorLists([], [], [[] for _ in names], [[] for _ in names if case.storage == PACKED], []))

    def lay(values: torch.Tensor) -> torch.Tensor:
        begin = GUARD_BYTES + case.offset * values.itemsize
        size = values.numel() * values.itemsize
        storage = torch.full((begin + size + GUARD_BYTES,), GUARD, dtype=torch.uint8)
        guarded.storages.append((storage, begin, begin + size))
        view = storage.view(torch.uint8)[begin : begin + size].view(values.dtype)
        return view.copy_(values)

    lists = guarded.lists
    for place, numel in enumerate(case.lengths):
        tensors = make_tensors(case.kind, numel, case.param, case.grad, seed=case.seed * 1000 + place)
        lists.params.append(lay(tensors.param))
        lists.grads.append(lay(tensors.grad))
        for k, state in enumerate(tensors.states):
            if case.storage == PACKED:
                codes, scales = encode_8bit(state, torch.zeros(numel, dtype=torch.int64), names[k].endswith("sq"))
                lists.states[k].append(lay(codes))
                lists.scales[k].append(lay(scales))
            else:
                lists.states[k].append(lay(state.to(case.state)))
        if case.copy is not None:
            lists.copies.append(lay(torch.zeros(numel, dtype=case.copy)))
    return guarded


def update_apart(module: HostOp, case: Case, lists: TensorLists, step: int, options, also: Pass) -> None:
    """What ``module.update_list`` should do, with plain updates of one float32-state tensor each and torch."""
    fused = module.isa != "baseline"  # which has no instruction for it
    squared = [name.endswith("sq") for name in case.kind.states]
    for i, (param, grad) in enumerate(zip(lists.params, lists.grads, strict=True)):
        scaled = grad.float() * torch.tensor(also.grad_scale)
        packed = [state[i] for state in lists.states]
        if case.storage == PACKED:
            states = [decode_8bit(packed[k], lists.scales[k][i], squared[k]) for k in range(len(packed))]
        elif case.kind is LAMB:  # its second pass finds the states as they are stored
            states = packed
        else:
            states = [state.float() for state in packed]
        module.update_list(TensorLists([param], [scaled], [[state] for state in states]), step, options)
        key = random_key(also.seed, step, lists.places[i] if lists.places else i)
        for k, state in enumerate(states):
            random = random16(key, param.numel(), k, "8bit" if case.storage == PACKED else "bfloat16")
            if case.storage == PACKED:
                codes, scales = encode_8bit(state, random, squared[k], fused=fused)
                packed[k].copy_(codes)
                lists.scales[k][i].copy_(scales)
            elif case.storage == STOCHASTIC:
                packed[k].copy_(stochastic_bfloat16(state, random))
            else:
                packed[k].copy_(state)
        if lists.copies:
            lists.copies[i].copy_(param)
        if also.zero_grads:
            grad.zero_()


def copy_of(lists: TensorLists) -> list[torch.Tensor]:
    """Copies of all tensors."""
    return [tensor.clone() for members in lists.positional() for tensor in members]


def assert_unchanged(lists: TensorLists, before: Sequence[torch.Tensor]) -> None:
    assert all(map(torch.equal, copy_of(lists), before))


def assert_same_bits(actual: TensorLists, expected: TensorLists, case: object = "") -> None:
    roles = ("param", "grad", "state", "scale", "copy")
    for role, one, other in zip(roles, actual.positional(), expected.positional(), strict=True):
        for i, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            same = torch.equal(mine.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))
            assert same, f"{case} {role} {i} of {len(one)}, {mine.numel()}: {int((mine != theirs).sum())} differ"
