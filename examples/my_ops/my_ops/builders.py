"""The builders of the ops; accel-ops compiles an op when it is first loaded, or into the wheel.

The name of an op and of its builder must be unique among all installed packages, so both begin with this package's.
"""

from __future__ import annotations

from op_builder import (
    Binding,
    CPUOpBuilder,
    CUDAOpBuilder,  # cuda
    SYCLOpBuilder,  # sycl
)
from op_builder.builder import (
    kernel_path_hooks,
    sycl_kernel_include,  # sycl
    sycl_kernel_path,  # sycl
)

# Both take paths relative to this file, wherever the package is installed.
kernel_path, kernel_include = kernel_path_hooks("my_ops")


class MyOpsAddRmsNormBuilder(CPUOpBuilder):
    NAME = "my_ops_add_rms_norm"
    BUILD_VAR = "ACCEL_BUILD_MY_OPS_ADD_RMS_NORM"
    SUMMARY = "RMS norm of a sum with the residual stream, on the CPU"
    BINDING = Binding.STABLE  # one binary for every torch >= 2.10 and every Python

    def absolute_name(self) -> str:
        return f"my_ops.{self.name}"

    def sources(self) -> list[str]:
        return [kernel_path("kernels/add_rms_norm_cpu.cpp"), kernel_path("kernels/cpu_binding.cpp")]

    def include_paths(self) -> list[str]:
        return ["csrc", kernel_include("kernels")]  # csrc belongs to accel-ops and has bindings/stable_library.h

    def cxx_args(self) -> list[str]:
        return ["-fopenmp-simd"]  # vectorizes the kernels' loops; torch provides the threads


class MyOpsAddRmsNormCudaBuilder(CUDAOpBuilder):  # cuda
    NAME = "my_ops_add_rms_norm_cuda"
    BUILD_VAR = "ACCEL_BUILD_MY_OPS_ADD_RMS_NORM_CUDA"
    SUMMARY = "RMS norm of a sum with the residual stream, on a CUDA device"
    BINDING = Binding.STABLE

    def absolute_name(self) -> str:
        return f"my_ops.{self.name}"

    def sources(self) -> list[str]:
        return [kernel_path("kernels/add_rms_norm_cuda.cu"), kernel_path("kernels/cuda_binding.cpp")]

    def include_paths(self) -> list[str]:
        return ["csrc", kernel_include("kernels")]


class MyOpsAddRmsNormSyclBuilder(SYCLOpBuilder):  # sycl
    NAME = "my_ops_add_rms_norm_sycl"
    BUILD_VAR = "ACCEL_BUILD_MY_OPS_ADD_RMS_NORM_SYCL"
    SUMMARY = "RMS norm of a sum with the residual stream, in SYCL"
    BINDING = Binding.STABLE

    def absolute_name(self) -> str:
        return f"my_ops.{self.name}"

    def sources(self) -> list[str]:
        return [sycl_kernel_path("kernels/sycl_binding.cpp")]

    def kernel_sources(self) -> list[str]:
        return [sycl_kernel_path("kernels/add_rms_norm.sycl.hpp")]

    def include_paths(self) -> list[str]:
        return [sycl_kernel_include("kernels")]
