"""Builder classes of this project's ops with GPU kernels, in a module of their own: CPU ops need no GPU compiler."""

from __future__ import annotations

from collections.abc import Sequence

from op_builder.builder.cuda import CUDAOpBuilder
from op_builder.builder.sycl import SYCLOpBuilder
from op_builder.catalog.builders import DeclaredBuilder
from op_builder.ops.declare import supported_archs


class DeclaredCUDABuilder(DeclaredBuilder, CUDAOpBuilder):
    """The CPU op and its CUDA kernels, in one binary."""

    def nvcc_args(self) -> list[str]:
        return list(self._recipe.nvcc_flags)

    def filter_ccs(self, ccs: list[str]) -> Sequence[str | Sequence[str]]:
        return supported_archs(ccs)


class DeclaredSYCLBuilder(DeclaredBuilder, SYCLOpBuilder):
    """SYCL kernels for XPU devices, and for CPU tensors through a SYCL CPU device."""

    def kernel_sources(self) -> list[str]:
        return list(self._recipe.kernels)
