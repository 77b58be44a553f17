"""The base of the optimizers with parameters and states in host memory.

One native call updates all parameters of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, overload

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import finite_number, step_count, untraced, whole_number
from op_builder.ops.optim.optimizer import NativeOptimizer
from op_builder.ops.optim.prepared_groups import Batch
from op_builder.ops.optim.sharding import sharding_of
from op_builder.ops.optim.small_tensors import SmallTensors
from op_builder.ops.optim.tensor_lists import Pass

_LARGEST_FLOAT = torch.finfo(torch.float32).max
_CLIP_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_'s

# The optimizer's own options, which are not a group's, with the values where an old pickle lacks them.
_SAVED: dict[str, Any] = {"max_grad_norm": None, "zero_grads": False, "seed": 0}


class HostSettings(TypedDict, total=False):
    """Keyword arguments of every optimizer in host memory.

    Attributes:
        maximize: maximise the objective; an option of a group.
        states: the storage of the states, an option of a group: ``float32``, ``param`` (the parameter's type),
            ``bfloat16`` (rounded at random, so that small changes are not lost; 20 instead of 28 bytes moved for each
            float32 parameter of Adam) or ``8bit`` (16 bytes). Not every optimizer supports the last two.
        max_grad_norm: scale gradients down so that the Euclidean norm of all together is at
            most this, as :func:`torch.nn.utils.clip_grad_norm_` does; infinity only measures the norm.
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
        grad_norm: the Euclidean norm of all gradients in the last step, before clipping; None if neither
            ``max_grad_norm`` nor ``grad_scale`` was given.
        skipped: whether the last step changed nothing because a gradient was infinite or NaN.
    """

    grad_norm: float | None
    skipped: bool
    _memory: SmallTensors

    def __init__(self, params: Iterable[Any], settings: HostSettings, **options: Any) -> None:
        """
        Args:
            params: parameters, or dicts of parameters and options.
            settings: see :class:`HostSettings`.
            options: the groups' defaults.
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
            raise OpArgumentError(f"max_grad_norm is {max_grad_norm}.", "Pass a number above 0, or None.")
        self.max_grad_norm = max_grad_norm
        self.zero_grads = bool(settings.get("zero_grads", False))
        self.seed = whole_number("seed", settings.get("seed", 0))
        options |= {"maximize": settings.get("maximize", False), "states": settings.get("states", "float32")}
        super().__init__(params, **options)

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

        With ``grad_scale`` or ``max_grad_norm`` an additional pass reads the gradients for their norm. Unscaling,
        clipping, the copies of :meth:`write_copies` and zeroing are part of the pass that updates. If a gradient is
        infinite or NaN, or the norm exceeds the largest float32, parameters and states stay unchanged and ``skipped``
        is True.

        Args:
            closure: reevaluates the model and returns the loss.
            grad_scale: the factor of the loss, a number or a tensor of one element.

        Raises:
            OpArgumentError: an option, a gradient or a step counter of any group does not fit; nothing
                was changed. Only the native call for a group checks whether a state or parameter changed its type
                or length; it changes none of its own tensors, but earlier groups are updated by then.
        """
        loss = self._begin_step(closure)
        with self._update_of_groups():
            batches = self._groups.current(self, self.param_groups, self.state, writes_grads=self.zero_grads)
            factor = self._grad_factor(grad_scale, batches)
            self.skipped = factor is None
            if factor is not None:
                self._update(batches, factor)
            elif self.zero_grads:  # an infinite gradient would stay infinite when the next is added
                torch._foreach_zero_([grad for batch in batches for grad in batch.grads])
        return loss

    def _update(self, batches: Sequence[Batch], factor: float) -> None:
        """Update all batches; gradients are multiplied by ``factor`` first."""
        for batch in batches:
            settings = Pass(
                grad_scale=-factor if batch.group["maximize"] else factor,
                zero_grads=self.zero_grads,
                stochastic=batch.group["states"] == "bfloat16",
                seed=self.seed,
            )
            batch.update(self._option_values(batch), settings)
            if batch.copied and self.zero_grads:
                torch._foreach_zero_(batch.copied)

    def write_copies(self, copies: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Also write each new parameter to another tensor, rounded to that tensor's type.

        For float32 parameters in host memory of a model in bfloat16 or float16. Not part of the
        ``state_dict``; a second call replaces the first.

        Args:
            copies: a contiguous CPU tensor of float32, bfloat16 or float16 for parameters of this optimizer, with
                as many elements.

        Raises:
            OpArgumentError: a key is not a parameter of this optimizer.
        """
        known = {id(param) for group in self.param_groups for param in group["params"]}
        for param in copies:
            if id(param) not in known:
                raise OpArgumentError(
                    f"A tensor of shape {tuple(param.shape)} is not a parameter of this optimizer.",
                    "Pass parameters as keys and the tensors to write as values.",
                )
            if sharding_of(copies[param]) != sharding_of(param):
                raise OpArgumentError(
                    f"The copy of a parameter of shape {tuple(param.shape)} is not distributed as the parameter is.",
                    "Pass a DTensor of the same mesh and placements for each DTensor.",
                )
        self._groups.write_copies(copies)

    # The parts of a step ----------------------------------------------------------------------

    def _grad_factor(self, grad_scale: float | torch.Tensor | None, batches: Sequence[Batch]) -> float | None:
        """The factor of every gradient; None to skip the step."""
        self.grad_norm = None
        if grad_scale is None and self.max_grad_norm is None:
            return 1.0
        scale = 1.0
        if grad_scale is not None:
            scale = finite_number("grad_scale", grad_scale)
            if scale == 0 or 1 / scale > _LARGEST_FLOAT:
                raise OpArgumentError(
                    f"grad_scale is {scale:g}; its reciprocal is not a float32.", "Pass the factor of the loss."
                )
        norm = self._groups.grad_norm(batches) / scale
        self.grad_norm = norm
        if not norm <= _LARGEST_FLOAT:  # scaling in float32 may make an element infinite
            return None
        clip = 1.0 if self.max_grad_norm is None else min(1.0, self.max_grad_norm / (norm + _CLIP_EPSILON))
        return clip / scale

    # Called by the base -----------------------------------------------------------------------

    def _start(self) -> None:
        super()._start()
        self._memory = SmallTensors()
        self.grad_norm = None
        self.skipped = False

    def _place(self, source: torch.Tensor, param: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:  # noqa: ARG002
        return self._memory.copy(source, dtype)

    def _is_step(self, step: Any, param: torch.Tensor) -> bool:  # noqa: ARG002
        return isinstance(step, torch.Tensor)

    def _place_step(self, step: Any, param: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        if not isinstance(step, torch.Tensor):
            step = torch.tensor(step_count("A loaded state", step), dtype=torch.float32, device="cpu")
        return self._memory.copy(step)

    def _check_group(self, group: Mapping[str, Any]) -> None:
        for name in _SAVED:
            if name in group:
                raise OpArgumentError(
                    f"A group has {name}={group[name]!r}, which is not an option of a group.",
                    f"Pass {name} to {type(self).__name__} itself.",
                )
        super()._check_group(group)

    def _check_device(self, param: torch.Tensor, what: str, group: Mapping[str, Any]) -> None:  # noqa: ARG002
        if param.device.type != "cpu":
            raise OpArgumentError(
                f"{what} is on device {param.device}; {type(self).__name__} supports CPU tensors.",
                "Pass copies in host memory, for example p.detach().float().cpu().",
            )

    def check_state(self, state: Mapping[str, Any], param: torch.Tensor, place: str, group: Mapping[str, Any]) -> None:
        """Check a parameter's state, including its step: counters on the CPU can be read without waiting."""
        super().check_state(state, param, place, group)
        step_count(f"The state of {place}", state.get("step", 0))
