"""``CPUSGD``: stochastic gradient descent with momentum, in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from op_builder.ops.arguments import check_nesterov
from op_builder.ops.declare import host_optimizer
from op_builder.ops.optim.checks import check_shapes
from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.host_optimizer import HostOptimizer, HostSettings
from op_builder.ops.optim.tensor_lists import write_zeros

if TYPE_CHECKING:
    from typing_extensions import Unpack

OP = host_optimizer("cpu_sgd", "CPUSGDBuilder", "SGD with momentum", HostOp)


class CPUSGD(HostOptimizer):
    """SGD with momentum (Sutskever et al., 2013) on CPU tensors, in one native pass.

    A drop-in for :class:`torch.optim.SGD`: the same formula, state (``momentum_buffer``) and group
    options, so that either loads the other's ``state_dict``; it also keeps a ``step``, the number of
    steps with a momentum. Parameters are dense contiguous CPU tensors of float32, bfloat16 or float16,
    with gradients of any of the three. It keeps the buffer even without momentum.

    Args:
        params: parameters, or dicts of parameters and options.
        lr: learning rate, a number or a tensor of one element.
        momentum: decay rate of the buffer, 0 or more.
        dampening: the share of each gradient, except the first, that does not enter the buffer.
        weight_decay: L2 penalty.
        nesterov: Nesterov's momentum; needs a momentum above 0 and no dampening.
        settings: :class:`~op_builder.ops.optim.host_optimizer.HostSettings`: ``maximize``, ``states``,
            ``max_grad_norm``, ``zero_grads``, ``seed``.

    Raises:
        OpArgumentError: an option is out of range or a parameter does not fit.
        IncompatibleOpError: the native op cannot be built or loaded here.
    """

    NATIVE = OP
    NUMBERS = ("weight_decay", "momentum", "dampening")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        **settings: Unpack[HostSettings],
    ) -> None:
        super().__init__(
            params,
            settings,
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )

    def _check_options(self, group: Mapping[str, Any]) -> None:
        check_nesterov(group)

    def _check_saved(self, what: str, entry: Mapping[str, Any], param: torch.Tensor, group: Mapping[str, Any]) -> None:
        check_shapes(what, entry, param, self.states_of(group))  # torch.optim.SGD's state has a buffer at most

    def _after_update(self, group: Mapping[str, Any], steps: list[torch.Tensor]) -> None:
        if group["momentum"] == 0:  # a later momentum starts with a new buffer, as in torch
            write_zeros(steps)

    def _step_if_missing(self, state: Mapping[str, Any]) -> float:
        # A buffer means that the first step is done; the formula does not depend on the number of later ones.
        return 0.0 if state.get("momentum_buffer") is None else 1.0
