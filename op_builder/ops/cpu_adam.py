"""``CPUAdam``: Adam with parameters and optimizer state in host memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch
from torch.optim import Optimizer

from op_builder.errors import OpArgumentError
from op_builder.ops.native.arguments import finite_number, fraction
from op_builder.ops.native.cpu_adam import CPUAdamModule

_PARAM_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOMENTS = ("exp_avg", "exp_avg_sq")
_STATE = {"step", *_MOMENTS}
_LAST_STEP = 2**53  # floats hold every whole number up to here

# torch.optim.AdamW's options that this optimizer does not have. They stand in every group at the one
# value it takes, so that AdamW can load its state, and a state of AdamW's that uses one is refused.
_FIXED_OPTIONS: dict[str, Any] = {"amsgrad": False, "maximize": False, "capturable": False, "differentiable": False}
# AdamW's choice between implementations of one result; kept for AdamW, of no effect here.
_IGNORED_OPTIONS: dict[str, Any] = {"foreach": None, "fused": None}


class CPUAdam(Optimizer):
    """Adam (Kingma & Ba, 2015) or AdamW (Loshchilov & Hutter, 2019) on CPU tensors, in one native pass.

    A drop-in for :class:`torch.optim.AdamW`: the same formula, state (``step``, ``exp_avg``,
    ``exp_avg_sq``) and group options, so that either loads the other's ``state_dict``. Parameters
    are dense contiguous CPU tensors of float32, bfloat16 or float16, with gradients of any of the
    three. For a model on a GPU give it float32 copies in host memory, bring the gradients down and
    the updated parameters up.

    Args:
        model_params: parameters, or dicts of parameters and options, as for every torch optimizer.
        lr: learning rate, a number or a tensor of one element.
        bias_correction: divide the moments by ``1 - beta**step``.
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the denominator.
        weight_decay: decoupled weight decay, or L2 penalty without ``adamw_mode``.
        amsgrad: must be False.
        adamw_mode: decoupled weight decay (AdamW); False gives :class:`torch.optim.Adam`. It is the
            group option ``decoupled_weight_decay``.
        fp32_optimizer_states: keep the moments in float32 whatever the parameter's type; False
            keeps them in the parameter's.

    Raises:
        OpArgumentError: an option is out of range or a parameter does not fit.
        IncompatibleOpError: the native op cannot be built or loaded here.
    """

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            **_FIXED_OPTIONS,
            **_IGNORED_OPTIONS,
            "amsgrad": amsgrad,
            "decoupled_weight_decay": adamw_mode,
            "bias_correction": bias_correction,
            "fp32_optimizer_states": fp32_optimizer_states,
        }
        _check_options(options)
        self._native = _load_native()
        super().__init__(model_params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its parameters and options are checked as in the constructor."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check_options(group)
            for index, param in enumerate(group["params"]):
                _check_param(param, index)
        except OpArgumentError:
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this optimizer's own state or that of :class:`torch.optim.AdamW` or ``Adam``.

        As in torch, options come from ``state_dict``; those it lacks keep their present values.

        Raises:
            OpArgumentError: the state lacks a part, or uses an option that this optimizer does not have.
        """
        _require("The state", state_dict, ("state", "param_groups"))
        for index, group in enumerate(state_dict["param_groups"]):
            _require(f"Group {index} of the state", group, ("params",))
            _check_options({**self.defaults, **group})
        super().load_state_dict(state_dict)
        # The base class has converted all state to the parameter's type. Moments that are kept in
        # float32 come from the given ones instead, which may hold more bits.
        saved_ids = [index for group in state_dict["param_groups"] for index in group["params"]]
        pairs = [(param, group) for group in self.param_groups for param in group["params"]]
        for saved_id, (param, group) in zip(saved_ids, pairs, strict=True):
            saved = state_dict["state"].get(saved_id, {})
            for name in _MOMENTS:
                if name in saved:
                    self.state[param][name] = saved[name].to(param.device, _moment_dtype(param, group))

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Reached from load_state_dict, copy and pickle; torch saves no other attributes.
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        self._native = _load_native()

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient.

        Args:
            closure: reevaluates the model and returns the loss.

        Raises:
            OpArgumentError: an option, a gradient or a step counter of any group does not fit; nothing
                was changed. A moment or parameter whose type or length was changed by hand is found
                only by the native call for it, which changes none of its tensors, but comes after
                those for earlier groups.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        updates = [self._checked_updates(group) for group in self.param_groups]
        for group, by_step in zip(self.param_groups, updates, strict=True):
            self._update_group(group, by_step)
        return loss

    def _checked_updates(self, group: dict[str, Any]) -> dict[int, list[torch.Tensor]]:
        """The group's parameters that have a gradient, by the number of the coming update; changes nothing."""
        _check_options(group)
        # Parameters differ in their step only when some had no gradient at times.
        by_step: dict[int, list[torch.Tensor]] = {}
        for index, param in enumerate(group["params"]):
            if param.grad is None:
                continue
            if param.grad.layout != torch.strided:
                raise OpArgumentError(
                    f"The gradient of parameter {index} is sparse ({param.grad.layout}); CPUAdam takes dense ones.",
                    "Use torch.optim.SparseAdam for these parameters, or sparse=False in the embedding.",
                )
            state = self.state.get(param)
            by_step.setdefault(_steps_done(state, index) + 1 if state else 1, []).append(param)
        return by_step

    def _update_group(self, group: dict[str, Any], by_step: dict[int, list[torch.Tensor]]) -> None:
        beta1, beta2 = group["betas"]
        for step, members in by_step.items():
            states = [self._state_of(param, group) for param in members]
            self._native.adam_update_list(
                members,
                [param.grad.contiguous() for param in members if param.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                step=step,
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                eps=group["eps"],
                weight_decay=group["weight_decay"],
                adamw_mode=group["decoupled_weight_decay"],
                bias_correction=group["bias_correction"],
            )
            # A tensor, not a number: torch would make one of the number for each step tensor.
            torch._foreach_add_([state["step"] for state in states], torch.tensor(1.0), alpha=1.0)

    def _state_of(self, param: torch.Tensor, group: dict[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = self.state[param]
        if not state:
            state["step"] = torch.tensor(0.0)
            for name in _MOMENTS:
                state[name] = torch.zeros_like(param, dtype=_moment_dtype(param, group))
        elif not isinstance(state["step"], torch.Tensor):
            state["step"] = torch.tensor(float(state["step"]))  # as old checkpoints have it
        return state


def _require(what: str, given: Mapping[str, Any], names: Iterable[str]) -> None:
    missing = [name for name in names if name not in given]
    if missing:
        raise OpArgumentError(
            f"{what} lacks {' and '.join(map(repr, missing))}.",
            "Give what the state_dict() of CPUAdam, torch.optim.AdamW or torch.optim.Adam returned.",
        )


def _steps_done(state: Mapping[str, Any], index: int) -> int:
    """The updates that a parameter's state counts."""
    if not state.keys() >= _STATE:  # asked first, since this runs for every parameter in every step
        _require(f"The state of parameter {index}", state, sorted(_STATE))
    try:
        number = float(state["step"])
    except (TypeError, ValueError, RuntimeError):  # no number, or a tensor of several
        number = math.nan
    if not (number.is_integer() and 0 <= number <= _LAST_STEP):
        raise OpArgumentError(
            f"The state of parameter {index} has step {state['step']!r}; it must be a whole number of at least 0.",
            "Load an intact state.",
        )
    return int(number)


def _moment_dtype(param: torch.Tensor, group: dict[str, Any]) -> torch.dtype:
    return torch.float32 if group["fp32_optimizer_states"] else param.dtype


def _check_options(options: dict[str, Any]) -> None:
    finite_number("lr", options["lr"])
    try:
        beta1, beta2 = options["betas"]
    except (TypeError, ValueError):
        raise OpArgumentError(f"betas is {options['betas']!r}; it must be two numbers.", "Correct betas.") from None
    fraction("betas[0]", beta1)
    fraction("betas[1]", beta2)
    finite_number("eps", options["eps"])
    finite_number("weight_decay", options["weight_decay"])
    for name, value in _FIXED_OPTIONS.items():
        if options[name] != value:
            raise OpArgumentError(
                f"{name}={options[name]!r} is not supported by CPUAdam.",
                f"Leave {name} at {value!r}, or use torch.optim.AdamW.",
            )


def _check_param(param: torch.Tensor, index: int) -> None:
    what = f"Parameter {index} of the group"
    if param.device.type != "cpu":
        raise OpArgumentError(
            f"{what} is on device {param.device}; CPUAdam works on CPU tensors.",
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


def _load_native() -> CPUAdamModule:
    from accelerator import get_accelerator

    module: CPUAdamModule = get_accelerator().create_op_builder("CPUAdamBuilder").load()
    return module
