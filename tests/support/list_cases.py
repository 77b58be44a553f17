"""Lists of tensors for an update, what rides along in it, and the same done apart, step by step."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import torch

from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.tensor_lists import Pass, TensorLists
from tests.support.adam_reference import random_tensors
from tests.support.packed_reference import decode_8bit, encode_8bit, random16, random_key, stochastic_bfloat16

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
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

    @property
    def state(self) -> torch.dtype:
        """The type of the states' elements."""
        by_storage = {FLOAT32: torch.float32, STOCHASTIC: torch.bfloat16, PACKED: torch.uint8}
        return by_storage.get(self.storage, self.param)

    def __str__(self) -> str:
        names = [str(dtype)[6:] for dtype in (self.param, self.grad, self.copy) if dtype is not None]
        return "-".join((*names, self.storage))


def all_cases() -> list[Case]:
    """Every combination of types; copies of another type each time."""
    copies = itertools.cycle((None, *FLOATS))
    return [
        *(Case(*types, next(copies)) for types in itertools.product(FLOATS, FLOATS, STORAGES)),
        *(Case(param, copy=copy) for param, copy in itertools.product(FLOATS, FLOATS)),
    ]


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
    guarded = Guarded(TensorLists([], [], [[], []], [[], []] if case.storage == PACKED else (), []))

    def lay(values: torch.Tensor) -> torch.Tensor:
        begin = GUARD_BYTES + case.offset * values.itemsize
        size = values.numel() * values.itemsize
        storage = torch.full((begin + size + GUARD_BYTES,), GUARD, dtype=torch.uint8)
        guarded.storages.append((storage, begin, begin + size))
        view = storage.view(torch.uint8)[begin : begin + size].view(values.dtype)
        return view.copy_(values)

    lists = guarded.lists
    for place, numel in enumerate(case.lengths):
        tensors = random_tensors(numel, case.param, case.grad, seed=case.seed * 1000 + place)
        lists.params.append(lay(tensors.param))
        lists.grads.append(lay(tensors.grad))
        for k, state in enumerate((tensors.exp_avg, tensors.exp_avg_sq)):
            if case.storage == PACKED:
                codes, scales = encode_8bit(state, torch.zeros(numel, dtype=torch.int64), k == 1)
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
    for i, (param, grad) in enumerate(zip(lists.params, lists.grads, strict=True)):
        scaled = grad.float() * torch.tensor(also.grad_scale)
        packed = [state[i] for state in lists.states]
        if case.storage == PACKED:
            states = [decode_8bit(packed[k], lists.scales[k][i], k == 1) for k in range(2)]
        else:
            states = [state.float() for state in packed]
        module.update_list(TensorLists([param], [scaled], [[state] for state in states]), step, options)
        key = random_key(also.seed, step, lists.places[i] if lists.places else i)
        for k, state in enumerate(states):
            random = random16(key, param.numel(), k, "8bit" if case.storage == PACKED else "bfloat16")
            if case.storage == PACKED:
                codes, scales = encode_8bit(state, random, k == 1, fused=fused)
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


def assert_same_bits(actual: TensorLists, expected: TensorLists) -> None:
    roles = ("param", "grad", "state", "scale", "copy")
    for role, one, other in zip(roles, actual.positional(), expected.positional(), strict=True):
        for i, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            same = torch.equal(mine.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))
            assert same, f"{role} {i} of {len(one)}, {mine.numel()} elements: {int((mine != theirs).sum())} differ"
