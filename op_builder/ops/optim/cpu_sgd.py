"""``CPUSGD``: stochastic gradient descent with momentum, in host memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import finite_number
from op_builder.ops.optim.beside import Question
from op_builder.ops.optim.host_optimizer import HostOptimizer
from op_builder.ops.optim.prepared_groups import Batch
from op_builder.ops.optim.prepared_list import PreparedList


class CPUSGD(HostOptimizer):
    """SGD with momentum (Sutskever et al., 2013) on CPU tensors, in one native pass.

    A drop-in for :class:`torch.optim.SGD`: the same formula, state (``momentum_buffer``) and group
    options, so that either loads the other's ``state_dict``; it keeps a ``step`` beside, the steps since
    there is a momentum. Parameters
    are dense contiguous CPU tensors of float32, bfloat16 or float16, with gradients of any of the
    three. The buffer is kept also without momentum.

    Args:
        params: parameters, or dicts of parameters and options.
        lr: learning rate, a number or a tensor of one element.
        momentum: decay rate of the buffer, 0 or more.
        dampening: the share of each gradient that does not enter the buffer, but for the first.
        weight_decay: L2 penalty.
        nesterov: Nesterov's momentum; wants a momentum above 0 and no dampening.
        maximize: climb instead of descend.
        states: how the buffer is kept: ``float32``, ``param`` (the parameter's type), ``bfloat16``
            (rounded at random) or ``8bit``.
        max_grad_norm: gradients are scaled down so that the Euclidean norm of all together is at
            most this.
        zero_grads: leave zeros in the gradients after a step.
        seed: of the random rounding.

    Raises:
        OpArgumentError: an option is out of range or a parameter does not fit.
        IncompatibleOpError: the native op cannot be built or loaded here.
    """

    NATIVE = "CPUSGDBuilder"
    STATES = ("momentum_buffer",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        states: str = "float32",
        max_grad_norm: float | None = None,
        zero_grads: bool = False,
        seed: int = 0,
    ) -> None:
        options = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "states": states,
        }
        super().__init__(params, options, max_grad_norm=max_grad_norm, zero_grads=zero_grads, seed=seed)

    def _check_options(self, group: Mapping[str, Any]) -> None:
        momentum = finite_number("momentum", group["momentum"])
        finite_number("dampening", group["dampening"])
        if group["nesterov"] and (momentum == 0 or group["dampening"] != 0):
            raise OpArgumentError(
                f"nesterov with momentum={group['momentum']} and dampening={group['dampening']}.",
                "Give a momentum above 0 and no dampening.",
            )

    def _check_saved(self, what: str, entry: Mapping[str, Any], group: Mapping[str, Any]) -> None:
        """Nothing: torch.optim.SGD's state has a buffer at most."""

    def _update(
        self, batches: Sequence[Batch[PreparedList]], factor: float = 1.0, question: Question | None = None
    ) -> bool:
        is_updated = super()._update(batches, factor, question)
        for batch in batches if is_updated else ():
            if batch.group["momentum"] == 0:  # a later momentum begins with a buffer of its own, as torch's
                torch._foreach_zero_(batch.named["step"])
        return is_updated

    def _steps_unsaid(self, state: Mapping[str, Any]) -> float:
        # A buffer says that there was a first step; how many more does not matter to the formula.
        return 0.0 if state.get("momentum_buffer") is None else 1.0
