"""The parameters of an optimizer as its native op keeps them, from step to step.

Handing ten thousand small tensors to a native op costs more than updating them, so they are handed
over once. Each step asks whether they still are the same tensors, in loops that run in C; whether a
tensor's own memory moved, the native op asks.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, repeat
from operator import attrgetter, is_, is_not
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.optim.beside import Question, are_many, whether_grads_are
from op_builder.ops.optim.tensor_lists import TensorLists

_grad_of = attrgetter("grad")

# Reading an attribute of others may run their authors' code.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


class KeptTensors(Protocol):
    """What a native op keeps of a group from step to step."""

    def replace_grads(self, grads: Sequence[torch.Tensor]) -> Sequence[int]:
        """Take other gradients from now on; returns the places of those that an update would refuse: not contiguous."""

    def release_grads(self) -> None:
        """Hold the gradients no longer."""


Kept = TypeVar("Kept", bound=KeptTensors)
Kept_co = TypeVar("Kept_co", bound=KeptTensors, covariant=True)


class Module(Protocol[Kept_co]):
    """A native op that can keep tensors.

    Attributes:
        OPTIONS: the numbers that every update takes, in their order.
    """

    OPTIONS: ClassVar[tuple[str, ...]]

    def prepare(self, tensors: TensorLists, steps: Sequence[torch.Tensor]) -> Kept_co:
        """Keep tensors for many updates."""


class Owner(Protocol[Kept_co]):
    """What the optimizer knows of its parameters."""

    def native_of(self, group: Mapping[str, Any]) -> Module[Kept_co]:
        """The native op that updates a group: the same object each time."""

    def check_grad(self, grad: torch.Tensor, index: int) -> None:
        """Refuse a gradient that does not fit."""

    def check_state(self, state: Mapping[str, Any], index: int, group: Mapping[str, Any]) -> None:
        """Refuse a parameter's state that does not fit."""

    def state_of(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """A parameter's state, whatever was missing of it made."""

    def names_of(self, group: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """The names of the states in the native op's order, and of their scales."""


class Changes:
    """Whether anything was set in any of some dictionaries."""

    __slots__ = ("any",)

    def __init__(self) -> None:
        self.any = False


class StateEntry(dict[str, Any]):
    """A parameter's state, which says when it is changed.

    Asking each of ten thousand entries whether it still holds the same tensors would take a sixth of
    a step. Copied and saved as a plain dictionary.
    """

    __slots__ = ("_changes",)

    def __init__(self, entries: Mapping[str, Any], changes: Changes) -> None:
        super().__init__(entries)
        self._changes = changes

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __setitem__(self, name: str, value: Any) -> None:
        self._changes.any = True
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self._changes.any = True
        super().__delitem__(name)

    def __ior__(self, other: Any) -> StateEntry:  # type: ignore[override,misc]
        self.update(other)
        return self

    def update(self, *args: Any, **kwargs: Any) -> None:
        """As of a dictionary."""
        self._changes.any = True
        super().update(*args, **kwargs)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """As of a dictionary."""
        self._changes.any = True
        return super().setdefault(name, default)

    def pop(self, *args: Any) -> Any:
        """As of a dictionary."""
        self._changes.any = True
        return super().pop(*args)

    def popitem(self) -> tuple[str, Any]:
        """As of a dictionary."""
        self._changes.any = True
        return super().popitem()

    def clear(self) -> None:
        """As of a dictionary."""
        self._changes.any = True
        super().clear()


@dataclass
class Batch(Generic[Kept]):
    """The parameters of a group that one native call updates, as they were when it was prepared.

    Attributes:
        module: the op.
        indices: their places in the group.
        named: the tensors of their states, by name.
        grads: their gradients; empty between steps unless ``PreparedGroups.keeps_grads``.
        copied: the gradients that are not contiguous, of which the op gets copies, made for each step.
    """

    group: dict[str, Any]
    group_index: int
    module: Module[Kept]
    indices: list[int] = field(default_factory=list)
    params: list[torch.Tensor] = field(default_factory=list)
    named: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    grads: list[torch.Tensor] = field(default_factory=list)
    copied: list[torch.Tensor] = field(default_factory=list)
    prepared: Kept = field(init=False)

    def contiguous(self, grads: list[torch.Tensor], odd: Sequence[int]) -> list[torch.Tensor]:
        """The gradients from now on as the op takes them, with copies of those that are not contiguous."""
        self.grads = grads
        self.copied = [grads[place] for place in odd]
        if not odd:
            return grads
        taken = list(grads)
        for place in odd:
            taken[place] = grads[place].contiguous()
        return taken


class PreparedGroups(Generic[Kept]):
    """Prepared lists for all groups of an optimizer.

    Attributes:
        keeps_grads: whether gradients are held from one step to the next. Only when they were found to
            be the same tensors: else their memory is the training loop's to free (``zero_grad()``).
    """

    def __init__(self) -> None:
        self._copies: dict[int, torch.Tensor] = {}
        self.forget()

    def forget(self) -> None:
        """Prepare everything anew in the next step."""
        self._batches: list[Batch[Kept]] | None = None
        self._changes = Changes()
        self._seen_grads: list[list[torch.Tensor | None]] = []
        self._seen_refs: list[list[weakref.ref[torch.Tensor] | None]] = []
        self._first_ref: weakref.ref[torch.Tensor] | None = None
        self._first_stayed = False
        self._grads_are_apart = False
        self.keeps_grads = False

    def write_copies(self, copies: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Have each new parameter written to another tensor, too."""
        self._copies = {id(param): copy for param, copy in copies.items()}
        self.forget()

    def current(
        self,
        owner: Owner[Kept],
        groups: Sequence[dict[str, Any]],
        state: MutableMapping[torch.Tensor, dict[str, Any]],
        *,
        writes_grads: bool = False,
    ) -> list[Batch[Kept]]:
        """The lists for this step, of the parameters that have a gradient.

        Args:
            owner: the optimizer; it is asked and not kept, so that it is freed with the last reference to it.
            writes_grads: whether the step writes gradients, so that no two may share memory.

        Raises:
            OpArgumentError: a gradient or a state does not fit; nothing was changed.
        """
        grads = [list(map(_grad_of, group["params"])) for group in groups]
        batches = self._batches
        if batches is None or not self._fits(owner, groups, state):
            batches = self._prepare(owner, groups, grads, state)
        elif not self.keeps_grads or not all(map(_same, grads, self._seen_grads)) or any(b.copied for b in batches):
            if [_present(group) for group in grads] == self._seen_present:
                self._replace_grads(owner, batches, grads)
            else:
                batches = self._prepare(owner, groups, grads, state)
        if writes_grads and not self._grads_are_apart and len(batches) > 1:  # of one, the native op sees it
            _require_apart((batch, batch.grads) for batch in batches)
            self._grads_are_apart = True
        return batches

    def unread(
        self,
        owner: Owner[Kept],
        groups: Sequence[dict[str, Any]],
        state: MutableMapping[torch.Tensor, dict[str, Any]],
        *,
        writes_grads: bool = False,
    ) -> tuple[list[Batch[Kept]], Question] | None:
        """The lists for this step if all is as in the last one but perhaps the gradients, of which the first op asks.

        Reading ten thousand takes a quarter of a step, and the op's other threads can look at tensors meanwhile.

        Returns:
            None: something may be otherwise, or the op can't ask; :meth:`current` knows.
        """
        batches = self._batches
        if (
            not batches
            or not self._asks_in_op
            or not self.keeps_grads
            or (writes_grads and not self._grads_are_apart and len(batches) > 1)
            or any(batch.copied for batch in batches)
            or not self._fits(owner, groups, state)
        ):
            return None
        question = whether_grads_are(self._seen_params, self._seen_grads)
        return question and (batches, question)

    def _replace_grads(
        self, owner: Owner[Kept], batches: Sequence[Batch[Kept]], grads: list[list[torch.Tensor | None]]
    ) -> None:
        """Have the lists take other gradients, and see whether they are those of the last step after all."""
        first = self._first_ref and self._first_ref()
        self._first_stayed = first is not None and first is _first_of(grads)
        refs = self._seen_refs
        stayed = bool(refs) and all(map(_same, grads, ([ref and ref() for ref in group] for group in refs)))
        self.keeps_grads = self._grads_are_apart = False  # until all are taken
        for batch in batches:
            in_group = cast("list[torch.Tensor]", grads[batch.group_index])  # but for those beside the batch
            present = in_group if len(batch.indices) == len(in_group) else [in_group[i] for i in batch.indices]
            try:
                odd = batch.prepared.replace_grads(present)
            except OpArgumentError:
                for index, grad in zip(batch.indices, present, strict=True):
                    owner.check_grad(grad, index)  # which may know more about it
                raise
            taken = batch.contiguous(present, odd)
            if odd:
                batch.prepared.replace_grads(taken)
        self._seen_grads = grads
        self.keeps_grads = stayed

    def step_done(self) -> None:
        """Let gradients go that the training loop may want to free."""
        if self.keeps_grads or self._batches is None:
            return
        first = _first_of(self._seen_grads)
        self._first_ref = None if first is None else weakref.ref(first)
        # References to all take a tenth of a step; where gradients are new in each, the first one tells.
        self._seen_refs = [
            [None if grad is None else weakref.ref(grad) for grad in group]
            for group in self._seen_grads
            if self._first_stayed
        ]
        self._drop_grads()

    def release_grads(self) -> None:
        """Let gradients go now."""
        self.keeps_grads = False
        self._first_stayed = False
        self._seen_refs = []
        self._drop_grads()

    def _drop_grads(self) -> None:
        self._seen_grads = []
        for batch in self._batches or ():
            batch.grads, batch.copied = [], []
            batch.prepared.release_grads()

    def _fits(
        self,
        owner: Owner[Kept],
        groups: Sequence[Mapping[str, Any]],
        state: MutableMapping[torch.Tensor, dict[str, Any]],
    ) -> bool:
        """Whether the lists hold the present parameters and states."""
        return (
            len(groups) == len(self._seen_params)
            and _ways_of(owner, groups) == self._seen_ways
            and all(map(_same, [group["params"] for group in groups], self._seen_params))
            and _same(list(state.values()), self._seen_states)  # a third faster than over the values themselves
            and not self._changes.any
        )

    def _prepare(
        self,
        owner: Owner[Kept],
        groups: Sequence[dict[str, Any]],
        grads: list[list[torch.Tensor | None]],
        state: MutableMapping[torch.Tensor, dict[str, Any]],
    ) -> list[Batch[Kept]]:
        """Check everything, have the states made that are missing, and the prepared lists."""
        self.forget()
        ways = _ways_of(owner, groups)
        batches: list[Batch[Kept]] = []
        for group_index, (group, (_, module)) in enumerate(zip(groups, ways, strict=True)):
            by_copy: dict[bool, Batch[Kept]] = {}
            if len(set(map(id, group["params"]))) < len(group["params"]):  # two threads would update it at once
                raise OpArgumentError(
                    f"Group {group_index} holds a parameter twice.", "Give each parameter to one group, once."
                )
            for index, (param, grad) in enumerate(zip(group["params"], grads[group_index], strict=True)):
                if grad is None:
                    continue
                owner.check_grad(grad, index)
                if state.get(param):
                    owner.check_state(state[param], index, group)
                batch = by_copy.setdefault(id(param) in self._copies, Batch(group, group_index, module))
                batch.indices.append(index)
                batch.params.append(param)
                batch.grads.append(grad)
            batches += by_copy.values()
        for batch in batches:  # nothing is made before all was checked
            names, scale_names = owner.names_of(batch.group)
            entries = [StateEntry(owner.state_of(param, batch.group), self._changes) for param in batch.params]
            state.update(zip(batch.params, entries, strict=True))
            batch.named = {name: [entry[name] for entry in entries] for name in ("step", *names, *scale_names)}
            tensors = TensorLists(
                batch.params,
                batch.contiguous(batch.grads, [i for i, grad in enumerate(batch.grads) if not grad.is_contiguous()]),
                [batch.named[name] for name in names],
                [batch.named[name] for name in scale_names],
                [self._copies[id(param)] for param in batch.params if id(param) in self._copies],
                places=[(batch.group_index << 32) + index for index in batch.indices],
            )
            batch.prepared = batch.module.prepare(tensors, batch.named["step"])
        if len(batches) > 1:  # of one, the native op sees it
            _require_apart((batch, chain(batch.params, *batch.named.values())) for batch in batches)
        self._batches = batches
        self._seen_params = [tuple(group["params"]) for group in groups]
        self._asks_in_op = are_many(sum(map(len, self._seen_params))) and _PLAIN.issuperset(
            map(type, chain.from_iterable(self._seen_params))
        )
        self._seen_ways = ways
        self._seen_states = list(state.values())
        self._seen_present = [_present(group) for group in grads]
        self._seen_grads = grads
        self._first_stayed = True  # nobody knows yet: the next step compares them all
        return batches


def _ways_of(owner: Owner[Kept], groups: Sequence[Mapping[str, Any]]) -> list[tuple[str, Module[Kept]]]:
    """How the states of each group are kept, and by which op they are updated."""
    return [(group["states"], owner.native_of(group)) for group in groups]


def with_plain_entries(state_dict: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's ``state_dict()`` with plain dictionaries, as torch.load() takes them with ``weights_only``."""
    return {**state_dict, "state": {key: dict(entry) for key, entry in state_dict["state"].items()}}


def _require_apart(written_by: Iterable[tuple[Batch[Any], Iterable[torch.Tensor]]]) -> None:
    """Refuse memory that two groups write.

    Raises:
        OpArgumentError: a tensor of one lies where one of another does.
    """
    written = sorted(
        (str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, number, batch.group_index)
        for number, (batch, tensors) in enumerate(written_by)
        for tensor in tensors
        if tensor.nbytes
    )
    for (device, _, end, number, group), (other_device, begin, _, other, other_group) in pairwise(written):
        if device == other_device and begin < end and number != other:
            raise OpArgumentError(
                f"A tensor of group {max(group, other_group)} shares memory with one of group "
                f"{min(group, other_group)}; both would be written.",
                "Give each parameter to one group, once, and states and zeroed gradients with memory of their own.",
            )


def _same(present: Sequence[Any], seen: Sequence[Any]) -> bool:
    """Whether both hold the very same objects in the same order."""
    return len(present) == len(seen) and all(map(is_, present, seen))


def _first_of(grads: Sequence[Sequence[torch.Tensor | None]]) -> torch.Tensor | None:
    return next((grad for group in grads for grad in group if grad is not None), None)


def _present(grads: Sequence[torch.Tensor | None]) -> list[bool]:
    """Which parameters have a gradient; not by ``==``, which tensors answer at length."""
    return list(map(is_not, grads, repeat(None)))
