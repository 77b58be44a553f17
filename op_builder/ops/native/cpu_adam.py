"""The module that ``CPUAdamBuilder().load()`` returns."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from op_builder import env
from op_builder.cpu_isa import best_isa
from op_builder.errors import OpArgumentError
from op_builder.ops.native.arguments import call_op, finite_number, fraction, step_number

logger = logging.getLogger(__name__)


class CPUAdamModule:
    """Adam (Kingma & Ba, 2015) and AdamW (Loshchilov & Hutter, 2019) on CPU tensors.

    Tensors are contiguous CPU tensors of equal length: a parameter of float32, bfloat16 or
    float16, a gradient of any of the three, and two moments, both of float32 or both of the
    parameter's type. Arithmetic is in float32, with torch.optim.AdamW's formula; results do not
    depend on the number of threads. Every argument is checked before anything is written.

    Args:
        ops: the namespace of torch ops that the binding registered.

    Attributes:
        ops: the same namespace.
        isa: instruction set in use, fixed when the module is made (``ACCEL_CPU_ISA`` caps it).
    """

    def __init__(self, ops: Any) -> None:
        self.ops = ops
        self._update = ops.adam_update.default
        self._rollback = ops.adam_rollback.default
        self.isa = best_isa(tuple(ops.supported_isas().split(",")), env.ACCEL_CPU_ISA.get())
        self._adamw_modes: dict[int, bool] = {}

    def create_adam(
        self,
        optimizer_id: int,
        alpha: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adamw_mode: bool = True,
        should_log: bool = False,
    ) -> None:
        """Register an optimizer under an id of the caller's choice, an int.

        The id fixes ``adamw_mode`` (decoupled weight decay, or L2 where False); the other values
        are checked here and given anew with every update.

        Raises:
            OpArgumentError: the id is no int or in use, or a value is out of range.
        """
        optimizer_id = _identity(optimizer_id)
        if optimizer_id in self._adamw_modes:
            raise OpArgumentError(
                f"Optimizer id {optimizer_id} is in use.", "Choose another, or call destroy_adam first."
            )
        _check_hyper_parameters(alpha, beta1, beta2, eps, weight_decay)
        self._adamw_modes[optimizer_id] = bool(adamw_mode)
        if should_log:
            logger.info(
                "Adam optimizer %s: %s arithmetic, lr=%g, betas=(%g, %g), eps=%g, weight_decay=%g, adamw_mode=%s",
                optimizer_id,
                self.isa,
                alpha,
                beta1,
                beta2,
                eps,
                weight_decay,
                bool(adamw_mode),
            )

    def adam_update(
        self,
        optimizer_id: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        bias_correction: bool,
        param: torch.Tensor,
        grad: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> None:
        """Update ``param``, ``exp_avg`` and ``exp_avg_sq`` in place; ``step`` counts from 1.

        Raises:
            OpArgumentError: an argument does not fit; no tensor was changed.
        """
        adamw_mode = self._adamw_mode(optimizer_id)
        tensors = _by_role([param], [grad], [exp_avg], [exp_avg_sq])
        hyper_parameters = _check_hyper_parameters(lr, beta1, beta2, eps, weight_decay)
        self._call(self._update, tensors, step, hyper_parameters, adamw_mode, bias_correction)

    def adam_update_list(
        self,
        params: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor],
        exp_avgs: Sequence[torch.Tensor],
        exp_avg_sqs: Sequence[torch.Tensor],
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        adamw_mode: bool,
        bias_correction: bool,
    ) -> None:
        """The same for lists of tensors in one call; types may differ from parameter to parameter.

        Threads get even shares of all elements together. No parameter may appear twice.

        Raises:
            OpArgumentError: an argument does not fit; no tensor was changed.
        """
        tensors = _by_role(params, grads, exp_avgs, exp_avg_sqs)
        hyper_parameters = _check_hyper_parameters(lr, beta1, beta2, eps, weight_decay)
        self._call(self._update, tensors, step, hyper_parameters, adamw_mode, bias_correction)

    def adam_rollback(
        self,
        optimizer_id: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        bias_correction: bool,
        param: torch.Tensor,
        grad: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> None:
        """Undo the :meth:`adam_update` that had these arguments and left these tensors.

        All four tensors are float32. With p, m, v the values before the update, p', m', v' after
        it, u = 2**-24 and decay = 1 - lr * weight_decay (1 without adamw_mode), what comes back
        is, to first order in u, within

        - ``param``: u * (2|p| + (|p'| + |p' - decay * p|) / |decay|)
        - ``exp_avg``: u * (2|m| + |m'| / beta1)
        - ``exp_avg_sq``: u * (2|v| + |v'| / beta2)

        of p, m, v, where no value overflowed; subnormal values add up to 2**-148 over decay or
        beta. ``csrc/kernels/cpu/adam.h`` derives this, and says what weight decay as L2 adds.

        Raises:
            OpArgumentError: an argument does not fit, among them other dtypes, a beta of 0 and
                lr * weight_decay = 1, where the old values are lost; no tensor was changed.
        """
        adamw_mode = self._adamw_mode(optimizer_id)
        tensors = _by_role([param], [grad], [exp_avg], [exp_avg_sq])
        hyper_parameters = _check_hyper_parameters(lr, beta1, beta2, eps, weight_decay)
        self._call(self._rollback, tensors, step, hyper_parameters, adamw_mode, bias_correction)

    def destroy_adam(self, optimizer_id: int) -> None:
        """Forget an optimizer; its id is free again.

        Raises:
            OpArgumentError: there is none with that id.
        """
        self._adamw_mode(optimizer_id)
        del self._adamw_modes[_identity(optimizer_id)]

    def _call(
        self,
        op: Callable[..., None],
        tensors: dict[str, Sequence[torch.Tensor]],
        step: int,
        hyper_parameters: tuple[float, ...],
        adamw_mode: bool,
        bias_correction: bool,
    ) -> None:
        options = (step_number(step), *hyper_parameters, bool(adamw_mode), bool(bias_correction), self.isa)
        call_op(op, tensors, *options)
        # autograd then notices a parameter that was changed between a forward and its backward.
        torch.autograd.graph.increment_version(tensors["param"])

    def _adamw_mode(self, optimizer_id: int) -> bool:
        try:
            return self._adamw_modes[_identity(optimizer_id)]
        except KeyError:
            raise OpArgumentError(
                f"There is no Adam optimizer with id {optimizer_id}: it was never created or is destroyed.",
                "Call create_adam with this id first.",
            ) from None


def _identity(optimizer_id: int) -> int:
    try:
        if not isinstance(optimizer_id, bool):
            return operator.index(optimizer_id)
    except TypeError:
        pass
    raise OpArgumentError(f"optimizer_id is {optimizer_id!r}, which is not an int.", "Pass an int.")


def _by_role(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    exp_avg_sqs: Sequence[torch.Tensor],
) -> dict[str, Sequence[torch.Tensor]]:
    return {"param": params, "grad": grads, "exp_avg": exp_avgs, "exp_avg_sq": exp_avg_sqs}


def _check_hyper_parameters(
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
) -> tuple[float, float, float, float, float]:
    return (
        finite_number("lr", lr),
        fraction("beta1", beta1),
        fraction("beta2", beta2),
        finite_number("eps", eps),
        finite_number("weight_decay", weight_decay),
    )
