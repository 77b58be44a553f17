"""This project's builders with GPU kernels, in a separate module because CPU ops need no module of a GPU compiler."""

from __future__ import annotations

from collections.abc import Sequence

from op_builder.builder.cuda import CUDAOpBuilder
from op_builder.builder.sycl import SYCLOpBuilder
from op_builder.catalog.native import NativeOpBuilder, RowBuilder
from op_builder.system.outcomes import CheckOutcome
from op_builder.system.torch_install import parse_release

# Kernel parameters are __grid_constant__, which older devices do not support.
_OLDEST_ARCH = (7, 0)


class CudaRowBuilder(CUDAOpBuilder, NativeOpBuilder):
    """The CPU op and its CUDA kernels, in one binary."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.build_for_cpu = False

    def sources(self) -> list[str]:
        return [*super().sources(), *(f"csrc/kernels/cuda/{path}" for path in self.OP.cuda)]

    def cxx_args(self) -> list[str]:
        return [*super().cxx_args(), "-DACCEL_WITH_CUDA"]

    def nvcc_args(self) -> list[str]:
        # Products are fused only where a formula uses fma, as with -ffp-contract=off on the CPU.
        return [*super().nvcc_args(), "-fmad=false"]

    def filter_ccs(self, ccs: list[str]) -> Sequence[str | Sequence[str]]:
        return [cc for cc in ccs if parse_release(cc) >= _OLDEST_ARCH]

    def load_checks(self) -> list[CheckOutcome]:
        return [*super().load_checks(), *NativeOpBuilder.load_checks(self)]


class SyclRowBuilder(RowBuilder, SYCLOpBuilder):
    """SYCL kernels for XPU devices, and for CPU tensors through a SYCL CPU device."""

    def sources(self) -> list[str]:
        return [f"kernels_sycl/bindings/{self.NAME}.cpp"]

    def kernel_sources(self) -> list[str]:
        return [f"kernels_sycl/kernels/{self.NAME}.sycl.hpp"]
