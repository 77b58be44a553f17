"""What all optimizers with parameters and state in host memory have in common.

One native call updates all parameters of a group. Its tensors are prepared once; every step asks,
cheaply, whether they still are the ones that were prepared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, overload

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import LAST_STEP, finite_number, untraced, whole_number
from op_builder.ops.optim import packed_states
from op_builder.ops.optim.beside import Question
from op_builder.ops.optim.native_optimizer import NativeOptimizer, state_dtype
from op_builder.ops.optim.prepared_groups import Batch
from op_builder.ops.optim.prepared_list import PreparedList
from op_builder.ops.optim.small_tensors import SmallTensors
from op_builder.ops.optim.tensor_lists import Pass

_LARGEST_FLOAT = torch.finfo(torch.float32).max
_CLIP_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_'s

#: How states are kept: ``float32``, in the parameter's type (``param``), in bfloat16 with stochastic
#: rounding, or in 8 bits with a scale for each 256 elements.
STORAGES = ("float32", "param", "bfloat16", "8bit")

# Options of torch.optim's optimizers that choose between implementations of one result; kept so that
# theirs can load our state, of no effect here. In host memory there is nothing to capture.
IGNORED_OPTIONS: dict[str, Any] = {"foreach": None, "fused": None, "capturable": False}
# Those that stand in every group at the one value that is taken, for the same reason.
FIXED_OPTIONS: dict[str, Any] = {"differentiable": False}


# What belongs to the optimizer and is no group's option, and what it is where an old pickle lacks it.
_SAVED: dict[str, Any] = {"max_grad_norm": None, "zero_grads": False, "seed": 0}


class HostOptimizer(NativeOptimizer):
    """Base of :class:`CPUAdam` and its like; a subclass declares its options and its formula's numbers.

    Attributes:
        grad_norm: the Euclidean norm of all gradients in the last step, before clipping; None where it
            was not asked for (``max_grad_norm``, ``grad_scale``).
        skipped: whether the last step changed nothing because a gradient was infinite or NaN.
    """

    STORAGES: ClassVar[tuple[str, ...]] = STORAGES
    FIXED: ClassVar[Mapping[str, Any]] = FIXED_OPTIONS

    grad_norm: float | None
    skipped: bool
    _memory: SmallTensors

    def __init__(
        self,
        params: Iterable[Any],
        options: dict[str, Any],
        *,
        max_grad_norm: float | None = None,
        zero_grads: bool = False,
        seed: int = 0,
    ) -> None:
        """
        Args:
            params: parameters, or dicts of parameters and options.
            options: the groups' defaults.
            max_grad_norm: gradients are scaled down so that the Euclidean norm of all together is at
                most this, as :func:`torch.nn.utils.clip_grad_norm_` does; infinity only measures it.
            zero_grads: leave zeros in the gradients after a step.
            seed: of stochastic rounding.
        """
        if (
            max_grad_norm is not None
            and max_grad_norm != math.inf
            and not finite_number("max_grad_norm", max_grad_norm)
        ):
            raise OpArgumentError(f"max_grad_norm is {max_grad_norm}.", "Give a number above 0, or None.")
        options = {**self.FIXED, **IGNORED_OPTIONS, **options}
        self._check_group(options)
        self.max_grad_norm = max_grad_norm
        self.zero_grads = bool(zero_grads)
        self.seed = whole_number("seed", seed)
        self._start()
        super().__init__(params, options)

    # torch.optim.Optimizer's interface --------------------------------------------------------

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in _SAVED.items():
            self.__dict__.setdefault(name, value)
        super().__setstate__(state)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in _SAVED}}

    @overload
    def step(self, closure: None = None, *, grad_scale: float | torch.Tensor | None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float], *, grad_scale: float | torch.Tensor | None = None) -> float: ...

    @torch.no_grad()
    @untraced
    def step(
        self, closure: Callable[[], float] | None = None, *, grad_scale: float | torch.Tensor | None = None
    ) -> float | None:
        """Update every parameter that has a gradient.

        With ``grad_scale`` or ``max_grad_norm`` the gradients are read once more beforehand, for their
        norm; dividing by the scale, clipping, the copies of :meth:`write_copies` and zeroing are then
        part of the one pass that updates. If a gradient is infinite or NaN, or the norm beyond what
        float32 holds, parameters and states stay as they are and ``skipped`` is True.

        Args:
            closure: reevaluates the model and returns the loss.
            grad_scale: what the loss was multiplied by, a number or a tensor of one element.

        Raises:
            OpArgumentError: an option, a gradient or a step counter of any group does not fit; nothing
                was changed. A state or parameter whose type or length was changed by hand is found
                only by the native call for its group, which changes none of its tensors, but comes
                after those for earlier groups.
        """
        loss = self._begin_step(closure)
        try:
            if not self._updates_unread(grad_scale):
                batches = self._groups.current(self, self.param_groups, self.state, writes_grads=self.zero_grads)
                factor = self._grad_factor(grad_scale, batches)
                self.skipped = factor is None
                if factor is not None:
                    self._update(batches, factor)
                elif self.zero_grads:  # what is infinite would stay so in the sum with the next gradients
                    torch._foreach_zero_([grad for batch in batches for grad in batch.grads])
        finally:
            self._groups.step_done()
        return loss

    def _updates_unread(self, grad_scale: float | torch.Tensor | None) -> bool:
        """Update where that can begin before gradients were read; False where it cannot, or some were replaced."""
        given = (self.max_grad_norm, grad_scale, getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        if any(value is not None for value in given):  # they may ask for the norm, or for none of it
            return False
        unread = self._groups.unread(self, self.param_groups, self.state, writes_grads=self.zero_grads)
        if unread is None or not self._update(unread[0], question=unread[1]):
            return False
        self.grad_norm, self.skipped = None, False
        return True

    def _update(
        self, batches: Sequence[Batch[PreparedList]], factor: float = 1.0, question: Question | None = None
    ) -> bool:
        """Update all; False where the answer to the question, which the first op asks, was not yes: nothing was."""
        for batch in batches:
            group = batch.group
            numbers = self._numbers(group)
            also = Pass(
                grad_scale=-factor if group["maximize"] else factor,
                zero_grads=self.zero_grads,
                stochastic=group["states"] == "bfloat16",
                seed=self.seed,
            )
            options = [float(numbers[name]) for name in batch.module.OPTIONS]
            if not batch.prepared.update(options, also, question):
                return False
            question = None
            if batch.copied and self.zero_grads:
                torch._foreach_zero_(batch.copied)
        return True

    # Beside the update ------------------------------------------------------------------------

    def write_copies(self, copies: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Write each new parameter to another tensor as well, rounded to that tensor's type.

        For float32 parameters in host memory of a model in bfloat16 or float16. Not part of the
        ``state_dict``; a second call replaces the first.

        Args:
            copies: parameters of this optimizer, and for each a contiguous CPU tensor of as many
                elements, of float32, bfloat16 or float16.

        Raises:
            OpArgumentError: a key is no parameter of this optimizer.
        """
        known = {id(param) for group in self.param_groups for param in group["params"]}
        for param in copies:
            if id(param) not in known:
                raise OpArgumentError(
                    f"A tensor of shape {tuple(param.shape)} is no parameter of this optimizer.",
                    "Give its parameters as keys, the tensors to write to as values.",
                )
        self._groups.write_copies(copies)

    # The parts of a step ----------------------------------------------------------------------

    def _grad_factor(
        self, grad_scale: float | torch.Tensor | None, batches: Sequence[Batch[PreparedList]]
    ) -> float | None:
        """What every gradient is multiplied by; None if the step is to be skipped."""
        self.grad_norm = None
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and float(found_inf) != 0:
            return None
        if grad_scale is None:
            grad_scale = getattr(self, "grad_scale", None)
        elif getattr(self, "grad_scale", None) is not None:
            raise OpArgumentError(
                "grad_scale was given to a step that a GradScaler calls.", "Let the GradScaler scale alone."
            )
        scale = 1.0
        if grad_scale is not None:
            scale = finite_number("grad_scale", grad_scale)
            if scale == 0 or 1 / scale > _LARGEST_FLOAT:
                raise OpArgumentError(
                    f"grad_scale is {scale:g}, and one over it is no float32.", "Pass what the loss was multiplied by."
                )
        if self.max_grad_norm is None and (grad_scale is None or found_inf is not None):
            return 1 / scale
        norm = math.hypot(*(batch.prepared.grad_norm() for batch in batches)) / scale
        self.grad_norm = norm
        if not norm <= _LARGEST_FLOAT:  # an element may be infinite where it is scaled, in float32
            return None
        clip = 1.0 if self.max_grad_norm is None else min(1.0, self.max_grad_norm / (norm + _CLIP_EPSILON))
        return clip / scale

    # What PreparedGroups asks, and loading ----------------------------------------------------

    def state_of(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """A parameter's state as the group keeps it; what is missing of it is made."""
        state: dict[str, Any] = self.state[param]
        names, scales = self.names_of(group)
        if "step" not in state or any(state.get(name) is None for name in (*names, *scales)):
            state = self.state[param] = self._loaded(state, param, group)
        if not isinstance(state["step"], torch.Tensor):
            state["step"] = self._memory.copy(torch.tensor(float(state["step"])))  # as old checkpoints have it
        return state

    def names_of(self, group: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """The names of the states in the native op's order, and of their scales."""
        if group["states"] != "8bit":
            return super().names_of(group)
        pairs = [packed_states.names(state) for state in self._states_of(group)]
        return [codes for codes, _ in pairs], [scales for _, scales in pairs]

    def _steps_unsaid(self, _state: Mapping[str, Any]) -> float:
        """The updates that a state without ``step`` has seen."""
        return 0.0

    def _first_value(self, _name: str, _group: Mapping[str, Any]) -> float:
        """What a state begins with."""
        return 0.0

    def _loaded(self, saved: Mapping[str, Any], param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        states = self._states_of(group)
        of_states = {name for state in states for name in (state, *packed_states.names(state))}
        loaded = {name: value for name, value in saved.items() if name not in of_states}
        step = saved["step"] if "step" in saved else self._steps_unsaid(saved)
        loaded["step"] = self._memory.copy(step) if isinstance(step, torch.Tensor) else step
        for name in states:
            loaded.update(self._loaded_state(name, saved, param, group))
        return loaded

    def _loaded_state(
        self, name: str, saved: Mapping[str, Any], param: torch.Tensor, group: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """The entries of one state, from saved values, from saved bytes, or from the beginning."""
        non_negative = name in self.NON_NEGATIVE
        packed = packed_states.names(name)
        if group["states"] == "8bit" and packed_states.are_saved(name, saved):
            return {key: self._memory.copy(saved[key]) for key in packed}
        value = packed_states.saved_values(name, saved, non_negative)
        if value is None:
            # One element in memory; what is made of it is filled as it is written.
            value = torch.full((), self._first_value(name, group)).expand(param.shape)
        if group["states"] == "8bit":
            return dict(zip(packed, map(self._memory.copy, packed_states.encoded(value, non_negative)), strict=True))
        return {name: self._memory.copy(value, state_dtype(param, group))}

    def _start(self) -> None:
        super()._start()
        self._memory = SmallTensors()
        self.grad_norm = None
        self.skipped = False

    # Checks -----------------------------------------------------------------------------------

    def _check_group(self, group: Mapping[str, Any]) -> None:
        finite_number("lr", group["lr"])
        for name in _SAVED:
            if name in group:
                raise OpArgumentError(
                    f"A group has {name}={group[name]!r}, which is no option of a group.",
                    f"Give {name} to {type(self).__name__} itself.",
                )
        super()._check_group(group)

    def _check_device(self, param: torch.Tensor, what: str, group: Mapping[str, Any]) -> None:  # noqa: ARG002
        if param.device.type != "cpu":
            raise OpArgumentError(
                f"{what} is on device {param.device}; {type(self).__name__} works on CPU tensors.",
                "Give it copies in host memory, for example p.detach().float().cpu().",
            )

    def _check_saved(self, what: str, entry: Mapping[str, Any], group: Mapping[str, Any]) -> None:
        self._require(what, entry, ("step",))
        for name in self._states_of(group):
            codes, scales = packed_states.names(name)
            self._require(what, entry, (scales,) if codes in entry else (name,))

    def check_state(self, state: Mapping[str, Any], index: int, group: Mapping[str, Any]) -> None:
        """Refuse a parameter's state that does not fit, its number of steps too."""
        super().check_state(state, index, group)
        try:
            number = float(state.get("step", 0))
        except (TypeError, ValueError, RuntimeError):  # no number, or a tensor of several
            number = math.nan
        if not (number.is_integer() and 0 <= number <= LAST_STEP):
            raise OpArgumentError(
                f"The state of parameter {index} has step {state.get('step')!r}; it must be a whole number from 0 on.",
                "Load an intact state.",
            )
