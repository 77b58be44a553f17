"""The fused optimizers: where the tensors are, on the CPU or on a CUDA device.

Each op is declared once. On the CPU it is this; :mod:`op_builder.cuda.fused` adds the CUDA kernels to
the same declaration, in a binary that serves both devices.
"""

from __future__ import annotations

from typing import Any, ClassVar

from op_builder.host.native_op import NativeOpBuilder


class FusedOpBuilder(NativeOpBuilder):
    """A fused optimizer's op.

    Attributes:
        HOST_SOURCES: its kernels for the CPU.
        CUDA_SOURCES: its kernels for CUDA devices.
    """

    HOST_SOURCES: ClassVar[tuple[str, ...]] = ()
    CUDA_SOURCES: ClassVar[tuple[str, ...]] = ()

    def sources(self) -> list[str]:
        return [f"csrc/bindings/{self.NAME}.cpp", *self.HOST_SOURCES]


class FusedAdamBuilder(FusedOpBuilder):
    """Builds ``fused_adam``; ``load()`` returns a :class:`op_builder.ops.optim.fused_module.FusedAdamModule`."""

    NAME = "fused_adam"
    BUILD_VAR = "ACCEL_BUILD_FUSED_ADAM"
    SUMMARY = "Adam over many tensors in one kernel on the device"
    # Those that take longest come first, so that no core waits for them at the end.
    HOST_SOURCES = (
        "csrc/kernels/cpu/adam_avx512.cpp",
        "csrc/kernels/cpu/adam_avx2.cpp",
        "csrc/kernels/cpu/adam_neon.cpp",
        "csrc/kernels/cpu/adam_baseline.cpp",
        "csrc/kernels/cpu/adam.cpp",
        "csrc/kernels/cpu/norm.cpp",
        "csrc/kernels/cpu/isa.cpp",
    )
    CUDA_SOURCES = ("csrc/kernels/cuda/fused_adam.cu", "csrc/kernels/cuda/multi_tensor.cu")

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.optim.fused_module import FusedAdamModule

        return FusedAdamModule(opened)


class FusedAmsgradBuilder(FusedOpBuilder):
    """Builds ``fused_amsgrad``; ``load()`` returns an
    :class:`op_builder.ops.optim.fused_amsgrad_module.FusedAmsgradModule`."""

    NAME = "fused_amsgrad"
    BUILD_VAR = "ACCEL_BUILD_FUSED_AMSGRAD"
    SUMMARY = "Adam with amsgrad over many tensors in one kernel on the device"
    HOST_SOURCES = ("csrc/kernels/cpu/amsgrad.cpp", "csrc/kernels/cpu/norm.cpp", "csrc/kernels/cpu/isa.cpp")
    CUDA_SOURCES = ("csrc/kernels/cuda/fused_amsgrad.cu", "csrc/kernels/cuda/multi_tensor.cu")

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.optim.fused_amsgrad_module import FusedAmsgradModule

        return FusedAmsgradModule(opened)


class FusedLionBuilder(FusedOpBuilder):
    """Builds ``fused_lion``; ``load()`` returns a :class:`op_builder.ops.optim.fused_module.FusedLionModule`."""

    NAME = "fused_lion"
    BUILD_VAR = "ACCEL_BUILD_FUSED_LION"
    SUMMARY = "Lion over many tensors in one kernel on the device"
    HOST_SOURCES = ("csrc/kernels/cpu/lion.cpp", "csrc/kernels/cpu/norm.cpp", "csrc/kernels/cpu/isa.cpp")
    CUDA_SOURCES = ("csrc/kernels/cuda/fused_lion.cu", "csrc/kernels/cuda/multi_tensor.cu")

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.optim.fused_module import FusedLionModule

        return FusedLionModule(opened)


class FusedLambBuilder(FusedOpBuilder):
    """Builds ``fused_lamb``; ``load()`` returns a :class:`op_builder.ops.optim.fused_module.FusedLambModule`."""

    NAME = "fused_lamb"
    BUILD_VAR = "ACCEL_BUILD_FUSED_LAMB"
    SUMMARY = "LAMB over many tensors in a few kernels on the device"
    HOST_SOURCES = ("csrc/kernels/cpu/lamb.cpp", "csrc/kernels/cpu/norm.cpp", "csrc/kernels/cpu/isa.cpp")
    CUDA_SOURCES = ("csrc/kernels/cuda/fused_lamb.cu", "csrc/kernels/cuda/multi_tensor.cu")

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.optim.fused_module import FusedLambModule

        return FusedLambModule(opened)
