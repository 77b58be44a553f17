"""Training on a device with the optimizer on the host."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from accelerator.abstract_accelerator import Accelerator


class HostMasters:
    """Float32 copies in host memory of a model's parameters, for an optimizer that runs there.

    The device keeps the model in its own type and no optimizer state. Each gradient is copied to the host
    as soon as the backward pass has computed it, on a separate stream, while the pass continues; the
    updated parameters are copied back, and rounded to the model's type on the device.

    Args:
        model: on the accelerator's device; its gradients are removed after each step.
        accelerator: whose streams and page-locked memory are used.
    """

    def __init__(self, model: nn.Module, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._downward = accelerator.Stream()
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        for parameter in model.parameters():
            # Page-locked memory is what copies can run from and to without the host waiting.
            master = nn.Parameter(accelerator.pin_memory(parameter.detach().to("cpu", torch.float32, copy=True)))
            master.grad = accelerator.pin_memory(torch.zeros_like(master))
            parameter.register_post_accumulate_grad_hook(partial(self._start_down, master))
            self._pairs.append((parameter, master))

    def parameters(self) -> list[nn.Parameter]:
        """The float32 masters, in the order of the model's parameters: what the optimizer is given."""
        return [master for _, master in self._pairs]

    def wait_for_gradients(self) -> None:
        """Return when the gradients of the last backward pass are copied to the masters."""
        self._downward.synchronize()
        # Not earlier: the memory of a gradient must not be reused while it is copied.
        for parameter, _ in self._pairs:
            parameter.grad = None

    @torch.no_grad()
    def send_up(self) -> None:
        """Copy the masters into the model. The next pass comes after it in the same stream."""
        for parameter, master in self._pairs:
            parameter.copy_(master, non_blocking=True)

    def _start_down(self, master: nn.Parameter, parameter: torch.Tensor) -> None:
        assert master.grad is not None
        assert parameter.grad is not None
        self._downward.wait_stream(self._accelerator.current_stream())
        with self._accelerator.stream(self._downward):
            master.grad.copy_(parameter.grad, non_blocking=True)
