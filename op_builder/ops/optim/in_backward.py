"""Updates during ``backward()``: of each parameter as soon as its gradient is complete, so that few gradients exist.

torch calls a hook when it has accumulated the gradient of a parameter; the hook updates that parameter alone and frees
the gradient.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.optim.checks import place_of
from op_builder.ops.optim.sharding import is_dtensor, is_flat
from op_builder.ops.optim.tensor_lists import TensorLists

if TYPE_CHECKING:
    from op_builder.ops.optim.host_optimizer import HostOptimizer


logger = logging.getLogger(__name__)


class _UpdateOne:
    """The hook of one parameter. It does not keep the optimizer alive: torch's hooks are unknown to Python's garbage
    collection, which could never free an optimizer and parameters that keep each other.
    """

    def __init__(self, optimizer: HostOptimizer, group_index: int, index: int) -> None:
        self.optimizer = weakref.ref(optimizer)
        self._group_index = group_index
        self._index = index

    def __call__(self, param: torch.Tensor) -> None:
        place = place_of(self._group_index, self._index, param)
        optimizer = self.optimizer()
        if optimizer is None:
            raise OpArgumentError(
                f"The optimizer that updates {place} during backward() no longer exists.",
                "Keep a reference to it while you train, or call its remove_hooks() before you drop it.",
            )
        # As in a step of all groups, so that random rounding gives the same bits.
        number = (self._group_index << 32) + self._index
        with torch.no_grad():
            optimizer.update_one(param, optimizer.param_groups[self._group_index], place, number)
        param.grad = None


def add_hooks(optimizer: HostOptimizer, group_index: int) -> list[Any]:
    """Update the parameters of a group during ``backward()``; returns the handles of the hooks.

    A parameter that requires no gradient gets no hook: ``step()`` updates it, should it have a gradient later.

    Raises:
        OpArgumentError: a parameter is sharded, or another optimizer has such hooks.
    """
    params = optimizer.param_groups[group_index]["params"]
    if (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    ):
        logger.warning(
            "in_backward updates each parameter with the gradient of this rank alone: DistributedDataParallel "
            "averages gradients only after that."
        )
    for index, param in enumerate(params):
        place = place_of(group_index, index, param)
        if is_dtensor(param) or is_flat(param):
            raise OpArgumentError(
                f"in_backward is not supported for {place}, a sharded parameter: its gradient is reduced over the "
                "ranks only after it was accumulated.",
                "Create the optimizer without in_backward.",
            )
        hooks: dict[int, Any] = getattr(param, "_post_accumulate_grad_hooks", None) or {}
        for number, hook in list(hooks.items()):
            if isinstance(hook, _UpdateOne):
                if hook.optimizer() is not None:
                    raise OpArgumentError(
                        f"Another optimizer already updates {place} during backward().",
                        "Call remove_hooks() of that optimizer first.",
                    )
                del hooks[number]
    return [
        param.register_post_accumulate_grad_hook(_UpdateOne(optimizer, group_index, index))
        for index, param in enumerate(params)
        if param.requires_grad
    ]


def lists_of_one(
    param: torch.Tensor,
    state: Mapping[str, Any],
    names: tuple[list[str], list[str]],
    copies: list[torch.Tensor],
    number: int,
) -> TensorLists:
    """The lists of an update of one parameter.

    Args:
        names: of its states and of their scales, in the op's order.
        number: what its random bits depend on.
    """
    assert param.grad is not None
    states, scales = ([[state[name]] for name in part] for part in names)
    return TensorLists([param], [param.grad.resolve_neg().contiguous()], states, scales, copies, [number])
