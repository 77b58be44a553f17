"""What ``FusedAdam`` and its like have in common: optimizers that work where their parameters are.

One native call updates all parameters of a group and device. Steps, skipping and unscaling stay on the
device, so a step waits for nothing and may be captured into a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, overload

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import finite_number, untraced
from op_builder.ops.optim import packed_states
from op_builder.ops.optim.fused_module import Control
from op_builder.ops.optim.native_optimizer import NativeOptimizer, check_betas, state_dtype

# Options of torch.optim's optimizers that choose between implementations of one result; kept so that
# theirs can load our state, of no effect here. Every step of ours can be captured.
_IGNORED: dict[str, Any] = {"foreach": None, "fused": None, "capturable": False}


class FusedOptimizer(NativeOptimizer):
    """Base of the fused optimizers; a subclass declares its options and its formula's numbers.

    Attributes:
        CHUNK_SIZE: the most elements that a block of threads works on at once.
    """

    STORAGES: ClassVar[tuple[str, ...]] = ("float32", "param")
    FIXED: ClassVar[Mapping[str, Any]] = {"differentiable": False}
    CHUNK_SIZE: ClassVar[int] = 65536

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

    # torch.optim.Optimizer's interface --------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    @untraced
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
        loss = self._begin_step(closure)
        scaling = (getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        try:
            for batch in self._groups.current(self, self.param_groups, self.state):
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
                batch.prepared.update([float(numbers[name]) for name in batch.module.OPTIONS], control)
        finally:
            self._groups.step_done()
        return loss

    # What PreparedGroups asks -----------------------------------------------------------------

    def _check_saved(self, what: str, entry: Mapping[str, Any], group: Mapping[str, Any]) -> None:
        as_values = [name for name in self._states_of(group) if not packed_states.are_saved(name, entry)]
        self._require(what, entry, ("step", *as_values))

    def _loaded(self, saved: Mapping[str, Any], param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        # Each step needs memory of its own.
        loaded = {**saved, "step": _step_tensor(saved["step"], param)}
        for name in self._states_of(group):
            values = packed_states.saved_values(name, saved, name in self.NON_NEGATIVE)
            if values is not None:  # _check_saved has seen that they are there
                loaded[name] = values.to(param.device, state_dtype(param, group), copy=True)
            for packed in packed_states.names(name):
                loaded.pop(packed, None)
        return loaded

    def state_of(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """A parameter's state, whatever was missing of it made."""
        state: dict[str, Any] = self.state[param]
        missing = [name for name in self._states_of(group) if state.get(name) is None]
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
                dtype=state_dtype(param, group),
                memory_format=torch.contiguous_format,
                requires_grad=False,
            )
        return state

    # Checks -----------------------------------------------------------------------------------

    def _check_options(self, group: Mapping[str, Any]) -> None:
        lr = group["lr"]
        if not _is_on_device(lr):
            finite_number("lr", lr)
        elif lr.numel() != 1:
            raise OpArgumentError(f"lr is a tensor of {lr.numel()} elements.", "Pass a tensor of one element.")
        check_betas(group["betas"])
        finite_number("eps", group.get("eps", 0.0))

    def _check_device(self, param: torch.Tensor, what: str, group: Mapping[str, Any]) -> None:
        if param.device.type not in self.native_of(group).devices:
            raise OpArgumentError(
                f"{what} is on device {param.device}, for which the loaded op has no kernels.",
                "Move the model to the CPU, or set ACCEL_ACCELERATOR to the type of that device.",
            )


def _is_on_device(lr: Any) -> bool:
    """Whether a learning rate is to be read on the device: asking for its value would wait for it."""
    return isinstance(lr, torch.Tensor) and not lr.is_cpu


def _step_tensor(step: Any, param: torch.Tensor) -> torch.Tensor:
    if isinstance(step, torch.Tensor):
        return step.detach().to(param.device, torch.float32, copy=True).reshape(())
    return torch.full((), float(step), dtype=torch.float32, device=param.device)
