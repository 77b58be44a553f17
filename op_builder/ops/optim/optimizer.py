"""The base of all optimizers with a native step: groups, checks, saving and loading."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from op_builder.errors import AccelError, OpArgumentError
from op_builder.ops.arguments import checked_betas, checked_option, switch, untraced
from op_builder.ops.optim.checks import place_of
from op_builder.ops.optim.native_states import NativeStates
from op_builder.ops.optim.prepared_groups import Batch, PreparedGroups, is_same
from op_builder.ops.optim.small_tensors import SmallTensors

if TYPE_CHECKING:
    from op_builder.ops.optim.native_op import NativeOp

# Options of torch.optim's optimizers, kept so that those can load our state. They choose between implementations of the
# same formula and have no effect here.
_IGNORED: dict[str, Any] = {"foreach": None, "fused": None, "capturable": False}
# Options that every group has.
_FIXED: dict[str, Any] = {"differentiable": False}
# Switches that are not supported, and all switches.
_OFF = (*_FIXED, "amsgrad")
_SWITCHES = ("maximize", "nesterov", "bias_correction", "decoupled_weight_decay", *_IGNORED, *_OFF)


class _Saved:
    """A saved state for load_state_dict() of torch, which would convert its tensors to the parameter's type."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.entry = entry


class NativeOptimizer(NativeStates):
    """Base of :class:`HostOptimizer` and :class:`FusedOptimizer`.

    Attributes:
        NUMBERS: group options that are finite numbers of at least 0.
        STORAGES: the supported values of the group option ``states``: ``float32``, ``param`` (the parameter's type),
            ``bfloat16`` with stochastic rounding, or ``8bit`` with a scale for each 256 elements.
    """

    NUMBERS: ClassVar[tuple[str, ...]] = ("eps", "weight_decay")
    STORAGES: ClassVar[tuple[str, ...]] = ("float32", "param", "bfloat16", "8bit")

    _groups: PreparedGroups

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        """
        Args:
            params: parameters, or dicts of parameters and options.
            options: the groups' defaults.
        """
        options = {**_FIXED, **_IGNORED, **options}
        self._check_group(options)
        self._make_unsaved()
        super().__init__(params, options)

    # Overridden by some optimizers --------------------------------------------------------------

    def _make_unsaved(self) -> None:
        """Make the attributes that are not saved."""
        self._native = None
        self._lock = threading.RLock()  # several threads may train one model
        self._hooks_in_use: set[str] = set()
        self._memory = SmallTensors()
        self._groups = PreparedGroups()
        self._checked: dict[int, list[Any]] = {}  # the groups' values when their options were checked

    def _check_options(self, group: Mapping[str, Any]) -> None:
        """Raise an OpArgumentError if the group's options do not fit together."""

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, Any]:
        """The group's options under the names of the native op's ``options``."""
        numbers = dict(group)
        if "betas" in group:
            numbers["beta1"], numbers["beta2"] = group["betas"]
        if "decoupled_weight_decay" in group:
            numbers["adamw_mode"] = group["decoupled_weight_decay"]
        return numbers

    # Overridden by HostOptimizer and FusedOptimizer ---------------------------------------------

    def _checked_lr(self, lr: Any) -> Any:
        """The learning rate as the group has it; an OpArgumentError unless it is a finite number of at least 0."""
        return checked_option("lr", lr)

    # torch.optim.Optimizer's interface --------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; checks its parameters and options as the constructor does."""
        with self._lock:  # no step sees a group that was not checked
            super().add_param_group(param_group)
            group = self.param_groups[-1]
            try:
                self._check_group(group)
                self.native()
                for index, param in enumerate(group["params"]):
                    self.check_param(param, place_of(len(self.param_groups) - 1, index, param))
            except BaseException:
                self.param_groups.pop()
                raise

    @untraced
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None, or to zeros."""
        super().zero_grad(set_to_none)
        if set_to_none:
            with self._lock:
                self._groups.release_grads()

    def state_dict(self) -> dict[str, Any]:
        """The state and the options, in the format of every torch optimizer; 8-bit states as float32 values."""
        # The first of the hooks, so that the others get plain dictionaries.
        with self._hooked(self.register_state_dict_post_hook, lambda _, made: self._with_values(made), prepend=True):
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of this optimizer or of another with the same formula, for example torch.optim's.

        As in torch, options come from ``state_dict``, and options that it lacks keep their values. ``states`` always
        keeps its value: the loaded states are converted to this optimizer's storage. Hooks run as in torch.

        Raises:
            OpArgumentError: the state lacks a part, uses an option that this optimizer does not support, or has
                another shape than its parameter.
            IncompatibleOpError: the native op for an option of the state cannot be built or loaded here.
        """
        # The last of the hooks, so that it checks what the others return.
        with self._hooked(self.register_load_state_dict_pre_hook, lambda _, given: self._check_state_dict(given)):
            super().load_state_dict(state_dict)

    @contextmanager
    def _hooked(self, register: Callable[..., Any], hook: Callable[..., Any], **place: bool) -> Iterator[None]:
        """Have a hook during a call. A call inside of it, from a hook of the user, has the same one."""
        with self._lock:
            if register.__name__ in self._hooks_in_use:
                yield
                return
            self._hooks_in_use.add(register.__name__)
            handle = register(hook, **place)
            try:
                yield
            finally:
                handle.remove()
                self._hooks_in_use.remove(register.__name__)

    def _check_state_dict(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The state to load, completed by the options that it lacks."""
        self._require("The state", state_dict, ("state", "param_groups"))
        groups, states = [], dict(state_dict["state"])
        for index, saved in enumerate(state_dict["param_groups"]):
            self._require(f"Group {index} of the state", saved, ("params",))
            present = self.param_groups[index] if index < len(self.param_groups) else self.defaults
            groups.append({**present, **saved, "states": present["states"]})
            self._check_group(groups[-1])
            self.native()
            params = self.param_groups[index]["params"] if index < len(self.param_groups) else []
            pairs = zip(saved["params"], params, strict=False)  # torch checks the lengths
            for at, (number, param) in enumerate(pairs):
                entry = state_dict["state"].get(number)
                states.pop(number, None)
                if entry:
                    self._check_saved(f"The state of {place_of(index, at, param)}", entry, param, groups[-1])
                    states[number] = _Saved(entry)
        return {**state_dict, "state": states, "param_groups": groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Called by load_state_dict, before its post hooks, and by copy and pickle.
        if is_of_copy(state):
            super().__setstate__(state)
            for group in self.param_groups:
                for name, value in self.defaults.items():
                    group.setdefault(name, value)
            self._make_unsaved()
            self.native()
            return
        entries = state["state"]
        with self._lock:
            for group in state["param_groups"]:
                for param in group["params"]:
                    if isinstance(entries.get(param), _Saved):
                        entries[param] = self._loaded(entries[param].entry, param, group)
            super().__setstate__(state)
            self._groups.forget()

    # The parts of a step ----------------------------------------------------------------------

    def _step(self, closure: Callable[[], float] | None, *arguments: Any) -> float | None:
        """Run the closure, check the options of all groups, update the groups, and return the closure's loss."""
        self._reject_modes()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._lock:
            for index in range(len(self.param_groups)):
                self._check_if_changed(index)
            try:
                self._update_groups(*arguments)
            except OpArgumentError:
                self._groups.forget()  # the next step checks everything
                raise
            finally:
                self._groups.step_done()
        return loss

    def _reject_modes(self) -> None:
        """Raise an AccelError in a mode in which native code finds no memory."""
        if type(torch.empty(0, dtype=torch.uint8, device="cpu")) is not torch.Tensor:
            raise AccelError(
                f"{type(self).__name__} cannot update in a mode that replaces tensors, such as FakeTensorMode; "
                "native code needs memory to write.",
                "Train outside that mode, or estimate with torch.optim's optimizer of the same formula.",
            )

    def _update_groups(self, *arguments: Any) -> None:
        """The part of a step that uses the native ops."""
        raise NotImplementedError

    def _checked_updates(
        self, batches: Sequence[Batch], settings_of: Callable[[Batch], Any]
    ) -> list[tuple[Batch, list[float], Any]]:
        """The batches with the arguments of their updates; an OpArgumentError if the update of any would fail."""
        updates = [(each, self._option_values(each.group, each.op), settings_of(each)) for each in batches]
        for batch, *arguments in updates if len(updates) > 1 else ():  # the update of a single one checks it
            batch.update(*arguments, check_only=True)
        return updates

    def _option_values(self, group: Mapping[str, Any], op: NativeOp) -> list[float]:
        """The options of a group's update, in the op's order."""
        numbers = self._numbers(group)
        return [float(numbers[name]) for name in op.options]

    # Checks -----------------------------------------------------------------------------------

    def _check_if_changed(self, index: int) -> None:
        """Check a group's options unless they are the same objects as at the last check."""
        group = self.param_groups[index]
        if index in self._checked and is_same(list(group.values()), self._checked[index]):
            return
        needed = {"lr", "betas", "states", *self.NUMBERS, *_SWITCHES} - {*_IGNORED, *_OFF}
        missing = sorted(needed & self.defaults.keys() - group.keys())
        if missing:
            raise OpArgumentError(
                f"Group {index} lacks the option {missing[0]}.",
                f"Set it, for example by optimizer.param_groups[{index}][{missing[0]!r}] = "
                f"optimizer.defaults[{missing[0]!r}].",
            )
        self._check_group(group)
        self._checked.pop(index, None)
        if all(_is_fixed(group[name]) for name in group if name != "params"):  # else its options may change in place
            self._checked[index] = list(group.values())

    def _check_group(self, group: dict[str, Any]) -> None:
        """Check a group's options; its numbers become floats, except for tensors, and its switches bools."""
        group["lr"] = self._checked_lr(group["lr"])
        if "betas" in group:
            group["betas"] = checked_betas(group["betas"])
        for name in self.NUMBERS:
            if name in group:
                group[name] = checked_option(name, group[name])
        for name in _SWITCHES:
            if name in group and (group[name] is not None or _IGNORED.get(name, False) is not None):
                group[name] = switch(name, group[name])
        if not isinstance(group["states"], str) or group["states"] not in self.STORAGES:
            allowed = ", ".join(self.STORAGES)
            raise OpArgumentError(
                f"states is {group['states']!r}; {type(self).__name__} supports {allowed}.",
                f"Pass states={self.STORAGES[0]!r} or another of these.",
            )
        for name in _OFF:
            if group.get(name):
                raise OpArgumentError(
                    f"{name}=True is not supported by {type(self).__name__}.",
                    f"Leave {name} at False, or use an optimizer of torch, such as torch.optim.AdamW.",
                )
        self._check_options(group)


def is_of_copy(state: Mapping[str, Any]) -> bool:
    """Whether ``__setstate__`` got what ``__getstate__`` returned, not what load_state_dict() of torch passes."""
    return "defaults" in state


def _is_fixed(value: object) -> bool:
    """Whether a group's option cannot change in place; the list of parameters is checked elsewhere."""
    if isinstance(value, tuple):
        return all(map(_is_fixed, value))
    return value is None or isinstance(value, (bool, int, float, str))
