"""The builder of SwiGLU's element-wise part; accel-ops compiles it when it is first loaded, or into the wheel."""

from __future__ import annotations

from typing import Any

import torch

from op_builder import Binding, CPUOpBuilder
from op_builder.builder import kernel_path_hooks

# acme_kernel_path and acme_kernel_include: paths relative to this file, wherever the package is installed.
acme_kernel_path, acme_kernel_include = kernel_path_hooks("acme")


class AcmeSiluAndMulBuilder(CPUOpBuilder):
    """``load()`` returns :class:`SiluAndMul`."""

    NAME = "acme_silu_and_mul"
    BUILD_VAR = "ACCEL_BUILD_ACME_SILU_AND_MUL"
    SUMMARY = "silu(gate) * up in one pass, on Acme cards"
    BINDING = Binding.STABLE  # one binary for every torch >= 2.10 and every Python

    def absolute_name(self) -> str:
        return f"acme_accel.ops.{self.name}"

    def sources(self) -> list[str]:
        return [acme_kernel_path("kernels/silu_and_mul.cpp"), acme_kernel_path("kernels/binding.cpp")]

    def include_paths(self) -> list[str]:
        return ["csrc", acme_kernel_include("kernels")]  # csrc is accel-ops': bindings/stable_library.h

    def bind(self, opened: Any) -> SiluAndMul:
        return SiluAndMul(opened)


class SiluAndMul:
    """The loaded op."""

    def __init__(self, opened: Any) -> None:
        self.native = opened
        """The operators as torch has them, for ``torch.library.opcheck``."""

    def __call__(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up``, a new tensor; it has no backward.

        Args:
            gate: float32, contiguous, of any shape.
            up: as ``gate``.

        Raises:
            ValueError: a tensor does not fit.
        """
        out = torch.empty_like(gate)
        self.native.silu_and_mul(out, gate, up)
        return out
