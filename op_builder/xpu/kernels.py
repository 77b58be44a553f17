"""The ops that have SYCL kernels alone: on XPU devices, and on CPU tensors through a SYCL CPU device."""

from __future__ import annotations

from typing import Any

from op_builder.builder.sycl import SYCLNativeOpBuilder


class PackBitsBuilder(SYCLNativeOpBuilder):
    """Builds ``pack_bits``; ``load()`` returns a :class:`op_builder.ops.functional.pack_bits.PackBitsModule`."""

    NAME = "pack_bits"
    BUILD_VAR = "ACCEL_BUILD_PACK_BITS"
    SUMMARY = "bytes to bits and back"

    def sources(self) -> list[str]:
        return ["kernels_sycl/bindings/pack_bits.cpp"]

    def kernel_sources(self) -> list[str]:
        return ["kernels_sycl/kernels/pack_bits.sycl.hpp"]

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.functional.pack_bits import PackBitsModule

        return PackBitsModule(opened)


class BlockQuantizeBuilder(SYCLNativeOpBuilder):
    """Builds ``block_quantize``; ``load()`` returns a
    :class:`op_builder.ops.functional.block_quantize.BlockQuantizeModule`."""

    NAME = "block_quantize"
    BUILD_VAR = "ACCEL_BUILD_BLOCK_QUANTIZE"
    SUMMARY = "quantisation by blocks to eight or four bits, and back"

    def sources(self) -> list[str]:
        return ["kernels_sycl/bindings/block_quantize.cpp"]

    def kernel_sources(self) -> list[str]:
        return ["kernels_sycl/kernels/block_quantize.sycl.hpp"]

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.functional.block_quantize import BlockQuantizeModule

        return BlockQuantizeModule(opened)


class RMSNormBuilder(SYCLNativeOpBuilder):
    """Builds ``rms_norm``; ``load()`` returns a :class:`op_builder.ops.functional.rms_norm.RMSNormModule`."""

    NAME = "rms_norm"
    BUILD_VAR = "ACCEL_BUILD_RMS_NORM"
    SUMMARY = "RMSNorm of rows, with a residual added before"

    def sources(self) -> list[str]:
        return ["kernels_sycl/bindings/rms_norm.cpp"]

    def kernel_sources(self) -> list[str]:
        return ["kernels_sycl/kernels/rms_norm.sycl.hpp"]

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.functional.rms_norm import RMSNormModule

        return RMSNormModule(opened)
