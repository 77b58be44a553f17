"""Builders of host code."""

from __future__ import annotations

from op_builder.builder.base import OpBuilder


class CPUOpBuilder(OpBuilder):
    """An op of host code alone: every device has it, none is needed to build or load it."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.build_for_cpu = True


class TorchCPUOpBuilder(CPUOpBuilder):
    """Host code compiled for this very CPU, with OpenMP: what existing extension builders expect."""

    def cxx_args(self) -> list[str]:
        return [self.cpu_arch(), "-fopenmp", self.simd_width(), "-g", "-Wno-reorder", self.get_cuda_compile_flag()]

    def extra_ldflags(self) -> list[str]:
        return ["-fopenmp"]
