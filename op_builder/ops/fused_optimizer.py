"""What ``FusedAdam`` and its like have in common: optimizers that work where their parameters are.

One native call updates all parameters of a group and device. Steps, skipping and unscaling stay on the
device, so a step waits for nothing and may be captured into a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, overload

import torch
from torch.optim import Optimizer

from op_builder.errors import OpArgumentError
from op_builder.ops.host_optimizer import check_betas
from op_builder.ops.native.arguments import finite_number
from op_builder.ops.native.fused import Control, FusedOptimizerModule
from op_builder.ops.prepared_groups import PreparedGroups, with_plain_entries

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# Options of torch.optim's optimizers that choose between implementations of one result; kept so that
# theirs can load our state, of no effect here. Every step of ours can be captured.
_IGNORED: dict[str, Any] = {"foreach": None, "fused": None, "capturable": False}

#: How states are kept: ``float32``, or in the parameter's type.
STORAGES = ("float32", "param")


class FusedOptimizer(Optimizer):
    """Base of the fused optimizers; a subclass declares its options and its formula's numbers.

    Attributes:
        NATIVE: the builder of its native op.
        STATES: names of the states beside ``step``, in the native op's order.
        FIXED: group options that take one value only.
        CHUNK_SIZE: the most elements that a block of threads works on at once.
    """

    NATIVE: ClassVar[str]
    STATES: ClassVar[tuple[str, ...]]
    FIXED: ClassVar[Mapping[str, Any]] = {"differentiable": False}
    CHUNK_SIZE: ClassVar[int] = 65536

    # torch.amp.GradScaler then gives grad_scale and found_inf to the step, as attributes.
    _step_supports_amp_scaling = True

    grad_scale: torch.Tensor | None
    found_inf: torch.Tensor | None

    def __init__(self, params: Iterable[Any], options: dict[str, Any]) -> None:
        """
        Args:
            params: parameters, or dicts of parameters and options.
            options: the groups' defaults.
        """
        options = {**self.FIXED, **_IGNORED, **options}
        self._check_group(options)
        self._start()
        super().__init__(params, options)

    # What a subclass says ---------------------------------------------------------------------

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options by the names that the native op has for them (``FusedOptimizerModule.OPTIONS``)."""
        beta1, beta2 = group["betas"]
        return {**group, "beta1": beta1, "beta2": beta2}

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
        """Load this optimizer's own state or that of an optimizer of the same formula, torch.optim's among them.

        As in torch, options come from ``state_dict``; those it lacks keep their present values. States
        are converted to the way this optimizer keeps them, and moved to their parameter's device.

        Raises:
            OpArgumentError: the state lacks a part, or uses an option that this optimizer does not have.
        """
        self._require("The state", state_dict, ("state", "param_groups"))
        for index, group in enumerate(state_dict["param_groups"]):
            self._require(f"Group {index} of the state", group, ("params",))
            self._check_group({**self.defaults, **group})
            for number in group["params"]:
                saved = state_dict["state"].get(number)
                if saved:
                    self._require(f"The state of parameter {number}", saved, ("step", *self.STATES))
        super().load_state_dict(state_dict)
        # The base class has converted all state to the parameter's type. What is kept in another comes
        # from the given state instead, which may hold more bits; and each step needs memory of its own.
        saved_ids = [index for group in state_dict["param_groups"] for index in group["params"]]
        pairs = [(param, group) for group in self.param_groups for param in group["params"]]
        for saved_id, (param, group) in zip(saved_ids, pairs, strict=True):
            saved = state_dict["state"].get(saved_id)
            if saved:
                self.state[param]["step"] = _step_tensor(saved["step"], param)
                for name in self.STATES:
                    self.state[param][name] = saved[name].to(param.device, _state_dtype(param, group), copy=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Reached from load_state_dict, copy and pickle; torch saves no other attributes.
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        self._start()

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient.

        With a GradScaler, gradients are unscaled and steps skipped on the device, without waiting for
        it; the gradients themselves stay scaled.

        Args:
            closure: reevaluates the model and returns the loss.

        Raises:
            OpArgumentError: an option, a gradient or a state of any group does not fit; nothing was
                changed. A tensor whose type or length was changed by hand is found only by the native
                call for its group, which changes none of its tensors, but comes after those for
                earlier groups.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._check_group(group)
        scaling = (getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        try:
            for batch in self._groups.current(self.param_groups, self.state):
                group = batch.group
                lr = group["lr"] if _is_on_device(group["lr"]) else None
                numbers = {**self._numbers(group), "lr": 0.0 if lr is not None else group["lr"]}
                control = Control(
                    lr=None if lr is None else lr.to(torch.float32),
                    grad_scale=scaling[0],
                    found_inf=scaling[1],
                    maximize=group["maximize"],
                    chunk_size=self.CHUNK_SIZE,
                )
                batch.prepared.update([float(numbers[name]) for name in self._native.OPTIONS], control)
        finally:
            self._groups.step_done()
        return loss

    # What PreparedGroups asks -----------------------------------------------------------------

    def check_grad(self, grad: torch.Tensor, index: int) -> None:
        """Refuse a gradient that does not fit."""
        if grad.layout != torch.strided:
            raise OpArgumentError(
                f"The gradient of parameter {index} is sparse ({grad.layout}); {type(self).__name__} takes dense ones.",
                "Use torch.optim.SparseAdam or SGD for these parameters, or sparse=False in the embedding.",
            )

    def check_state(self, state: Mapping[str, Any], index: int, group: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Refuse a parameter's state that does not fit."""
        self._require(f"The state of parameter {index}", state, ("step", *self.STATES))

    def state_of(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """A parameter's state, whatever was missing of it made."""
        state: dict[str, Any] = self.state[param]
        missing = [name for name in self.STATES if state.get(name) is None]
        if missing and param.is_cuda and torch.cuda.is_current_stream_capturing():
            raise OpArgumentError(
                "A parameter has no state yet, and making it would become part of the graph being captured.",
                "Do a step before the capture.",
            )
        step = state.get("step", 0.0)
        if not isinstance(step, torch.Tensor) or step.device != param.device or step.dtype != torch.float32:
            state["step"] = _step_tensor(step, param)
        for name in missing:
            state[name] = torch.zeros_like(
                param,
                dtype=_state_dtype(param, group),
                memory_format=torch.contiguous_format,
                requires_grad=False,
            )
        return state

    def names_of(self, group: Mapping[str, Any]) -> tuple[list[str], list[str]]:  # noqa: ARG002
        """The names of the states in the native op's order; there are no scales."""
        return list(self.STATES), []

    # Checks -----------------------------------------------------------------------------------

    def _start(self) -> None:
        """What is not part of a saved optimizer."""
        from accelerator import get_accelerator

        self._native: FusedOptimizerModule = get_accelerator().create_op_builder(self.NATIVE).load()
        self._groups = PreparedGroups(self, self._native)

    def _check_group(self, group: Mapping[str, Any]) -> None:
        lr = group["lr"]
        if not _is_on_device(lr):
            finite_number("lr", lr)
        elif lr.numel() != 1:
            raise OpArgumentError(f"lr is a tensor of {lr.numel()} elements.", "Pass a tensor of one element.")
        check_betas(group["betas"])
        finite_number("eps", group.get("eps", 0.0))
        finite_number("weight_decay", group["weight_decay"])
        if group["states"] not in STORAGES:
            raise OpArgumentError(f"states is {group['states']!r}.", f"Choose one of: {', '.join(STORAGES)}.")
        for name, value in self.FIXED.items():
            if group[name] != value:
                raise OpArgumentError(
                    f"{name}={group[name]!r} is not supported by {type(self).__name__}.",
                    f"Leave {name} at {value!r}, or use torch.optim's optimizer.",
                )

    def _check_param(self, param: torch.Tensor, index: int) -> None:
        what = f"Parameter {index} of the group"
        has_kernels = param.is_cpu or (param.is_cuda and self._native.supports_cuda)
        if not has_kernels:
            raise OpArgumentError(
                f"{what} is on device {param.device}, for which the loaded op has no kernels.",
                "Move the model to the CPU, or, for a CUDA device, set ACCEL_ACCELERATOR=cuda.",
            )
        if param.dtype not in _DTYPES:
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
                f"Give what the state_dict() of {type(self).__name__}, or of an optimizer of its formula, returned.",
            )


def _is_on_device(lr: Any) -> bool:
    """Whether a learning rate is to be read on the device: asking for its value would wait for it."""
    return isinstance(lr, torch.Tensor) and not lr.is_cpu


def _step_tensor(step: Any, param: torch.Tensor) -> torch.Tensor:
    if isinstance(step, torch.Tensor):
        return step.detach().to(param.device, torch.float32, copy=True).reshape(())
    return torch.full((), float(step), dtype=torch.float32, device=param.device)


def _state_dtype(param: torch.Tensor, group: Mapping[str, Any]) -> torch.dtype:
    return param.dtype if group["states"] == "param" else torch.float32
