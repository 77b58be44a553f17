"""Prepared lists for the parameters of an optimizer, kept from step to step.

Passing ten thousand small tensors to a native op takes longer than updating them, so they are passed once. Each step
checks that they are still the same tensors, in loops that run in C; the native op checks whether a tensor's memory
moved.
"""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from itertools import chain, repeat
from operator import attrgetter, is_, is_not
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import is_overlapping
from op_builder.ops.optim.checks import owners_of_shared_memory, place_of
from op_builder.ops.optim.native_op import PreparedList
from op_builder.ops.optim.native_states import NativeStates
from op_builder.ops.optim.sharding import Sharding, is_flat, local_of, sharding_of
from op_builder.ops.optim.state_entries import Changes, StateEntry
from op_builder.ops.optim.tensor_lists import TensorLists

if TYPE_CHECKING:
    from op_builder.ops.optim.native_op import NativeOp

T = TypeVar("T")
_grad_of = attrgetter("grad")

# Remedies for the user of an optimizer, by the beginning of the native op's messages.
_REMEDIES = {
    "grad of tensor": "Set p.grad to a dense tensor of the parameter's shape with its own memory, for example by "
    "p.grad = p.grad.clone().resolve_neg(), or call zero_grad() and backward() again.",
    "copy of tensor": "Pass to write_copies() a contiguous CPU tensor of float32, bfloat16 or float16 with its own "
    "memory and the parameter's number of elements.",
}


class Batch:
    """The parameters of a group that one native call updates, as they were when it was prepared.

    Attributes:
        op: the native op.
        sharding: how the parameters are distributed if they are DTensors.
        indices: their indices in the group.
        shards: the parameters, or their local shards; the native op gets these, and those of states and gradients.
        copies: the tensors of ``write_copies()``, or none.
        named: the tensors of their states, by name.
        grads: their gradients; empty between steps unless the lists keep them.
        copied: the gradients of which the op gets a copy, made for each step: those that are not contiguous, and those
            that are not distributed as their parameter is.
    """

    prepared: PreparedList

    def __init__(self, group: dict[str, Any], group_index: int, op: NativeOp, sharding: Sharding | None = None) -> None:
        self.group = group
        self.group_index = group_index
        self.op = op
        self.sharding = sharding
        self.indices: list[int] = []
        self.params: list[torch.Tensor] = []
        self.shards: list[torch.Tensor] = []
        self.copies: list[torch.Tensor] = []
        self.named: dict[str, list[torch.Tensor]] = {}
        self.grads: list[torch.Tensor] = []
        self.copied: list[torch.Tensor] = []

    def local_grads(self, grads: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The local shards of the gradients, first unchanged, then redistributed like the parameters."""
        if self.sharding is None:
            return grads, grads
        return list(map(local_of, grads)), list(map(local_of, grads, self.params))

    def set_grads(
        self, grads: list[torch.Tensor], fitting: list[torch.Tensor], strided: Sequence[int]
    ) -> list[torch.Tensor]:
        """Keep the results of :meth:`local_grads`; return ``fitting`` with copies of those at ``strided``."""
        if strided:
            fitting = list(fitting)
            for place in strided:
                fitting[place] = fitting[place].contiguous()
        self.grads = grads
        self.copied = (
            [] if fitting is grads else [one for one, other in zip(grads, fitting, strict=True) if one is not other]
        )
        return fitting

    def place(self, at: int) -> str:
        """A parameter as the optimizer's user knows it."""
        return place_of(self.group_index, self.indices[at], self.params[at])

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call the op; errors name parameters as the user knows them, because the op has lists of its own."""
        try:
            return function(*arguments)
        except OpArgumentError as error:
            message = re.sub(r"\b(?:param of )?tensor (\d+)", lambda found: self.place(int(found[1])), error.message)
            remedy = next((_REMEDIES[role] for role in _REMEDIES if error.message.startswith(role)), error.remedy)
            raise OpArgumentError(re.sub("^parameter", "Parameter", message), remedy) from None

    def is_in_place(self) -> bool:
        """Whether the shards of DTensors still have the memory that the op knows."""
        return self.sharding is None or all(
            local_of(param).data_ptr() == shard.data_ptr()
            for param, shard in zip(self.params, self.shards, strict=True)
        )

    def update(self, options: Sequence[float], settings: Any, *, check_only: bool = False) -> None:
        """Update the parameters and their states, or only check whether that would raise."""
        self.call(self.prepared.update, options, settings, check_only)
        if self.sharding is not None and not check_only:
            torch.autograd.graph.increment_version(self.params)

    def grad_norm(self) -> float:
        """The Euclidean norm of the gradients together."""
        return self.call(self.prepared.grad_norm)


class PreparedGroups:
    """Prepared lists for all groups of an optimizer.

    They keep gradients from one step to the next only while these stay the same tensors. Otherwise the training loop
    can free their memory (``zero_grad()``).
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Prepare everything again in the next step."""
        self._batches: list[Batch] | None = None
        self._changes = Changes()
        self._grads_are_writable = False
        self._may_keep = True  # until gradients that were kept are replaced
        self._first_grad: weakref.ref[torch.Tensor] | None = None  # of the last step
        self._grads: list[list[torch.Tensor | None]] | None = None  # while they are kept

    def current(
        self,
        owner: NativeStates,
        groups: Sequence[dict[str, Any]],
        state: MutableMapping[torch.Tensor, dict[str, Any]],
        *,
        writes_grads: bool = False,
    ) -> list[Batch]:
        """The lists for this step, of the parameters that have a gradient; an OpArgumentError leaves all unchanged.

        ``owner`` is the optimizer, which is not kept. With ``writes_grads`` no two gradients may share memory.
        """
        grads = [list(map(_grad_of, group["params"])) for group in groups]
        batches = self._batches
        if batches is None or not self._fits(groups, state):
            batches = self._prepare(owner, groups, grads, state)
        elif (
            self._grads is None
            or not all(map(is_same, grads, self._grads))
            or any(batch.copied or batch.sharding for batch in batches)
        ):
            if [_present(group) for group in grads] == self._seen_present:
                self._replace_grads(owner, batches, grads)
            else:
                batches = self._prepare(owner, groups, grads, state)
        for batch in batches:
            # The op checks neither shapes nor lazy negations.
            for at in batch.prepared.moved_params():
                owner.check_tensors(batch.params[at], batch.place(at), batch.group)
        if writes_grads and not self._grads_are_writable:
            for batch in batches:
                batch.call(batch.prepared.require_writable_grads)
                for at, grad in enumerate(batch.grads if batch.copied else ()):
                    if is_overlapping(grad):
                        raise OpArgumentError(
                            f"Elements of the gradient of {batch.place(at)} share memory; they cannot be zeroed.",
                            _REMEDIES["grad of tensor"],
                        )
            if len(batches) > 1:  # within one list the native op checks it
                _require_apart((batch, batch.grads) for batch in batches)
            self._grads_are_writable = True
        return batches

    def _replace_grads(
        self, owner: NativeStates, batches: Sequence[Batch], grads: list[list[torch.Tensor | None]]
    ) -> None:
        """Pass new gradients to the lists."""
        self._may_keep = self._may_keep and self._grads is None
        self._grads = None  # until all are replaced
        self._grads_are_writable = False
        for batch in batches:
            in_group = grads[batch.group_index]
            present = [grad for grad in map(in_group.__getitem__, batch.indices) if grad is not None]
            own, fitting = batch.local_grads(present)
            strided = batch.call(batch.prepared.replace_grads, fitting)
            for at in strided:
                owner.check_grad(present[at], batch.params[at], batch.place(at))
            fitting = batch.set_grads(own, fitting, strided)
            if strided:
                batch.prepared.replace_grads(fitting)
        self._grads = grads

    def grad_norm(self, batches: Sequence[Batch]) -> float:
        """The Euclidean norm of all gradients together, over all ranks that have shards of them."""
        if self._has_flat_params:
            raise OpArgumentError(
                "The norm of all gradients is unknown: FSDP1 shows each rank only its own shards.",
                "Clip by the method clip_grad_norm_() of the FSDP module, unscale by ShardedGradScaler, or shard the "
                "model by fully_shard().",
            )
        norms = []
        for sharding in self._shardings:
            norm = math.hypot(*(batch.grad_norm() for batch in batches if batch.sharding == sharding))
            norms.append(norm if sharding is None else sharding.norm(norm))
        return math.hypot(*norms)

    def step_done(self) -> None:
        """Drop gradients that the training loop may want to free."""
        if self._batches is None:
            return
        first = next((grad for group in self._grads or () for grad in group if grad is not None), None)
        stayed = first is not None and self._first_grad is not None and self._first_grad() is first
        self._first_grad = None if first is None else weakref.ref(first)
        # The first stands for all: weak references to all would take a tenth of a step.
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
        groups: Sequence[Mapping[str, Any]],
        state: MutableMapping[torch.Tensor, dict[str, Any]],
    ) -> bool:
        """Whether the lists have the present parameters and states."""
        return (
            len(groups) == len(self._seen_params)
            and [group["states"] for group in groups] == self._seen_storages
            and all(map(is_same, [group["params"] for group in groups], self._seen_params))
            and is_same(list(state.values()), self._seen_states)  # a third faster than over the values themselves
            and not self._changes.any
            and all(map(Batch.is_in_place, self._batches or ()))
        )

    def _prepare(
        self,
        owner: NativeStates,
        groups: Sequence[dict[str, Any]],
        grads: list[list[torch.Tensor | None]],
        state: MutableMapping[torch.Tensor, dict[str, Any]],
    ) -> list[Batch]:
        """Check everything, make missing states, and prepare the lists."""
        self.forget()
        batches: list[Batch] = []
        for group_index, group in enumerate(groups):
            parts: dict[tuple[bool, torch.device, Sharding | None], Batch] = {}
            if len(set(map(id, group["params"]))) < len(group["params"]):  # two threads would update it at once
                raise OpArgumentError(
                    f"Group {group_index} has a parameter twice.", "Put each parameter into one group, once."
                )
            for index, (param, grad) in enumerate(zip(group["params"], grads[group_index], strict=True)):
                if grad is None:
                    continue
                place = place_of(group_index, index, param)
                owner.check_param(param, place)
                owner.check_grad(grad, param, place)
                if state.get(param):
                    owner.check_state(state[param], param, place, group)
                sharding = sharding_of(param)
                key = (param in owner.copies, param.device, sharding)
                batch = parts.setdefault(key, Batch(group, group_index, owner.native(), sharding))
                batch.indices.append(index)
                batch.params.append(param)
                batch.grads.append(grad)
            batches += parts.values()
        for batch in batches:  # nothing is made before everything was checked
            names = owner.states_of(batch.group)
            entries = [StateEntry(owner.state_of(param, batch.group), self._changes) for param in batch.params]
            state.update(zip(batch.params, entries, strict=True))
            batch.named = {name: [local_of(entry[name]) for entry in entries] for name in ("step", *names)}
            batch.copies = [local_of(owner.copies[param]) for param in batch.params if param in owner.copies]
            own, fitting = batch.local_grads(batch.grads)
            batch.shards = list(map(local_of, batch.params))
            tensors = TensorLists(
                batch.shards,
                batch.set_grads(own, fitting, [i for i, grad in enumerate(fitting) if not grad.is_contiguous()]),
                [batch.named[name] for name in names],
                batch.copies,
                places=[(batch.group_index << 32) + index for index in batch.indices],
            )
            batch.prepared = batch.call(batch.op.prepare, tensors, batch.named["step"])
        if len(batches) > 1:  # within one list the native op checks it
            _require_apart((batch, chain(batch.shards, batch.copies, *batch.named.values())) for batch in batches)
        self._batches = batches
        # Also without a gradient: every rank of a mesh must take part in a norm.
        self._shardings = dict.fromkeys(sharding_of(param) for group in groups for param in group["params"])
        self._has_flat_params = any(is_flat(param) for group in groups for param in group["params"])
        self._seen_params = [tuple(group["params"]) for group in groups]
        self._seen_storages = [group["states"] for group in groups]
        self._seen_states = list(state.values())
        self._seen_present = [_present(group) for group in grads]
        self._grads = grads
        return batches


def _require_apart(written_by: Iterable[tuple[Batch, Iterable[torch.Tensor]]]) -> None:
    """Raise an OpArgumentError if two lists write the same memory."""
    listed = list(written_by)
    owners = owners_of_shared_memory(
        (number, tensor) for number, (_, tensors) in enumerate(listed) for tensor in tensors
    )
    if owners is not None:
        first, second = sorted(listed[number][0].group_index for number in owners)
        raise OpArgumentError(
            f"A tensor of group {second} shares memory with one of group {first}; both would be written.",
            "Put each parameter into one group, once, and give states and zeroed gradients their own memory.",
        )


def is_same(present: Sequence[Any], seen: Sequence[Any]) -> bool:
    """Whether both have the same objects in the same order."""
    return len(present) == len(seen) and all(map(is_, present, seen))


def _present(grads: Sequence[torch.Tensor | None]) -> list[bool]:
    """Which parameters have a gradient; not by ``==``, which compares the elements of tensors."""
    return list(map(is_not, grads, repeat(None)))
