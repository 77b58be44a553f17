"""The object that ``RMSNormBuilder().load()`` returns."""

from __future__ import annotations

from typing import Any

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import finite_number, is_traced
from op_builder.ops.declare import sycl_spec
from op_builder.ops.functional.device_tensors import call, load_sycl, require_plain
from op_builder.spec import OpFamily


class RMSNormModule:
    """Root mean square normalisation (Zhang & Sennrich, 2019, arXiv:1910.07467), for inference: it has no backward."""

    def __init__(self, ops: Any) -> None:
        self.ops = ops

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float = 1e-6,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension, in float32, rounded once to x's type.

        An OpArgumentError, with nothing written, if an argument does not fit.

        Args:
            x: float32, bfloat16 or float16, of shape (..., n).
            weight: of shape (n,), of x's type or float32.
            eps: added to the mean of the squares.
            residual: contiguous, of x's shape and type. Replaced in place by ``x + residual``, rounded to its type,
                which is then normalised.
        """
        require_plain("x", x)
        require_plain("weight", weight)
        if residual is not None:
            require_plain("residual", residual)
            if not is_traced() and residual.is_neg():
                raise OpArgumentError("residual is a lazy negation and cannot be written.", "Pass x.resolve_neg().")
        if not x.dim() or weight.shape != x.shape[-1:]:
            raise OpArgumentError(
                f"weight has shape {tuple(weight.shape)}, x has shape {tuple(x.shape)}.",
                "Pass a weight of the length of x's last dimension.",
            )
        if residual is not None and residual.shape != x.shape:
            raise OpArgumentError(
                f"residual has shape {tuple(residual.shape)}, x has shape {tuple(x.shape)}.",
                "Pass a residual of x's shape.",
            )
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        call(self.ops.rms_norm, x.contiguous(), residual, weight.contiguous(), out, finite_number("eps", eps))
        return out


OP = OpFamily(
    "rms_norm",
    "RMSNormBuilder",
    "RMSNorm over rows, optionally with a residual added first",
    xpu=sycl_spec("rms_norm", RMSNormModule),
)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension, of ``x + residual`` if a residual is given.

    Arguments and errors: :meth:`op_builder.ops.functional.rms_norm.RMSNormModule.rms_norm`.
    """
    normalised: torch.Tensor = load_sycl(OP).rms_norm(x, weight, eps, residual)
    return normalised
