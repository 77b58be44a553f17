"""The module that ``CPUSGDBuilder().load()`` returns."""

from __future__ import annotations

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import checked_numbers
from op_builder.ops.optim.host_optimizer_module import HostOptimizerModule


class CPUSGDModule(HostOptimizerModule):
    """Stochastic gradient descent with momentum (Sutskever et al., 2013) on CPU tensors.

    The formula is torch.optim.SGD's: at step 1 the buffer becomes the gradient, whatever it held. For
    the functions of one tensor these are contiguous CPU tensors of equal length: a parameter of float32,
    bfloat16 or float16, a gradient of any of the three, and a buffer of float32 or of the parameter's
    type. Without momentum the buffer becomes the gradient in every step.
    """

    OPTIONS = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
    STATES = ("momentum_buffer",)

    def create_sgd(
        self,
        optimizer_id: int,
        alpha: float = 1e-3,
        momentum: float = 0.9,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        should_log: bool = False,
    ) -> None:
        """Register an optimizer under an id of the caller's choice, an int.

        The id fixes ``nesterov``; the other values are checked here and given anew with every update.

        Raises:
            OpArgumentError: the id is no int or in use, a value is out of range, or nesterov came
                without momentum or with dampening.
        """
        options = _checked(alpha, momentum, dampening, weight_decay, bool(nesterov))
        self._register(optimizer_id, {**options, "nesterov": bool(nesterov)}, should_log)

    def sgd_update(
        self,
        optimizer_id: int,
        step: int,
        lr: float,
        momentum: float,
        dampening: float,
        weight_decay: float,
        param: torch.Tensor,
        grad: torch.Tensor,
        momentum_buffer: torch.Tensor,
    ) -> None:
        """Update ``param`` and ``momentum_buffer`` in place; ``step`` counts from 1, ``weight_decay`` is L2.

        Raises:
            OpArgumentError: an argument does not fit; no tensor was changed.
        """
        nesterov = self._options_of(optimizer_id)["nesterov"]
        options = _checked(lr, momentum, dampening, weight_decay, nesterov)
        tensors = self._lists_of_one(param, grad, momentum_buffer)
        self.update_list(tensors, step, [*options.values(), nesterov])

    def destroy_sgd(self, optimizer_id: int) -> None:
        """Forget an optimizer; its id is free again.

        Raises:
            OpArgumentError: there is none with that id.
        """
        self._forget(optimizer_id)


def _checked(lr: float, momentum: float, dampening: float, weight_decay: float, nesterov: bool) -> dict[str, float]:
    options = checked_numbers(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay)
    if nesterov and (options["momentum"] == 0 or options["dampening"] != 0):
        raise OpArgumentError(
            f"nesterov came with momentum {momentum} and dampening {dampening}.",
            "Pass a momentum above 0 and no dampening, or nesterov=False.",
        )
    return options
