"""What all optimizers with a native step have in common: groups, checks, saving and loading."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.optim import Optimizer

from op_builder.errors import AccelError, OpArgumentError
from op_builder.ops.arguments import finite_number, fraction, untraced
from op_builder.ops.optim import packed_states
from op_builder.ops.optim.native_op import NativeOp
from op_builder.ops.optim.prepared import Batch, PreparedGroups, with_plain_entries

if TYPE_CHECKING:
    from op_builder.builder.base import OpBuilder

_PARAM_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# Options of torch.optim's optimizers, kept so that theirs can load our state. These choose between implementations of
# one result and have no effect here.
_IGNORED: dict[str, Any] = {"foreach": None, "fused": None, "capturable": False}
# These are in every group at the one value that is supported.
_FIXED: dict[str, Any] = {"differentiable": False}


class NativeOptimizer(Optimizer):
    """Base of :class:`HostOptimizer` and :class:`FusedOptimizer`.

    Attributes:
        NATIVE: the builder of the native op, if a group's options ask for no other.
        NON_NEGATIVE: of the states, the ones without a sign.
        NUMBERS: group options that are finite numbers from 0 on.
        STORAGES: the ways in which states can be kept, values of the group option ``states``: ``float32``, in the
            parameter's type (``param``), in bfloat16 with stochastic rounding, or in 8 bits with a scale for each 256
            elements.
        BUILDERS: the package of builders that the op comes from; None for the current accelerator's.
    """

    NATIVE: ClassVar[str]
    NON_NEGATIVE: ClassVar[frozenset[str]] = frozenset({"exp_avg_sq", "max_exp_avg_sq"})
    NUMBERS: ClassVar[tuple[str, ...]] = ("eps", "weight_decay")
    STORAGES: ClassVar[tuple[str, ...]] = ("float32", "param", "bfloat16", "8bit")
    BUILDERS: ClassVar[str | None] = None

    # torch.amp.GradScaler then gives grad_scale and found_inf to the step, as attributes.
    _step_supports_amp_scaling = True

    grad_scale: torch.Tensor | None
    found_inf: torch.Tensor | None

    _natives: dict[str, NativeOp]
    _groups: PreparedGroups
    _loading: Mapping[str, Any] | None = None

    def __init__(self, params: Iterable[Any], options: dict[str, Any]) -> None:
        """
        Args:
            params: parameters, or dicts of parameters and options.
            options: the groups' defaults.
        """
        options = {**_FIXED, **_IGNORED, **options}
        self._check_group(options)
        self._start()
        super().__init__(params, options)

    # What an optimizer may decide -------------------------------------------------------------

    def _start(self) -> None:
        """Make what is not part of a saved optimizer."""
        self._natives = {}
        self._groups = PreparedGroups()

    def _builder_of(self, group: Mapping[str, Any]) -> str:  # noqa: ARG002
        """The builder of the native op that updates a group."""
        return self.NATIVE

    def _make_builder(self, name: str) -> OpBuilder:
        if self.BUILDERS is not None:
            from op_builder.catalog.registry import find_builder

            return find_builder(name, self.BUILDERS)()
        from op_builder.catalog.device import current_accelerator

        return current_accelerator().create_op_builder(name)

    def _states_of(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of a group's states in addition to ``step``, in its op's order."""
        return self.native_of(group).states

    def _check_options(self, group: Mapping[str, Any]) -> None:
        """Refuse the group's own options where they do not fit together.

        Raises:
            OpArgumentError: they do not.
        """

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, Any]:
        """The group's options by the names that the native op has for them (its ``options``)."""
        numbers = dict(group)
        if "betas" in group:
            numbers["beta1"], numbers["beta2"] = group["betas"]
        if "decoupled_weight_decay" in group:
            numbers["adamw_mode"] = group["decoupled_weight_decay"]
        return numbers

    def _first_value(self, _name: str, _group: Mapping[str, Any]) -> float:
        """What a state begins with."""
        return 0.0

    def _step_without_one(self, _state: Mapping[str, Any]) -> float:
        """The updates that a state without ``step`` has seen."""
        return 0.0

    # What a base of optimizers decides --------------------------------------------------------

    def _check_lr(self, lr: Any) -> None:
        """Refuse a learning rate that does not fit.

        Raises:
            OpArgumentError: it does not.
        """
        finite_number("lr", lr)

    def _check_device(self, param: torch.Tensor, what: str, group: Mapping[str, Any]) -> None:
        """Refuse a parameter where the op cannot work.

        Raises:
            OpArgumentError: it is there.
        """
        raise NotImplementedError

    def _place(self, source: torch.Tensor, param: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A contiguous copy, in memory of its own, for a state of ``param``."""
        raise NotImplementedError

    def _placed_step(self, step: Any, param: torch.Tensor) -> torch.Tensor:
        """A copy of a counter of steps, a number or a tensor, as the op takes it."""
        raise NotImplementedError

    def _is_step(self, step: Any, param: torch.Tensor) -> bool:
        """Whether the op takes this counter of steps."""
        raise NotImplementedError

    # torch.optim.Optimizer's interface --------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its parameters and options are checked as in the constructor."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
            self.native_of(group)
            for index, param in enumerate(group["params"]):
                self._check_param(param, index, group)
        except AccelError:
            self.param_groups.pop()
            raise

    @untraced
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let go of all gradients, or fill them with zeros."""
        super().zero_grad(set_to_none)
        if set_to_none:
            self._groups.release_grads()

    def state_dict(self) -> dict[str, Any]:
        """The state and the options, as every torch optimizer has them."""
        # The first of the hooks after, so that the others may make of it what they like.
        first = self.register_state_dict_post_hook(lambda _, made: with_plain_entries(made), prepend=True)
        try:
            return super().state_dict()
        finally:
            first.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this optimizer's own state or that of an optimizer of the same formula, torch.optim's among them.

        As in torch, options come from ``state_dict``; those it lacks keep their present values. So does
        ``states``: states are converted to the way this optimizer keeps them. Hooks see what they see in
        torch's.

        Raises:
            OpArgumentError: the state lacks a part, or uses an option that this optimizer does not have.
            IncompatibleOpError: the native op for an option of the state cannot be built or loaded here.
        """
        # The last of the hooks before, so that it sees what the others made of it.
        last = self.register_load_state_dict_pre_hook(lambda _, given: self._check_state_dict(given))
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
            self._loading = None

    def _check_state_dict(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """What is about to be loaded, with the options that it lacks."""
        self._require("The state", state_dict, ("state", "param_groups"))
        groups = []
        for index, saved in enumerate(state_dict["param_groups"]):
            self._require(f"Group {index} of the state", saved, ("params",))
            present = self.param_groups[index] if index < len(self.param_groups) else self.defaults
            groups.append({**present, **saved, "states": present["states"]})
            self._check_group(groups[-1])
            self.native_of(groups[-1])
            for number in saved["params"]:
                entry = state_dict["state"].get(number)
                if entry:
                    self._check_saved(f"The state of parameter {number}", entry, groups[-1])
        self._loading = {**state_dict, "param_groups": groups}
        return {**self._loading}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Reached from load_state_dict, before the hooks after it; and from copy and pickle.
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        if self._loading is None:
            self._start()
            for group in self.param_groups:
                self.native_of(group)
            return
        # The base class has converted all state to the parameter's type. What is kept in another comes
        # from the given state instead, which may hold more bits.
        saved_ids = [index for group in self._loading["param_groups"] for index in group["params"]]
        pairs = [(param, group) for group in self.param_groups for param in group["params"]]
        for saved_id, (param, group) in zip(saved_ids, pairs, strict=True):
            saved = self._loading["state"].get(saved_id)
            if saved:
                self.state[param] = self._loaded(saved, param, group)
        self._groups.forget()

    # The parts of a step ----------------------------------------------------------------------

    def _begin_step(self, closure: Callable[[], float] | None) -> float | None:
        """Run the closure and check the options of all groups; the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._check_group(group)
        return loss

    def _option_values(self, batch: Batch) -> list[float]:
        """What an update takes, in the op's order."""
        numbers = self._numbers(batch.group)
        return [float(numbers[name]) for name in batch.op.options]

    # What PreparedGroups asks, and loading ----------------------------------------------------

    def native_of(self, group: Mapping[str, Any]) -> NativeOp:
        """The native op that updates a group; loaded when first asked for.

        Raises:
            IncompatibleOpError: it cannot be built or loaded here.
        """
        builder = self._builder_of(group)
        if builder not in self._natives:
            self._natives[builder] = self._make_builder(builder).load()
        return self._natives[builder]

    def names_of(self, group: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """The names of the states in the native op's order, and of their scales."""
        states = self._states_of(group)
        if group["states"] != "8bit":
            return list(states), []
        pairs = [packed_states.names(state) for state in states]
        return [codes for codes, _ in pairs], [scales for _, scales in pairs]

    def state_of(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """A parameter's state as the group keeps it; what is missing of it is made."""
        state: dict[str, Any] = self.state[param]
        names, scales = self.names_of(group)
        if "step" not in state or any(state.get(name) is None for name in (*names, *scales)):
            state = self.state[param] = self._loaded(state, param, group)
        elif not self._is_step(state["step"], param):  # as old checkpoints have it
            state["step"] = self._placed_step(state["step"], param)
        return state

    def _loaded(self, saved: Mapping[str, Any], param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """A parameter's saved state as this optimizer keeps it."""
        states = self._states_of(group)
        of_states = {name for state in states for name in (state, *packed_states.names(state))}
        loaded = {name: value for name, value in saved.items() if name not in of_states}
        step = saved["step"] if "step" in saved else self._step_without_one(saved)
        loaded["step"] = self._placed_step(step, param)
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
            return {key: self._place(saved[key], param, saved[key].dtype) for key in packed}
        value = packed_states.saved_values(name, saved, non_negative)
        if value is None:
            # One element in memory; what is made of it is filled as it is written.
            value = torch.full((), self._first_value(name, group), device=param.device).expand(param.shape)
        if group["states"] != "8bit":
            return {name: self._place(value, param, state_dtype(param, group))}
        encoded = packed_states.encoded(value, non_negative)
        return {key: self._place(one, param, one.dtype) for key, one in zip(packed, encoded, strict=True)}

    def check_state(self, state: Mapping[str, Any], index: int, group: Mapping[str, Any]) -> None:
        """Refuse a parameter's state that does not fit."""
        self._check_saved(f"The state of parameter {index}", state, group)

    def _check_saved(self, what: str, entry: Mapping[str, Any], group: Mapping[str, Any]) -> None:
        """Refuse a parameter's saved state that lacks a part."""
        self._require(what, entry, ("step",))
        for name in self._states_of(group):
            codes, scales = packed_states.names(name)
            self._require(what, entry, (scales,) if codes in entry else (name,))

    def check_grad(self, grad: torch.Tensor, index: int) -> None:
        """Refuse a gradient that does not fit."""
        if grad.layout != torch.strided:
            raise OpArgumentError(
                f"The gradient of parameter {index} is sparse ({grad.layout}); {type(self).__name__} takes dense ones.",
                "Use torch.optim.SparseAdam or SGD for these parameters, or sparse=False in the embedding.",
            )

    # Checks -----------------------------------------------------------------------------------

    def _check_group(self, group: Mapping[str, Any]) -> None:
        self._check_lr(group["lr"])
        if "betas" in group:
            check_betas(group["betas"])
        for name in self.NUMBERS:
            if name in group:
                finite_number(name, group[name])
        if group["states"] not in self.STORAGES:
            raise OpArgumentError(f"states is {group['states']!r}.", f"Choose one of: {', '.join(self.STORAGES)}.")
        for name, value in _FIXED.items():
            if group[name] != value:
                raise OpArgumentError(
                    f"{name}={group[name]!r} is not supported by {type(self).__name__}.",
                    f"Leave {name} at {value!r}, or use torch.optim's optimizer.",
                )
        self._check_options(group)

    def _check_param(self, param: torch.Tensor, index: int, group: Mapping[str, Any]) -> None:
        what = f"Parameter {index} of the group"
        self._check_device(param, what, group)
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

    def _require(self, what: str, given: Mapping[str, Any], names: Iterable[str]) -> None:
        missing = [name for name in names if name not in given]
        if missing:
            raise OpArgumentError(
                f"{what} lacks {' and '.join(map(repr, missing))}.",
                f"Give what the state_dict() of {type(self).__name__}, or of torch.optim's optimizer of its formula, "
                "returned.",
            )


def state_dtype(param: torch.Tensor, group: Mapping[str, Any]) -> torch.dtype:
    """The type of a state; of an 8-bit one before it is packed."""
    return {"param": param.dtype, "bfloat16": torch.bfloat16}.get(group["states"], torch.float32)


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
