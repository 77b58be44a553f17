"""The ops, declared: what accel-ops compiles, when one is first loaded or into the wheel.

What to change: names, sources, flags. An op and its builder need names that no other package has, so begin them with
your project's.
"""

from __future__ import annotations

from op_builder import Binding, CPUOpBuilder, CUDAOpBuilder, SYCLOpBuilder
from op_builder.builder import kernel_path_hooks, sycl_kernel_include, sycl_kernel_path

# Paths beside this file, wherever the package is installed.
kernel_path, kernel_include = kernel_path_hooks("my")


class MyAddRmsNormBuilder(CPUOpBuilder):
    NAME = "my_add_rms_norm"
    BUILD_VAR = "ACCEL_BUILD_MY_ADD_RMS_NORM"
    SUMMARY = "RMS norm of a sum with the residual stream, on the CPU"
    BINDING = Binding.STABLE  # one binary for every torch >= 2.10 and every Python

    def absolute_name(self) -> str:
        return f"my_ops.{self.name}"

    def sources(self) -> list[str]:
        return [kernel_path("kernels/add_rms_norm_cpu.cpp"), kernel_path("kernels/cpu_binding.cpp")]

    def include_paths(self) -> list[str]:
        return ["csrc", kernel_include("kernels")]  # csrc is accel-ops': bindings/stable_library.h

    def cxx_args(self) -> list[str]:
        return ["-fopenmp-simd"]  # the kernels' loops become vectors; threads come from torch


class MyAddRmsNormCudaBuilder(CUDAOpBuilder):
    NAME = "my_add_rms_norm_cuda"
    BUILD_VAR = "ACCEL_BUILD_MY_ADD_RMS_NORM_CUDA"
    SUMMARY = "RMS norm of a sum with the residual stream, on a CUDA device"
    BINDING = Binding.STABLE

    def absolute_name(self) -> str:
        return f"my_ops.{self.name}"

    def sources(self) -> list[str]:
        return [kernel_path("kernels/add_rms_norm_cuda.cu"), kernel_path("kernels/cuda_binding.cpp")]

    def include_paths(self) -> list[str]:
        return ["csrc", kernel_include("kernels")]


class MyAddRmsNormSyclBuilder(SYCLOpBuilder):
    NAME = "my_add_rms_norm_sycl"
    BUILD_VAR = "ACCEL_BUILD_MY_ADD_RMS_NORM_SYCL"
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
