"""Update each parameter during ``backward()``, as soon as its gradient is complete, and free the gradient.

torch calls a hook when it has accumulated the gradient of a parameter; the hook updates that parameter alone.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from op_builder.errors import OpArgumentError
from op_builder.messages import warn_once
from op_builder.ops.arguments import untraced
from op_builder.ops.optim.checks import owners_of_shared_memory, place_of
from op_builder.ops.optim.sharding import is_dtensor, is_flat

if TYPE_CHECKING:
    from typing import Protocol

    class UpdatesOne(Protocol):
        """An optimizer that updates one parameter at a time."""

        param_groups: list[dict[str, Any]]

        def update_one(self, param: torch.Tensor, group_index: int, index: int) -> None: ...


logger = logging.getLogger(__name__)

_RANKS_DIVERGE = (
    "in_backward applies this rank's gradients before DistributedDataParallel averages them, so the parameters "
    "of the ranks diverge. With DistributedDataParallel, leave out in_backward."
)
_hooks: MutableMapping[torch.Tensor, _UpdateOne] = WeakIdKeyDictionary()
"""The hook that updates a parameter; one whose optimizer was freed stays until it is replaced."""


class _UpdateOne:
    """The hook of one parameter. It does not keep the optimizer alive: torch's hooks are unknown to Python's garbage
    collection, which could never free an optimizer and parameters that keep each other.
    """

    def __init__(self, optimizer: UpdatesOne, group_index: int, index: int) -> None:
        self.optimizer = weakref.ref(optimizer)
        self._place = group_index, index

    @untraced
    def __call__(self, param: torch.Tensor) -> None:
        if _hooks.get(param) is not self or param.grad is None:  # another hook may have used it
            return
        optimizer = self.optimizer()
        if optimizer is None:
            raise OpArgumentError(
                f"The optimizer that updates {place_of(*self._place, param)} during backward() no longer exists.",
                "Keep a reference to it while you train, or call its remove_hooks() before you drop it.",
            )
        ranks = torch.distributed
        if ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1:
            warn_once(logger, _RANKS_DIVERGE)
        if not self._is_in_place(optimizer, param):
            raise OpArgumentError(
                f"A parameter of shape {tuple(param.shape)} is no longer at its place in the groups of the optimizer "
                "that updates it during backward().",
                "Call remove_hooks() of the optimizer before you remove or reorder parameters, and create it again.",
            )
        with torch.no_grad():
            optimizer.update_one(param, *self._place)
        param.grad = None

    def _is_in_place(self, optimizer: UpdatesOne, param: torch.Tensor) -> bool:
        group_index, index = self._place
        groups = optimizer.param_groups
        params = groups[group_index]["params"] if group_index < len(groups) else []
        return index < len(params) and params[index] is param


def add_hooks(optimizer: UpdatesOne, group_index: int) -> list[Any]:
    """Update the parameters of a group during ``backward()``; returns the handles of the hooks.

    A parameter that requires no gradient gets no hook: ``step()`` updates it, should it have a gradient later.
    """
    params = optimizer.param_groups[group_index]["params"]
    for index, param in enumerate(params):
        place = place_of(group_index, index, param)
        if is_dtensor(param) or is_flat(param):
            raise OpArgumentError(
                f"in_backward is not supported for {place}, a sharded parameter: its gradient is reduced over the "
                "ranks only after it was accumulated.",
                "Create the optimizer without in_backward.",
            )
        if param in _hooks and _hooks[param].optimizer() not in (None, optimizer):
            raise OpArgumentError(
                f"Another optimizer already updates {place} during backward().",
                "Call remove_hooks() of that optimizer first.",
            )
    if owners_of_shared_memory(enumerate(param for group in optimizer.param_groups for param in group["params"])):
        raise OpArgumentError(
            "Two parameters share memory, or one is given twice; both hooks of in_backward would update it.",
            "Give each parameter once: for tied weights, let the modules have one Parameter.",
        )
    handles = []
    for index, param in enumerate(params):
        if param.requires_grad:
            _hooks[param] = hook = _UpdateOne(optimizer, group_index, index)
            handles.append(param.register_post_accumulate_grad_hook(hook))
    return handles


def remove_hooks(optimizer: UpdatesOne, handles: list[Any]) -> None:
    """Undo :func:`add_hooks`; empties ``handles``."""
    while handles:
        handles.pop().remove()
    for param in [param for param, hook in _hooks.items() if hook.optimizer() is optimizer]:
        del _hooks[param]
