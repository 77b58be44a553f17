"""Tensors handed to a native op once, for many updates."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import explained, replaced_grads, unfit_tensor, untraced
from op_builder.ops.optim.beside import Question, are_many, call_beside, update_beside

if TYPE_CHECKING:
    from op_builder.ops.optim.host_optimizer_module import HostOptimizerModule
    from op_builder.ops.optim.tensor_lists import Pass, TensorLists


class PreparedList:
    """Tensors that a native op keeps for many updates; made by :meth:`HostOptimizerModule.prepare`.

    It keeps the tensors alive and looks at them in every update, so one whose memory, length or type
    was changed in place meanwhile is updated as it is then. A tensor that was replaced by another is
    not noticed: the list must be made anew, or :meth:`replace_grads` called.
    """

    def __init__(self, module: HostOptimizerModule, number: int, tensors: TensorLists) -> None:
        self._number = number
        self._count = len(tensors.params)
        self._changed = (*tensors.params, *tensors.copies)
        self._grads = tuple(tensors.grads)
        self._isa = module.isa
        ops = module.ops
        self._update = ops.update_prepared.default
        self._replace_grads = ops.replace_grads.default
        self._release_grads = ops.release_grads.default
        self._sum_of_squares = ops.grad_sum_of_squares.default
        if number:
            weakref.finalize(self, ops.forget.default, number).atexit = False

    @untraced
    def update(self, options: Sequence[float], also: Pass, question: Question | None = None) -> bool:
        """Update all parameters and states in place and count their steps up.

        Args:
            question: what is asked while the tensors are looked at.

        Returns:
            False where its answer was not yes: nothing was changed.

        Raises:
            OpArgumentError: a tensor does not fit any more, or a step is no whole number; nothing was changed.
        """
        if not self._number:
            return True
        changed = (*self._changed, *self._grads) if also.zero_grads else self._changed
        arguments = (self._number, list(options), *also.positional(), self._isa)
        with explained():
            if are_many(self._count):
                return update_beside(self._update, arguments, changed, question)
            is_updated = call_beside(self._update, arguments, question=question)
        if is_updated:
            torch.autograd.graph.increment_version(changed)
        return is_updated

    @untraced
    def replace_grads(self, grads: Sequence[torch.Tensor]) -> list[int]:
        """Take other gradients from now on.

        Returns:
            The places of those that are not contiguous, which an update would refuse.

        Raises:
            OpArgumentError: one is no tensor, or not on the CPU, or there are not as many as parameters.
                All else is checked by the updates.
        """
        if len(grads) != self._count:
            raise OpArgumentError(
                f"{self._count} parameters came with {len(grads)} grad tensors.", "Pass one for each parameter."
            )
        if not self._number:
            return []
        odd = replaced_grads(self._replace_grads, self._number, grads)
        if odd is None:
            raise unfit_tensor({"grad": grads})
        self._grads = tuple(grads)
        return odd

    @untraced
    def release_grads(self) -> None:
        """Hold the gradients no longer; updates are refused until :meth:`replace_grads`."""
        if self._number:
            self._release_grads(self._number)
            self._grads = ()

    @untraced
    def grad_norm(self) -> float:
        """The Euclidean norm of all gradients together; inf or NaN if an element is.

        Raises:
            OpArgumentError: a gradient does not fit, or they were released.
        """
        if not self._number:
            return 0.0
        if not self._grads:
            raise OpArgumentError("The gradients were released.", "Call replace_grads first.")
        with explained():
            return math.sqrt(self._sum_of_squares(self._number, self._isa))
