"""The names that builder authors import."""

from __future__ import annotations

from typing import Any

from op_builder.builder.base import OpBuilder
from op_builder.builder.cpu import CPUOpBuilder, TorchCPUOpBuilder
from op_builder.builder.cuda import (
    CUDAOpBuilder,
    assert_no_cuda_mismatch,
    get_default_compute_capabilities,
    installed_cuda_version,
)
from op_builder.builder.kernel_paths import kernel_path_hooks, sycl_kernel_include, sycl_kernel_path
from op_builder.builder.sycl import SYCLOpBuilder
from op_builder.errors import CUDAMismatchException, MissingCUDAException
from op_builder.plan import Binding
from op_builder.system.torch_install import torch_install

__all__ = [
    "TORCH_MAJOR",
    "TORCH_MINOR",
    "Binding",
    "CPUOpBuilder",
    "CUDAMismatchException",
    "CUDAOpBuilder",
    "MissingCUDAException",
    "OpBuilder",
    "SYCLOpBuilder",
    "TorchCPUOpBuilder",
    "assert_no_cuda_mismatch",
    "get_default_compute_capabilities",
    "installed_cuda_version",
    "kernel_path_hooks",
    "sycl_kernel_include",
    "sycl_kernel_path",
]

TORCH_MAJOR: int
TORCH_MINOR: int


def __getattr__(name: str) -> Any:
    # Asked for by existing builders; computed on access because it imports torch.
    if name in ("TORCH_MAJOR", "TORCH_MINOR"):
        return torch_install().release[name == "TORCH_MINOR"]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
