"""The states of an optimizer's parameters: their names, storage, and conversion from saved ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch.optim import Optimizer

from op_builder.errors import IncompatibleOpError, OpArgumentError
from op_builder.ops.arguments import is_dense, step_count
from op_builder.ops.optim import packed_states
from op_builder.ops.optim.checks import check_grad, check_param, check_shapes
from op_builder.ops.optim.native_op import NativeOp
from op_builder.ops.optim.sharding import like_param, local_of
from op_builder.ops.optim.small_tensors import SmallTensors
from op_builder.spec import OpFamily


class NativeStates(Optimizer):
    """The part of :class:`~op_builder.ops.optim.optimizer.NativeOptimizer` that concerns states.

    Attributes:
        NATIVE: the native op.
        NON_NEGATIVE: the states without a sign.
        NEEDS_NORMS: whether the formula needs the norm of each parameter.
        copies: tensors that also receive the new values of parameters.
    """

    NATIVE: ClassVar[OpFamily]
    NON_NEGATIVE: ClassVar[frozenset[str]] = frozenset({"exp_avg_sq"})
    NEEDS_NORMS: ClassVar[bool] = False

    copies: Mapping[torch.Tensor, torch.Tensor] = {}

    _native: NativeOp | None
    _memory: SmallTensors

    # Overridden by some optimizers --------------------------------------------------------------

    def _load(self) -> Any:
        """Load the native op for the device of the optimizer's parameters."""
        raise NotImplementedError

    def states_of(self, group: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The names of a group's states in addition to ``step``, in the op's order."""
        return self.native().states

    def _first_value(self, _name: str, _group: Mapping[str, Any]) -> float:
        """The initial value of a state."""
        return 0.0

    def _step_if_missing(self, _state: Mapping[str, Any]) -> float:
        """The number of updates of a saved state that lacks ``step``."""
        return 0.0

    def _check_device(self, param: torch.Tensor, what: str) -> None:
        """Raise an OpArgumentError if the op does not support a parameter's device."""
        raise NotImplementedError

    # Memory of states -----------------------------------------------------------------------------

    def _state_copy(self, source: torch.Tensor, param: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A contiguous copy for a state of ``param``, on its device."""
        if param.is_cpu:
            return self._memory.copy(source, dtype)
        return source.detach().to(param.device, dtype, copy=True, memory_format=torch.contiguous_format)

    def _step_copy(self, step: Any, param: torch.Tensor) -> torch.Tensor:
        """A copy of a step counter as the op takes it; raises an OpArgumentError if it is not a number."""
        if not is_dense(step) or step.numel() != 1:
            step = torch.tensor(step_count("A loaded state", step), dtype=torch.float32, device="cpu")
        return self._state_copy(step.reshape(()), param, torch.float32)

    def _is_step(self, step: Any, param: torch.Tensor) -> bool:
        """Whether the op takes this step counter."""
        fits = is_dense(step) and step.numel() == 1 and not step.requires_grad
        return fits and step.device == param.device and step.dtype == torch.float32

    # Called by PreparedGroups -----------------------------------------------------------------

    def native(self) -> NativeOp:
        """The native op, loaded at the first call."""
        if self._native is None:
            native = self._load()
            if not isinstance(native, NativeOp):
                raise IncompatibleOpError(
                    f"{type(self).__name__} needs a native op; {self.NATIVE.builder} has none for this device.",
                    "Use an optimizer of torch or of the device's vendor, or this project's CPU optimizers.",
                )
            self._native = native
        return self._native

    def check_param(self, param: torch.Tensor, place: str) -> None:
        """Raise an OpArgumentError if a parameter, called ``place``, does not fit."""
        check_param(place, param, is_normed=self.NEEDS_NORMS)
        self._check_device(param, place[0].upper() + place[1:])

    def check_grad(self, grad: torch.Tensor, param: torch.Tensor, place: str) -> None:
        """Raise an OpArgumentError if the gradient of a parameter does not fit."""
        check_grad(place, grad, param, type(self).__name__)

    def check_tensors(self, param: torch.Tensor, place: str, group: Mapping[str, Any]) -> None:
        """Raise an OpArgumentError if a parameter, its gradient or its state does not fit."""
        self.check_param(param, place)
        grad = param.grad
        if grad is not None:
            self.check_grad(grad, param, place)
        state = self.state.get(param, {})
        if state:
            self.check_state(state, param, place, group)

    def state_of(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """A parameter's state in the group's storage; makes missing parts."""
        state: dict[str, Any] = self.state[param]
        is_8bit = group["states"] == "8bit"
        parts = [state.get(name) for name in self.states_of(group)]
        if "step" not in state or any(part is None or packed_states.is_packed(part) != is_8bit for part in parts):
            state = self.state[param] = self._loaded(state, param, group)
        elif not self._is_step(state["step"], param):  # from an old checkpoint
            state["step"] = self._step_copy(state["step"], param)
        return state

    def _loaded(self, saved: Mapping[str, Any], param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """A parameter's saved state in this optimizer's storage."""
        states = self.states_of(group)
        loaded = {name: value for name, value in saved.items() if name not in states}
        step = saved["step"] if "step" in saved else self._step_if_missing(saved)
        loaded["step"] = self._step_copy(step, param)
        for name in states:
            loaded[name] = self._loaded_state(name, saved.get(name), param, group)
        return loaded

    def _loaded_state(
        self, name: str, saved: torch.Tensor | None, param: torch.Tensor, group: Mapping[str, Any]
    ) -> torch.Tensor:
        """One state, from saved values, saved bytes, or its initial value."""
        non_negative = name in self.NON_NEGATIVE
        is_8bit = group["states"] == "8bit"
        if saved is None:
            # Only one element is in memory; the copy has them all.
            first = torch.full((), self._first_value(name, group), dtype=torch.float32, device=param.device)
            saved = first.expand(local_of(param).shape)
        elif packed_states.is_packed(saved) and not is_8bit:
            saved = packed_states.decoded(saved, local_of(param).shape, non_negative)
        saved = local_of(saved, param)
        if not is_8bit:
            return like_param(self._state_copy(saved, param, state_dtype(param, group)), param)
        packed = saved if packed_states.is_packed(saved) else packed_states.encoded(saved, non_negative)
        return self._state_copy(packed, param, torch.uint8)

    def _with_values(self, made: dict[str, Any]) -> dict[str, Any]:
        """The ``state_dict()`` as plain dictionaries, with the values of 8-bit states.

        torch.load(weights_only=True) loads no other dictionaries, and code that joins or splits shards needs tensors
        of the parameter's shape.
        """
        made = {**made, "state": {key: dict(entry) for key, entry in made["state"].items()}}
        for group, saved in zip(self.param_groups, made["param_groups"], strict=True):
            for param, number in zip(group["params"], saved["params"], strict=True):
                entry = made["state"].get(number, {})
                for name in self.states_of(group):
                    if packed_states.is_packed(entry.get(name)):
                        shape, non_negative = local_of(param).shape, name in self.NON_NEGATIVE
                        values = packed_states.decoded(entry[name], shape, non_negative)
                        entry[name] = like_param(values, param)
        return made

    def check_state(self, state: Mapping[str, Any], param: torch.Tensor, place: str, group: Mapping[str, Any]) -> None:
        """Raise an OpArgumentError if a state lacks a part, has a wrong shape, or its step is not a count."""
        self._check_saved(f"The state of {place}", state, param, group)

    def _check_saved(self, what: str, entry: Mapping[str, Any], param: torch.Tensor, group: Mapping[str, Any]) -> None:
        self._require(what, entry, ("step", *self.states_of(group)))
        if not isinstance(entry["step"], torch.Tensor):
            step_count(what, entry["step"])
        check_shapes(what, entry, param, self.states_of(group))

    def _require(self, what: str, given: Mapping[str, Any], names: Iterable[str]) -> None:
        """Raise an OpArgumentError if a saved state lacks one of these entries."""
        missing = [name for name in names if name not in given]
        if missing:
            raise OpArgumentError(
                f"{what} lacks {' and '.join(map(repr, missing))}.",
                f"Pass the state_dict() of a {type(self).__name__} or of torch.optim's optimizer of the same formula.",
            )


def state_dtype(param: torch.Tensor, group: Mapping[str, Any]) -> torch.dtype:
    """The type of a state, for 8-bit states before packing."""
    return {"param": param.dtype, "bfloat16": torch.bfloat16}.get(group["states"], torch.float32)
