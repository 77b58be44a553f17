"""What the modules of all optimizers on host tensors have in common: lists of tensors in one call."""

from __future__ import annotations

import logging
import math
import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch._compile import _disable_dynamo

from op_builder import env
from op_builder.cpu_isa import best_isa
from op_builder.errors import OpArgumentError
from op_builder.ops.native.arguments import call_op, explained, step_number

logger = logging.getLogger(__name__)

QUANT_BLOCK = 256  # elements that share a scale where states are bytes; csrc/kernels/cpu/optimizer.h


class Pass(NamedTuple):
    """What an update does beside its formula, in the same pass over memory.

    Attributes:
        grad_scale: every gradient is multiplied by it first: one over a loss scale, a factor that
            clips the norm, a negative number to maximise.
        zero_grads: leave zeros in the gradients.
        stochastic: states of bfloat16 are rounded up or down at random, so that the mean is exact.
        seed: of that rounding, and of 8-bit states'. The same seed, step and place of a
            parameter (``TensorLists.places``) give the same bits, whatever the number of threads.
    """

    grad_scale: float = 1.0
    zero_grads: bool = False
    stochastic: bool = False
    seed: int = 0

    def positional(self) -> tuple[float, bool, bool, int]:
        """The fields as the ops take them."""
        return (float(self.grad_scale), bool(self.zero_grads), bool(self.stochastic), int(self.seed))


class TensorLists(NamedTuple):
    """The tensors of an update, a list entry for each parameter.

    Attributes:
        params: contiguous CPU tensors of float32, bfloat16 or float16.
        grads: of the same lengths, of any of the three types.
        states: a list for each state of the optimizer; entries are all of float32, of their
            parameter's type, of bfloat16 with ``Pass.stochastic``, or uint8 with scales.
        scales: a list for each state, of float32 tensors with one entry for each QUANT_BLOCK
            elements begun; empty unless states are uint8.
        copies: where the new parameters go as well, rounded to their own type; or empty.
        places: an int for each parameter that its random bits depend on, of 64 bits; empty for its index. Numbers
            that stay keep the bits of a parameter when others join the list or leave it.
    """

    params: Sequence[torch.Tensor]
    grads: Sequence[torch.Tensor]
    states: Sequence[Sequence[torch.Tensor]]
    scales: Sequence[Sequence[torch.Tensor]] = ()
    copies: Sequence[torch.Tensor] = ()
    places: Sequence[int] = ()

    def by_role(self, names: Sequence[str]) -> dict[str, Sequence[torch.Tensor]]:
        """All lists under the names that messages give them.

        Raises:
            OpArgumentError: there are not as many lists of states, or of scales, as ``names``, or a
                list is not as long as ``params``.
        """
        for what, lists in (("states", self.states), ("scales", self.scales or names)):
            if len(lists) != len(names):
                raise OpArgumentError(
                    f"{len(lists)} lists of {what} were given.", f"Pass {len(names)}: {', '.join(names)}."
                )
        scales = {f"scale of {name}": scale for name, scale in zip(names, self.scales, strict=False)}
        states = dict(zip(names, self.states, strict=True))
        roles = {"param": self.params, "grad": self.grads, **states, **scales, "copy": self.copies}
        # Not left to the op, which gets all states end to end: lists of 2 and 0 would look like 1 and 1.
        for role, members in roles.items():
            if len(members) != len(self.params) and (role != "copy" or len(members)):
                raise OpArgumentError(
                    f"{len(self.params)} parameters came with {len(members)} {role} tensors.",
                    "Pass one for each parameter.",
                )
        if len(self.places) not in (0, len(self.params)):
            raise OpArgumentError(
                f"{len(self.params)} parameters came with {len(self.places)} places.",
                "Pass one for each parameter, or none.",
            )
        return roles

    def changed(self, also: Pass) -> list[torch.Tensor]:
        """What an update changes of the tensors that autograd may have kept."""
        return [*self.params, *self.copies, *(self.grads if also.zero_grads else ())]

    def positional(self) -> tuple[Sequence[torch.Tensor], ...]:
        """The lists of tensors as the ops take them: those of all states end to end."""
        states = [tensor for state in self.states for tensor in state]
        scales = [tensor for scale in self.scales for tensor in scale]
        return (self.params, self.grads, states, scales, self.copies)


# For methods of prepared lists: torch.compile then calls them outside its graph, as it does torch's own
# optimizers. What they change is known to the native side alone: tracing would run an op for real, and
# the graph would drop it as one that does nothing.
_untraced = _disable_dynamo


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

        Args:
            tensors: no tensor may appear twice.
            step: the number of this update, from 1.
            options: as in OPTIONS; their values are not checked.

        Raises:
            OpArgumentError: a tensor or the step does not fit; no tensor was changed.
        """
        roles = tensors.by_role(self.STATES)
        also = also or Pass()
        arguments = (
            step_number(step),
            [float(value) for value in options],
            *also.positional(),
            self.isa,
            tensors.places,
        )
        call_op(self.ops.update.default, roles, tensors.positional(), *arguments)
        # autograd then notices what was changed between a forward and its backward.
        torch.autograd.graph.increment_version(tensors.changed(also))

    @_untraced
    def prepare(self, tensors: TensorLists, steps: Sequence[torch.Tensor]) -> PreparedList:
        """Keep tensors for many updates, each of which then costs 0.1 microseconds a tensor.

        Args:
            steps: the updates done so far of each parameter: CPU tensors of one float32, float64 or
                int64, which every update counts up.

        Raises:
            OpArgumentError: a tensor is none, or not on the CPU, or a list is not as long as the parameters' one.
                All else is checked by the updates.
        """
        roles = {**tensors.by_role(self.STATES), "step": steps}
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

    @_untraced
    def update(self, options: Sequence[float], also: Pass) -> None:
        """Update all parameters and states in place and count their steps up.

        Raises:
            OpArgumentError: a tensor does not fit any more, or a step is no whole number; nothing was changed.
        """
        if self._number:
            with explained():
                self._update(self._number, list(options), *also.positional(), self._isa)
            torch.autograd.graph.increment_version(self._changed)
            if also.zero_grads:
                torch.autograd.graph.increment_version(self._grads)

    @_untraced
    def replace_grads(self, grads: Sequence[torch.Tensor]) -> None:
        """Take other gradients from now on.

        Raises:
            OpArgumentError: one is no tensor, or not on the CPU, or there are not as many as parameters.
                All else is checked by the updates.
        """
        if len(grads) != self._count:
            raise OpArgumentError(
                f"{self._count} parameters came with {len(grads)} grad tensors.", "Pass one for each parameter."
            )
        call_op(self._replace_grads, {"grad": grads}, (self._number, grads))
        self._grads = tuple(grads)

    @_untraced
    def release_grads(self) -> None:
        """Hold the gradients no longer; updates are refused until :meth:`replace_grads`."""
        if self._number:
            self._release_grads(self._number)
            self._grads = ()

    @_untraced
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


def _identity(optimizer_id: int) -> int:
    try:
        if not isinstance(optimizer_id, bool):
            return operator.index(optimizer_id)
    except TypeError:
        pass
    raise OpArgumentError(f"optimizer_id is {optimizer_id!r}, which is not an int.", "Pass an int.")
