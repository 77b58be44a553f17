"""What all optimizers with parameters and state in host memory have in common.

One native call updates all parameters of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, overload

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import LAST_STEP, finite_number, untraced, whole_number
from op_builder.ops.optim.optimizer import NativeOptimizer
from op_builder.ops.optim.prepared import Batch
from op_builder.ops.optim.small_tensors import SmallTensors
from op_builder.ops.optim.tensor_lists import Pass

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LARGEST_FLOAT = torch.finfo(torch.float32).max
_CLIP_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_'s

# What belongs to the optimizer and is no group's option, and what it is where an old pickle lacks it.
_SAVED: dict[str, Any] = {"max_grad_norm": None, "zero_grads": False, "seed": 0}


class HostSettings(TypedDict, total=False):
    """What every optimizer in host memory takes by name.

    Attributes:
        maximize: climb instead of descend; an option of a group.
        states: how the states are kept, an option of a group: ``float32``, ``param`` (the parameter's type),
            ``bfloat16`` (rounded at random, so that small changes are not lost; 20 instead of 28 bytes moved for each
            float32 parameter of Adam) or ``8bit`` (16 bytes). Not every optimizer has the last two.
        max_grad_norm: gradients are scaled down so that the Euclidean norm of all together is at
            most this, as :func:`torch.nn.utils.clip_grad_norm_` does; infinity only measures it.
        zero_grads: leave zeros in the gradients after a step.
        seed: of the random rounding.
    """

    maximize: bool
    states: str
    max_grad_norm: float | None
    zero_grads: bool
    seed: int


class HostOptimizer(NativeOptimizer):
    """Base of :class:`CPUAdam` and its like; a subclass declares its options.

    Attributes:
        grad_norm: the Euclidean norm of all gradients in the last step, before clipping; None where it
            was not asked for (``max_grad_norm``, ``grad_scale``).
        skipped: whether the last step changed nothing because a gradient was infinite or NaN.
    """

    grad_norm: float | None
    skipped: bool
    _memory: SmallTensors

    def __init__(self, params: Iterable[Any], options: dict[str, Any], **settings: Unpack[HostSettings]) -> None:
        """
        Args:
            params: parameters, or dicts of parameters and options.
            options: the groups' defaults.
            settings: as :class:`HostSettings` says.
        """
        unknown = settings.keys() - HostSettings.__annotations__.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__}() has no argument {', '.join(sorted(unknown))}.")
        max_grad_norm = settings.get("max_grad_norm")
        if (
            max_grad_norm is not None
            and max_grad_norm != math.inf
            and not finite_number("max_grad_norm", max_grad_norm)
        ):
            raise OpArgumentError(f"max_grad_norm is {max_grad_norm}.", "Give a number above 0, or None.")
        self.max_grad_norm = max_grad_norm
        self.zero_grads = bool(settings.get("zero_grads", False))
        self.seed = whole_number("seed", settings.get("seed", 0))
        of_groups = {"maximize": settings.get("maximize", False), "states": settings.get("states", "float32")}
        super().__init__(params, {**options, **of_groups})

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

    def _update(self, batches: Sequence[Batch], factor: float) -> None:
        """Update all; gradients are multiplied by ``factor`` first."""
        for batch in batches:
            also = Pass(
                grad_scale=-factor if batch.group["maximize"] else factor,
                zero_grads=self.zero_grads,
                stochastic=batch.group["states"] == "bfloat16",
                seed=self.seed,
            )
            batch.prepared.update(self._option_values(batch), also)
            if batch.copied and self.zero_grads:
                torch._foreach_zero_(batch.copied)

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

    def _grad_factor(self, grad_scale: float | torch.Tensor | None, batches: Sequence[Batch]) -> float | None:
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

    # What the base asks -----------------------------------------------------------------------

    def _start(self) -> None:
        super()._start()
        self._memory = SmallTensors()
        self.grad_norm = None
        self.skipped = False

    def _place(self, source: torch.Tensor, param: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:  # noqa: ARG002
        return self._memory.copy(source, dtype)

    def _is_step(self, step: Any, param: torch.Tensor) -> bool:  # noqa: ARG002
        return isinstance(step, torch.Tensor)

    def _placed_step(self, step: Any, param: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        if not isinstance(step, torch.Tensor):
            try:
                step = torch.tensor(float(step), dtype=torch.float32)
            except (TypeError, ValueError):
                raise OpArgumentError(
                    f"A loaded state has step {step!r}; it must be a whole number from 0 on.", "Load an intact state."
                ) from None
        return self._memory.copy(step)

    def _check_group(self, group: Mapping[str, Any]) -> None:
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
