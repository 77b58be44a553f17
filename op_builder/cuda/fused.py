"""The fused optimizers with their CUDA kernels: the declarations of :mod:`op_builder.host.fused`, and nvcc."""

from __future__ import annotations

from collections.abc import Sequence

from op_builder.builder.cuda import CUDAOpBuilder
from op_builder.host import fused
from op_builder.system.outcomes import CheckOutcome
from op_builder.system.torch_install import parse_release

# Kernel parameters are marked __grid_constant__, which older devices do not know.
_OLDEST_ARCH = (7, 0)


class _WithCudaKernels(CUDAOpBuilder, fused.FusedOpBuilder):
    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.build_for_cpu = False

    def sources(self) -> list[str]:
        return [*super().sources(), *self.CUDA_SOURCES]

    def cxx_args(self) -> list[str]:
        return [*super().cxx_args(), "-DACCEL_WITH_CUDA"]

    def nvcc_args(self) -> list[str]:
        # As -ffp-contract=off on the CPU: products are fused where a formula says so, and nowhere else.
        return [*super().nvcc_args(), "-fmad=false"]

    def filter_ccs(self, ccs: list[str]) -> Sequence[str | Sequence[str]]:
        return [cc for cc in ccs if parse_release(cc) >= _OLDEST_ARCH]

    def load_checks(self) -> list[CheckOutcome]:
        return [*super().load_checks(), *fused.FusedOpBuilder.load_checks(self)]


class FusedAdamBuilder(_WithCudaKernels, fused.FusedAdamBuilder):
    """Builds ``fused_adam`` for CUDA devices and the CPU."""


class FusedAmsgradBuilder(_WithCudaKernels, fused.FusedAmsgradBuilder):
    """Builds ``fused_amsgrad`` for CUDA devices and the CPU."""


class FusedLionBuilder(_WithCudaKernels, fused.FusedLionBuilder):
    """Builds ``fused_lion`` for CUDA devices and the CPU."""


class FusedLambBuilder(_WithCudaKernels, fused.FusedLambBuilder):
    """Builds ``fused_lamb`` for CUDA devices and the CPU."""
