"""What all optimizers with parameters and state in host memory have in common.

One native call updates all parameters of a group. Its tensors are prepared once; every step asks,
cheaply, whether they still are the ones that were prepared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, overload

import torch
from torch.optim import Optimizer

from op_builder.errors import OpArgumentError
from op_builder.ops import packed_states
from op_builder.ops.native.arguments import finite_number, fraction
from op_builder.ops.native.host_optimizer import HostOptimizerModule, Pass, PreparedList
from op_builder.ops.prepared_groups import Batch, PreparedGroups, with_plain_entries

_PARAM_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LAST_STEP = 2**53  # floats hold every whole number up to here
_CLIP_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_'s

#: How states are kept: ``float32``, in the parameter's type (``param``), in bfloat16 with stochastic
#: rounding, or in 8 bits with a scale for each 256 elements.
STORAGES = ("float32", "param", "bfloat16", "8bit")

# Options of torch.optim's optimizers that choose between implementations of one result; kept so that
# theirs can load our state, of no effect here.
IGNORED_OPTIONS: dict[str, Any] = {"foreach": None, "fused": None}
# Those that stand in every group at the one value that is taken, for the same reason.
FIXED_OPTIONS: dict[str, Any] = {"capturable": False, "differentiable": False}


class HostOptimizer(Optimizer):
    """Base of :class:`CPUAdam` and its like; a subclass declares its options and its formula's numbers.

    Attributes:
        NATIVE: the builder of its native op.
        STATES: names of the states beside ``step``, in the native op's order.
        NON_NEGATIVE: of these, the ones without a sign.
        STORAGES: the ways in which states can be kept.
        FIXED: group options that take one value only.
        grad_norm: the Euclidean norm of all gradients in the last step, before clipping; None where it
            was not asked for (``max_grad_norm``, ``grad_scale``).
        skipped: whether the last step changed nothing because a gradient was infinite or NaN.
    """

    NATIVE: ClassVar[str]
    STATES: ClassVar[tuple[str, ...]]
    NON_NEGATIVE: ClassVar[frozenset[str]] = frozenset()
    STORAGES: ClassVar[tuple[str, ...]] = STORAGES
    FIXED: ClassVar[Mapping[str, Any]] = FIXED_OPTIONS

    # torch.amp.GradScaler then gives grad_scale and found_inf to the step, as attributes.
    _step_supports_amp_scaling = True

    grad_norm: float | None
    skipped: bool
    grad_scale: torch.Tensor | None
    found_inf: torch.Tensor | None

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
                most this, as :func:`torch.nn.utils.clip_grad_norm_` does.
            zero_grads: leave zeros in the gradients after a step.
            seed: of stochastic rounding.
        """
        if max_grad_norm is not None and not finite_number("max_grad_norm", max_grad_norm) > 0:
            raise OpArgumentError(f"max_grad_norm is {max_grad_norm}.", "Give a number above 0, or None.")
        options = {**self.FIXED, **IGNORED_OPTIONS, **options}
        self._check_group(options)
        self.max_grad_norm = max_grad_norm
        self.zero_grads = bool(zero_grads)
        self.seed = int(seed)
        self._start()
        super().__init__(params, options)

    # What a subclass says ---------------------------------------------------------------------

    def _check_options(self, group: Mapping[str, Any]) -> None:
        """Refuse the group's options where they do not fit.

        Raises:
            OpArgumentError: one does not.
        """
        raise NotImplementedError

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options by the names that the native op has for them (``HostOptimizerModule.OPTIONS``)."""
        raise NotImplementedError

    # torch.optim.Optimizer's interface --------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its parameters and options are checked as in the constructor."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
            for index, param in enumerate(group["params"]):
                self._check_param(param, index)
        except OpArgumentError:
            self.param_groups.pop()
            raise

    def state_dict(self) -> dict[str, Any]:
        """The state and the options, as every torch optimizer has them."""
        return with_plain_entries(super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this optimizer's own state or that of torch.optim's optimizer of the same formula.

        As in torch, options come from ``state_dict``; those it lacks keep their present values.
        States are converted to the way this optimizer keeps them.

        Raises:
            OpArgumentError: the state lacks a part, or uses an option that this optimizer does not have.
        """
        self._require("The state", state_dict, ("state", "param_groups"))
        for index, group in enumerate(state_dict["param_groups"]):
            self._require(f"Group {index} of the state", group, ("params",))
            self._check_group({**self.defaults, **group})
        super().load_state_dict(state_dict)
        # The base class has converted all state to the parameter's type. What is kept in another comes
        # from the given state instead, which may hold more bits.
        saved_ids = [index for group in state_dict["param_groups"] for index in group["params"]]
        pairs = [(param, group) for group in self.param_groups for param in group["params"]]
        for saved_id, (param, group) in zip(saved_ids, pairs, strict=True):
            saved = state_dict["state"].get(saved_id, {})
            for name in self.STATES:
                if saved.get(name) is None:
                    continue
                kept = self._converted(name, saved, param, group)
                self.state[param].pop(_scale_name(name), None)
                self.state[param].update(kept)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Reached from load_state_dict, copy and pickle; torch saves no other attributes.
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        self.__dict__.setdefault("max_grad_norm", None)
        self.__dict__.setdefault("zero_grads", False)
        self.__dict__.setdefault("seed", 0)
        self._start()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("max_grad_norm", "zero_grads", "seed")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in kept}}

    @overload
    def step(self, closure: None = None, *, grad_scale: float | torch.Tensor | None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float], *, grad_scale: float | torch.Tensor | None = None) -> float: ...

    @torch.no_grad()
    def step(
        self, closure: Callable[[], float] | None = None, *, grad_scale: float | torch.Tensor | None = None
    ) -> float | None:
        """Update every parameter that has a gradient.

        With ``grad_scale`` or ``max_grad_norm`` the gradients are read once more beforehand, for their
        norm; dividing by the scale, clipping, the copies of :meth:`write_copies` and zeroing are then
        part of the one pass that updates. If a gradient is infinite or NaN, nothing is changed and
        ``skipped`` is True.

        Args:
            closure: reevaluates the model and returns the loss.
            grad_scale: what the loss was multiplied by, a number or a tensor of one element.

        Raises:
            OpArgumentError: an option, a gradient or a step counter of any group does not fit; nothing
                was changed. A state or parameter whose type or length was changed by hand is found
                only by the native call for its group, which changes none of its tensors, but comes
                after those for earlier groups.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._check_group(group)
        batches = self._groups.current(self.param_groups, self.state)
        try:
            factor = self._grad_factor(grad_scale, batches)
            self.skipped = factor is None
            if factor is not None:
                self._update(batches, factor)
        finally:
            self._groups.step_done()
        return loss

    def _update(self, batches: Sequence[Batch[PreparedList]], factor: float) -> None:
        for index, batch in enumerate(batches):
            group = batch.group
            numbers = self._numbers(group)
            also = Pass(
                grad_scale=-factor if group["maximize"] else factor,
                zero_grads=self.zero_grads,
                stochastic=group["states"] == "bfloat16",
                seed=self.seed + index,
            )
            batch.prepared.update([float(numbers[name]) for name in self._native.OPTIONS], also)
            if batch.copied and self.zero_grads:
                torch._foreach_zero_(batch.copied)

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
            if scale == 0:
                raise OpArgumentError("grad_scale is 0.", "Pass what the loss was multiplied by.")
        if self.max_grad_norm is None and (grad_scale is None or found_inf is not None):
            return 1 / scale
        norm = math.hypot(*(batch.prepared.grad_norm() for batch in batches)) / scale
        self.grad_norm = norm
        if not math.isfinite(norm):
            return None
        clip = 1.0 if self.max_grad_norm is None else min(1.0, self.max_grad_norm / (norm + _CLIP_EPSILON))
        return clip / scale

    def state_of(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = self.state[param]
        if "step" not in state:
            state["step"] = torch.tensor(self._steps_unsaid(state))
        elif not isinstance(state["step"], torch.Tensor):
            state["step"] = torch.tensor(float(state["step"]))  # as old checkpoints have it
        for name in self.STATES:
            if state.get(name) is None:
                state[name] = torch.full_like(
                    param, self._first_value(name, group), dtype=_state_dtype(param, group), requires_grad=False
                )
                if group["states"] == "8bit":
                    state.update(packed_states.encoded(name, state[name], name in self.NON_NEGATIVE))
        return state

    def names_of(self, group: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """The names of the states in the native op's order, and of their scales."""
        return list(self.STATES), list(map(_scale_name, self.STATES)) if group["states"] == "8bit" else []

    def _steps_unsaid(self, _state: Mapping[str, Any]) -> float:
        """The updates that a state without ``step`` has seen."""
        return 0.0

    def _first_value(self, _name: str, _group: Mapping[str, Any]) -> float:
        """What a state begins with."""
        return 0.0

    def _converted(
        self, name: str, saved: Mapping[str, Any], param: torch.Tensor, group: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """A saved state as this optimizer keeps it: the entries to put into the parameter's state."""
        value = saved[name].to(param.device)
        scale = saved.get(_scale_name(name))
        if group["states"] == "8bit" and scale is not None:
            return {name: value.clone(), _scale_name(name): scale.to(param.device).clone()}
        if scale is not None:
            value = packed_states.decoded(value, scale, name in self.NON_NEGATIVE)
        if group["states"] == "8bit":
            return packed_states.encoded(name, value.float(), name in self.NON_NEGATIVE)
        return {name: value.to(_state_dtype(param, group), copy=True)}

    def _start(self) -> None:
        """What is not part of a saved optimizer."""
        self._native = self._load_native()
        self._groups = PreparedGroups(self, self._native)
        self.grad_norm = None
        self.skipped = False

    @classmethod
    def _load_native(cls) -> HostOptimizerModule:
        from accelerator import get_accelerator

        module: HostOptimizerModule = get_accelerator().create_op_builder(cls.NATIVE).load()
        return module

    # Checks -----------------------------------------------------------------------------------

    def _check_group(self, group: Mapping[str, Any]) -> None:
        finite_number("lr", group["lr"])
        finite_number("weight_decay", group["weight_decay"])
        if group["states"] not in self.STORAGES:
            raise OpArgumentError(f"states is {group['states']!r}.", f"Choose one of: {', '.join(self.STORAGES)}.")
        for name, value in self.FIXED.items():
            if group[name] != value:
                raise OpArgumentError(
                    f"{name}={group[name]!r} is not supported by {type(self).__name__}.",
                    f"Leave {name} at {value!r}, or use torch.optim's optimizer.",
                )
        self._check_options(group)

    def _check_param(self, param: torch.Tensor, index: int) -> None:
        what = f"Parameter {index} of the group"
        if param.device.type != "cpu":
            raise OpArgumentError(
                f"{what} is on device {param.device}; {type(self).__name__} works on CPU tensors.",
                "Give it copies in host memory, for example p.detach().float().cpu().",
            )
        if param.dtype not in _PARAM_DTYPES:
            raise OpArgumentError(
                f"{what} is of type {param.dtype}; float32, bfloat16 or float16 is needed.",
                "Convert the model, for example model.float().",
            )
        if param.layout != torch.strided or not param.is_contiguous():
            raise OpArgumentError(
                f"{what} is not a contiguous dense tensor (layout {param.layout}).",
                "Give it contiguous parameters, for example p.data = p.data.contiguous().",
            )

    def check_grad(self, grad: torch.Tensor, index: int) -> None:
        if grad.layout != torch.strided:
            raise OpArgumentError(
                f"The gradient of parameter {index} is sparse ({grad.layout}); {type(self).__name__} takes dense ones.",
                "Use torch.optim.SparseAdam or SGD for these parameters, or sparse=False in the embedding.",
            )

    @property
    def _required(self) -> tuple[str, ...]:
        """What a parameter's state cannot be without."""
        return ("step", *self.STATES)

    def check_state(self, state: Mapping[str, Any], index: int, group: Mapping[str, Any]) -> None:
        self._require(f"The state of parameter {index}", state, self._required)
        try:
            number = float(state.get("step", 0))
        except (TypeError, ValueError, RuntimeError):  # no number, or a tensor of several
            number = math.nan
        if not (number.is_integer() and 0 <= number <= _LAST_STEP):
            raise OpArgumentError(
                f"The state of parameter {index} has step {state.get('step')!r}; it must be a whole number from 0 on.",
                "Load an intact state.",
            )
        if group["states"] == "8bit":
            self._require(f"The 8-bit state of parameter {index}", state, map(_scale_name, self.STATES))

    def _require(self, what: str, given: Mapping[str, Any], names: Iterable[str]) -> None:
        missing = [name for name in names if name not in given]
        if missing:
            raise OpArgumentError(
                f"{what} lacks {' and '.join(map(repr, missing))}.",
                f"Give what the state_dict() of {type(self).__name__}, or of torch.optim's optimizer of its formula, "
                "returned.",
            )


def check_betas(betas: Any) -> None:
    """Refuse what is no pair of numbers in [0, 1).

    Raises:
        OpArgumentError: it is not one.
    """
    try:
        beta1, beta2 = betas
    except (TypeError, ValueError):
        raise OpArgumentError(f"betas is {betas!r}; it must be two numbers.", "Correct betas.") from None
    fraction("betas[0]", beta1)
    fraction("betas[1]", beta2)


def _scale_name(state: str) -> str:
    return f"{state}_scale"


def _state_dtype(param: torch.Tensor, group: Mapping[str, Any]) -> torch.dtype:
    """The type of a state; of an 8-bit one before it is packed."""
    return {"param": param.dtype, "bfloat16": torch.bfloat16}.get(group["states"], torch.float32)
