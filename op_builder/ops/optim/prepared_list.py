"""Lists of tensors that a native op keeps for many updates."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import explained, untraced

if TYPE_CHECKING:
    from op_builder.ops.optim.native_op import NativeOp
    from op_builder.ops.optim.tensor_lists import TensorLists


class PreparedList:
    """Tensors of one device that a native op keeps for many updates; made by its ``prepare``.

    It keeps the tensors alive and checks them in every update: a tensor whose memory, length or type was changed in
    place is updated as it is then. It does not notice that a tensor was replaced by another: prepare a new list, or
    call :meth:`replace_grads`.

    Args:
        op: the native op.
        number: the op's number for the list; 0 for an empty one.
    """

    def __init__(self, op: NativeOp, number: int, tensors: TensorLists) -> None:
        self._op = op
        self._number = number
        self._count = len(tensors.params)
        self._changed = (*tensors.params, *tensors.copies)
        self._grads = tuple(tensors.grads)
        self._grads_are_writable = False  # whether they were checked
        self._device = tensors.params[0].device if self._count else torch.device("cpu")
        if number:
            weakref.finalize(self, op.ops.forget.default, number).atexit = False

    @untraced
    def update(self, options: Sequence[float], settings: Any) -> None:
        """Update all parameters and states in place and advance their steps.

        Args:
            options: as in the op's ``options``.
            settings: a :class:`~op_builder.ops.optim.tensor_lists.Pass` for an optimizer on host tensors, a
                :class:`~op_builder.ops.optim.fused_op.Control` for a fused one.

        Raises:
            OpArgumentError: a tensor no longer fits, or a step is not a whole number; nothing was changed.
        """
        if not self._number:
            return
        zero_grads = getattr(settings, "zero_grads", False)
        if zero_grads:
            self.require_writable_grads()
        with explained():
            self._op.ops.update_prepared.default(
                self._number, *self._op.prepared_arguments(options, settings, self._device)
            )
        torch.autograd.graph.increment_version((*self._changed, *self._grads) if zero_grads else self._changed)

    @untraced
    def replace_grads(self, grads: Sequence[torch.Tensor]) -> list[int]:
        """Use other gradients from the next update on.

        Returns:
            The indices of those that are not contiguous, which an update would reject.

        Raises:
            OpArgumentError: one is not a tensor or not on the device of its parameter, or their number is not that of
                the parameters. The updates check everything else.
        """
        if len(grads) != self._count:
            raise OpArgumentError(
                f"{self._count} parameters came with {len(grads)} grad tensors.", "Pass one for each parameter."
            )
        if not self._number:
            return []
        taken = 0
        strided: list[int] = []
        try:
            with explained(), torch.no_grad():
                taken, *strided = self._op.ops.replace_grads.default(self._number, grads)
        except (RuntimeError, TypeError) as error:  # NotImplementedError, a RuntimeError: torch has no kernel for one
            if all(isinstance(grad, torch.Tensor) for grad in grads) and not isinstance(error, NotImplementedError):
                raise  # a gradient's own
        if taken != len(grads):
            raise self._op.unfit_tensor({"grad": grads}, self._device)
        self._grads = tuple(grads)
        self._grads_are_writable = False
        return strided

    def require_writable_grads(self) -> None:
        """Raise an OpArgumentError if a gradient is a lazy negation: zeros would go to a copy with its values."""
        if not self._grads_are_writable and any(map(torch.Tensor.is_neg, self._grads)):
            raise self._op.unfit_tensor({"grad": self._grads}, self._device)
        self._grads_are_writable = True

    @untraced
    def moved_params(self) -> list[int]:
        """The indices of parameters whose memory, length or type changed since the last update."""
        if not self._number:
            return []
        moved: list[int] = self._op.ops.moved_params.default(self._number)
        return moved

    @untraced
    def release_grads(self) -> None:
        """Drop the gradients; updates are rejected until :meth:`replace_grads`."""
        if self._number:
            self._op.ops.release_grads.default(self._number)
            self._grads = ()

    @untraced
    def grad_norm(self) -> float:
        """The Euclidean norm of all gradients together, for tensors in host memory; inf or NaN if an element is.

        Raises:
            OpArgumentError: a gradient does not fit, or the gradients were released.
        """
        if not self._number:
            return 0.0
        if not self._grads:
            raise OpArgumentError("The gradients were released.", "Call replace_grads first.")
        with explained():
            return math.sqrt(self._op.ops.grad_sum_of_squares.default(self._number, self._op.isa))
