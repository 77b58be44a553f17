"""The base of the fused optimizers, which work on the device of their parameters.

One native call updates all parameters of a group and device. Steps, skipping and unscaling stay on the
device, so a step never waits for it and may be captured into a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, overload

import torch

from op_builder.cache.store import Cache
from op_builder.device import load_for_device
from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import untraced
from op_builder.ops.optim.fused_op import Control, FusedOp
from op_builder.ops.optim.optimizer import NativeOptimizer
from op_builder.ops.optim.prepared_groups import Batch


class FusedOptimizer(NativeOptimizer):
    """Base of the fused optimizers; a subclass declares its options.

    Attributes:
        CHUNK_SIZE: the most elements that a block of threads works on at once.
    """

    STORAGES: ClassVar[tuple[str, ...]] = ("float32", "param")
    CHUNK_SIZE: ClassVar[int] = 65536

    def _load(self) -> Any:
        return load_for_device(self.NATIVE, Cache())

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether torch.amp.GradScaler sets ``grad_scale`` and ``found_inf`` here instead of unscaling gradients.

        On a device that saves waiting for ``found_inf``. On the CPU it saves nothing, and frameworks such as Lightning
        refuse to clip the gradients of an optimizer that unscales them.
        """
        return any(not param.is_cpu for group in self.param_groups for param in group["params"])

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    @untraced
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient.

        With a GradScaler, a device unscales gradients and skips steps without the host waiting for it; the gradients
        themselves stay scaled.

        Args:
            closure: reevaluates the model and returns the loss.

        Raises:
            OpArgumentError: an option or a tensor of any group does not fit; nothing was changed.
        """
        return self._step(closure)

    def _update_groups(self) -> None:
        batches = self._groups.current(self, self.param_groups, self.state)
        for batch, options, control in self._checked_updates(batches, self._control):
            batch.update(options, control)

    def _control(self, batch: Batch) -> Control:
        """The settings of a batch's update that the device reads."""
        group, lr = batch.group, batch.group["lr"]
        control = Control(
            lr=lr.to(torch.float32) if _is_on_device(lr) else None,
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=getattr(self, "found_inf", None),
            maximize=group["maximize"],
            chunk_size=self.CHUNK_SIZE,
        )
        return control.on(batch.params[0].device)

    def _numbers(self, group: Mapping[str, Any]) -> Mapping[str, Any]:
        numbers = super()._numbers(group)
        return {**numbers, "lr": 0.0} if _is_on_device(group["lr"]) else numbers

    def state_of(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """A parameter's state; makes missing parts."""
        missing = any(self.state[param].get(name) is None for name in self.states_of(group))
        if missing and param.is_cuda and torch.cuda.is_current_stream_capturing():
            raise OpArgumentError(
                "A parameter has no state yet, and creating it would become part of the captured graph.",
                "Call step() before the capture.",
            )
        return super().state_of(param, group)

    def _checked_lr(self, lr: Any) -> Any:
        if not _is_on_device(lr):
            return super()._checked_lr(lr)
        if lr.numel() != 1 or lr.is_meta:
            raise OpArgumentError(
                f"lr is a tensor of shape {tuple(lr.shape)} on device {lr.device}.",
                "Pass a tensor of one element on the device of the parameters.",
            )
        return lr

    def _check_device(self, param: torch.Tensor, what: str) -> None:
        op = self.native()
        if isinstance(op, FusedOp) and param.device.type not in op.devices:
            raise OpArgumentError(
                f"{what} is on device {param.device}, for which the loaded op has no kernels.",
                "Move the model to the CPU, or set ACCEL_ACCELERATOR to the type of that device.",
            )


def _is_on_device(lr: Any) -> bool:
    """Whether a learning rate is read on the device: reading it here would wait for the device."""
    return isinstance(lr, torch.Tensor) and not lr.is_cpu
