"""The parameters of an optimizer as its native ops keep them, from step to step.

Handing ten thousand small tensors to a native op costs more than updating them, so they are handed
over once. Each step asks whether they still are the same tensors, in loops that run in C; whether a
tensor's own memory moved, the native op asks.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, repeat
from operator import attrgetter, is_, is_not
from typing import TYPE_CHECKING, Any

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import explained, untraced
from op_builder.ops.optim.tensor_lists import TensorLists

if TYPE_CHECKING:
    from op_builder.ops.optim.native_op import NativeOp
    from op_builder.ops.optim.optimizer import NativeOptimizer

_grad_of = attrgetter("grad")


class PreparedList:
    """Tensors of one device that a native op keeps for many updates; made by its ``prepare``.

    It keeps the tensors alive and looks at them in every update, so one whose memory, length or type
    was changed in place meanwhile is updated as it is then. A tensor that was replaced by another is
    not noticed: the list must be made anew, or :meth:`replace_grads` called.

    Args:
        op: the native op.
        number: by which it knows the list; 0 for an empty one.
    """

    def __init__(self, op: NativeOp, number: int, tensors: TensorLists) -> None:
        self._op = op
        self._number = number
        self._count = len(tensors.params)
        self._changed = (*tensors.params, *tensors.copies)
        self._grads = tuple(tensors.grads)
        self._device = tensors.params[0].device if self._count else torch.device("cpu")
        if number:
            weakref.finalize(self, op.ops.forget.default, number).atexit = False

    @untraced
    def update(self, options: Sequence[float], settings: Any) -> None:
        """Update all parameters and states in place and count their steps up.

        Args:
            options: as in the op's ``options``.
            settings: a :class:`~op_builder.ops.optim.tensor_lists.Pass` for an optimizer on host tensors, a
                :class:`~op_builder.ops.optim.fused_op.Control` for a fused one.

        Raises:
            OpArgumentError: a tensor does not fit any more, or a step is no whole number; nothing was changed.
        """
        if not self._number:
            return
        with explained():
            self._op.ops.update_prepared.default(
                self._number, *self._op.prepared_arguments(options, settings, self._device)
            )
        changes_grads = getattr(settings, "zero_grads", False)
        torch.autograd.graph.increment_version((*self._changed, *self._grads) if changes_grads else self._changed)

    @untraced
    def replace_grads(self, grads: Sequence[torch.Tensor]) -> list[int]:
        """Take other gradients from now on.

        Returns:
            The places of those that are not contiguous, which an update would refuse.

        Raises:
            OpArgumentError: one is no tensor, or not on the device of its parameter, or there are not as many as
                parameters. Everything else is checked by the updates.
        """
        if len(grads) != self._count:
            raise OpArgumentError(
                f"{self._count} parameters came with {len(grads)} grad tensors.", "Pass one for each parameter."
            )
        if not self._number:
            return []
        taken = 0
        odd: list[int] = []
        try:
            with explained(), torch.no_grad():
                taken, *odd = self._op.ops.replace_grads.default(self._number, grads)
        except (RuntimeError, TypeError) as error:  # NotImplementedError, a RuntimeError: torch has no kernel for one
            if all(isinstance(grad, torch.Tensor) for grad in grads) and not isinstance(error, NotImplementedError):
                raise  # a gradient's own
        if taken != len(grads):
            raise self._op.unfit_tensor({"grad": grads}, self._device)
        self._grads = tuple(grads)
        return odd

    @untraced
    def release_grads(self) -> None:
        """Drop the gradients; updates are refused until :meth:`replace_grads`."""
        if self._number:
            self._op.ops.release_grads.default(self._number)
            self._grads = ()

    @untraced
    def grad_norm(self) -> float:
        """The Euclidean norm of all gradients together, of tensors in host memory; inf or NaN if an element is.

        Raises:
            OpArgumentError: a gradient does not fit, or they were released.
        """
        if not self._number:
            return 0.0
        if not self._grads:
            raise OpArgumentError("The gradients were released.", "Call replace_grads first.")
        with explained():
            return math.sqrt(self._op.ops.grad_sum_of_squares.default(self._number, self._op.isa))


class Changes:
    """Whether anything was set in any of some dictionaries."""

    __slots__ = ("any",)

    def __init__(self) -> None:
        self.any = False


class StateEntry(dict[str, Any]):
    """A parameter's state, which notes when it is changed.

    Asking each of ten thousand entries whether it still holds the same tensors would take a sixth of
    a step. Copied and saved as a plain dictionary.
    """

    __slots__ = ("_changes",)

    def __init__(self, entries: Mapping[str, Any], changes: Changes) -> None:
        super().__init__(entries)
        self._changes = changes

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _noting(name: str) -> Any:
    method = getattr(dict, name)

    def changed(self: StateEntry, *arguments: Any, **keywords: Any) -> Any:
        self._changes.any = True
        return method(self, *arguments, **keywords)

    return changed


for _name in ("__setitem__", "__delitem__", "__ior__", "update", "setdefault", "pop", "popitem", "clear"):
    setattr(StateEntry, _name, _noting(_name))


@dataclass
class Batch:
    """The parameters of a group that one native call updates, as they were when it was prepared.

    Attributes:
        op: the native op.
        indices: their places in the group.
        named: the tensors of their states, by name.
        grads: their gradients; empty between steps unless the lists keep them.
        copied: the gradients that are not contiguous, of which the op gets copies, made for each step.
    """

    group: dict[str, Any]
    group_index: int
    op: NativeOp
    indices: list[int] = field(default_factory=list)
    params: list[torch.Tensor] = field(default_factory=list)
    named: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    grads: list[torch.Tensor] = field(default_factory=list)
    copied: list[torch.Tensor] = field(default_factory=list)
    prepared: PreparedList = field(init=False)

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


class PreparedGroups:
    """Prepared lists for all groups of an optimizer.

    Gradients are held from one step to the next only where the first of them stayed the same tensor, and no longer once
    others were replaced: elsewhere their memory is the training loop's to free (``zero_grad()``).
    """

    def __init__(self) -> None:
        self._copies: dict[int, torch.Tensor] = {}
        self.forget()

    def forget(self) -> None:
        """Prepare everything anew in the next step."""
        self._batches: list[Batch] | None = None
        self._changes = Changes()
        self._grads_are_apart = False
        self._may_keep = True  # until gradients that were kept are replaced
        self._first_grad: weakref.ref[torch.Tensor] | None = None  # of the last step
        self._grads: list[list[torch.Tensor | None]] | None = None  # where they are held

    def write_copies(self, copies: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Have each new parameter written to another tensor, too."""
        self._copies = {id(param): copy for param, copy in copies.items()}
        self.forget()

    def current(
        self,
        owner: NativeOptimizer,
        groups: Sequence[dict[str, Any]],
        state: MutableMapping[torch.Tensor, dict[str, Any]],
        *,
        writes_grads: bool = False,
    ) -> list[Batch]:
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
        elif self._grads is None or not all(map(_same, grads, self._grads)) or any(batch.copied for batch in batches):
            if [_present(group) for group in grads] == self._seen_present:
                self._replace_grads(owner, batches, grads)
            else:
                batches = self._prepare(owner, groups, grads, state)
        if writes_grads and not self._grads_are_apart and len(batches) > 1:  # of one, the native op sees it
            _require_apart((batch, batch.grads) for batch in batches)
            self._grads_are_apart = True
        return batches

    def _replace_grads(
        self, owner: NativeOptimizer, batches: Sequence[Batch], grads: list[list[torch.Tensor | None]]
    ) -> None:
        """Have the lists take other gradients."""
        self._may_keep = self._may_keep and self._grads is None
        self._grads = None  # until all are taken
        self._grads_are_apart = False
        for batch in batches:
            in_group = grads[batch.group_index]
            present = [grad for grad in map(in_group.__getitem__, batch.indices) if grad is not None]
            try:
                odd = batch.prepared.replace_grads(present)
            except OpArgumentError:
                for index, grad in zip(batch.indices, present, strict=True):
                    owner.check_grad(grad, index)  # which may know more about it
                raise
            taken = batch.contiguous(present, odd)
            if odd:
                batch.prepared.replace_grads(taken)
        self._grads = grads

    def step_done(self) -> None:
        """Drop gradients that the training loop may want to free."""
        if self._batches is None:
            return
        first = None if self._grads is None else _first_of(self._grads)
        stayed = first is not None and self._first_grad is not None and self._first_grad() is first
        self._first_grad = None if first is None else weakref.ref(first)
        # Only where the first one stayed may the others have: references to all would take a tenth of a step.
        if not (stayed and self._may_keep):
            self._drop_grads()

    def release_grads(self) -> None:
        """Drop gradients now."""
        self._first_grad = None
        self._drop_grads()

    def _drop_grads(self) -> None:
        self._grads = None
        for batch in self._batches or ():
            batch.grads, batch.copied = [], []
            batch.prepared.release_grads()

    def _fits(
        self,
        owner: NativeOptimizer,
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
        owner: NativeOptimizer,
        groups: Sequence[dict[str, Any]],
        grads: list[list[torch.Tensor | None]],
        state: MutableMapping[torch.Tensor, dict[str, Any]],
    ) -> list[Batch]:
        """Check everything, have the states made that are missing, and the prepared lists."""
        self.forget()
        ways = _ways_of(owner, groups)
        batches: list[Batch] = []
        for group_index, (group, (_, op)) in enumerate(zip(groups, ways, strict=True)):
            parts: dict[tuple[bool, torch.device], Batch] = {}
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
                key = (id(param) in self._copies, param.device)
                batch = parts.setdefault(key, Batch(group, group_index, op))
                batch.indices.append(index)
                batch.params.append(param)
                batch.grads.append(grad)
            batches += parts.values()
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
            batch.prepared = batch.op.prepare(tensors, batch.named["step"])
        if len(batches) > 1:  # of one, the native op sees it
            _require_apart((batch, chain(batch.params, *batch.named.values())) for batch in batches)
        self._batches = batches
        self._seen_params = [tuple(group["params"]) for group in groups]
        self._seen_ways = ways
        self._seen_states = list(state.values())
        self._seen_present = [_present(group) for group in grads]
        self._grads = grads
        return batches


def _ways_of(owner: NativeOptimizer, groups: Sequence[Mapping[str, Any]]) -> list[tuple[str, NativeOp]]:
    """How the states of each group are kept, and by which op they are updated."""
    return [(group["states"], owner.native_of(group)) for group in groups]


def with_plain_entries(state_dict: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's ``state_dict()`` with plain dictionaries, as torch.load() takes them with ``weights_only``."""
    return {**state_dict, "state": {key: dict(entry) for key, entry in state_dict["state"].items()}}


def _require_apart(written_by: Iterable[tuple[Batch, Iterable[torch.Tensor]]]) -> None:
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
