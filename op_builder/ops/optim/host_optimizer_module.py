"""What the modules of all optimizers on host tensors have in common: lists of tensors in one call."""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from op_builder import env
from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import call_op, in_a_tensor, is_traced, roles_of, step_number, untraced
from op_builder.system.cpu_isa import best_isa

if TYPE_CHECKING:
    from op_builder.ops.optim.prepared_list import PreparedList
    from op_builder.ops.optim.tensor_lists import Pass, TensorLists

logger = logging.getLogger(__name__)


class HostOptimizerModule:
    """The list form of an optimizer on host tensors: all parameters of a group in one native call.

    Threads, torch's own, get even shares of all elements together. Arithmetic is in float32; results
    do not depend on the number of threads. Everything is checked before anything is written.

    Args:
        ops: the namespace of torch ops that the binding registered.

    Attributes:
        OPTIONS: the numbers that every update takes, in their order.
        STATES: the names of the optimizer's states.
        ops: the namespace.
        isa: instruction set in use, fixed when the module is made (``ACCEL_CPU_ISA`` caps it).
    """

    OPTIONS: ClassVar[tuple[str, ...]]
    STATES: ClassVar[tuple[str, ...]]

    def __init__(self, ops: Any) -> None:
        self.ops = ops
        self.isa = best_isa(tuple(ops.supported_isas().split(",")), env.ACCEL_CPU_ISA.get())
        self._registered: dict[int, Mapping[str, Any]] = {}

    def update_list(self, tensors: TensorLists, step: int, options: Sequence[float], also: Pass | None = None) -> None:
        """Update all parameters and their states in place.

        Under torch.compile step, options and ``grad_scale`` may change without another graph, and be tensors of one
        element on the CPU, read when the graph runs; what does not fit is a ValueError then.

        Args:
            tensors: no tensor may appear twice.
            step: the number of this update, from 1.
            options: as in OPTIONS; their values are not checked.

        Raises:
            OpArgumentError: a tensor or the step does not fit; no tensor was changed.
        """
        if also is None:
            from op_builder.ops.optim.tensor_lists import Pass

            also = Pass()
        roles = roles_of(tensors, self.STATES)
        step = step_number(step)
        rest = (*also.settings(), self.isa, tensors.places)
        if is_traced():
            numbers = in_a_tensor((step, also.grad_scale, *options))
            call_op(self.ops.update.numbers, roles, tensors.positional(), numbers, *rest)
        else:
            values = [float(value) for value in options]
            call_op(self.ops.update.default, roles, tensors.positional(), step, values, float(also.grad_scale), *rest)
        # autograd then notices what was changed between a forward and its backward.
        torch.autograd.graph.increment_version(tensors.changed(also))

    @untraced
    def prepare(self, tensors: TensorLists, steps: Sequence[torch.Tensor]) -> PreparedList:
        """Keep tensors for many updates, each of which then costs 0.1 microseconds a tensor.

        Args:
            steps: the updates done so far of each parameter: CPU tensors of one float32, float64 or
                int64, which every update counts up.

        Raises:
            OpArgumentError: a tensor is none, or not on the CPU, or a list is not as long as the parameters' one.
                All else is checked by the updates.
        """
        from op_builder.ops.optim.prepared_list import PreparedList

        roles = {**roles_of(tensors, self.STATES), "step": steps}
        number = call_op(self.ops.prepare.default, roles, (*tensors.positional(), steps), tensors.places)
        return PreparedList(self, 0 if number is None else number, tensors)

    def norm(self, tensors: Sequence[torch.Tensor]) -> float:
        """The Euclidean norm of all elements together, added up in float64; inf or NaN if one is.

        Raises:
            OpArgumentError: a tensor is not a contiguous CPU tensor of float32, bfloat16 or float16.
        """
        total = torch.zeros(1, dtype=torch.float64)
        call_op(self.ops.sum_of_squares.default, {"tensor": tensors}, (tensors, total), self.isa)
        return math.sqrt(total.item())

    def _lists_of_one(self, param: torch.Tensor, grad: torch.Tensor, *states: torch.Tensor) -> TensorLists:
        """The lists of a single parameter."""
        from op_builder.ops.optim.tensor_lists import TensorLists

        return TensorLists([param], [grad], [[state] for state in states])

    @property
    def _kind(self) -> str:
        return type(self).__name__.removeprefix("CPU").removesuffix("Module")

    def _register(self, optimizer_id: int, options: Mapping[str, Any], should_log: bool) -> None:
        """Keep the options of an optimizer under an id of the caller's choice."""
        number = _identity(optimizer_id)
        if number in self._registered:
            destroy = f"destroy_{self._kind.lower()}"
            raise OpArgumentError(f"Optimizer id {number} is in use.", f"Choose another, or call {destroy} first.")
        self._registered[number] = options
        if should_log:
            told = ", ".join(f"{name}={value}" for name, value in options.items())
            logger.info("%s %s: %s arithmetic, %s", type(self).__name__, number, self.isa, told)

    def _options_of(self, optimizer_id: int) -> Mapping[str, Any]:
        try:
            return self._registered[_identity(optimizer_id)]
        except KeyError:
            raise OpArgumentError(
                f"There is no {self._kind} optimizer with id {optimizer_id}: it was never created or is destroyed.",
                "Create it with this id first.",
            ) from None

    def _forget(self, optimizer_id: int) -> None:
        self._options_of(optimizer_id)
        del self._registered[_identity(optimizer_id)]


def _identity(optimizer_id: int) -> int:
    try:
        if not isinstance(optimizer_id, bool):
            return operator.index(optimizer_id)
    except TypeError:
        pass
    raise OpArgumentError(f"optimizer_id is {optimizer_id!r}, which is not an int.", "Pass an int.")
