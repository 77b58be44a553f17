"""The fused optimizers with SYCL kernels: on XPU devices, and on CPU tensors through a SYCL CPU device."""

from __future__ import annotations

from typing import Any

from op_builder.builder.sycl import SYCLNativeOpBuilder


class FusedAdamBuilder(SYCLNativeOpBuilder):
    """Builds ``fused_adam``; ``load()`` returns a :class:`op_builder.ops.optim.fused_module.FusedAdamModule`."""

    NAME = "fused_adam"
    BUILD_VAR = "ACCEL_BUILD_FUSED_ADAM"
    SUMMARY = "Adam over many tensors in one kernel on the device"

    def sources(self) -> list[str]:
        return ["kernels_sycl/bindings/fused_adam.cpp"]

    def kernel_sources(self) -> list[str]:
        return ["kernels_sycl/kernels/fused_adam.sycl.hpp"]

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.optim.fused_module import FusedAdamModule

        return FusedAdamModule(opened)


class FusedLionBuilder(SYCLNativeOpBuilder):
    """Builds ``fused_lion``; ``load()`` returns a :class:`op_builder.ops.optim.fused_module.FusedLionModule`."""

    NAME = "fused_lion"
    BUILD_VAR = "ACCEL_BUILD_FUSED_LION"
    SUMMARY = "Lion over many tensors in one kernel on the device"

    def sources(self) -> list[str]:
        return ["kernels_sycl/bindings/fused_lion.cpp"]

    def kernel_sources(self) -> list[str]:
        return ["kernels_sycl/kernels/fused_lion.sycl.hpp"]

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.optim.fused_module import FusedLionModule

        return FusedLionModule(opened)
