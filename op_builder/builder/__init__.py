"""The names that authors of builders import. Each is imported when it is first used, because a warm load needs few."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from op_builder.builder.base import CPUOpBuilder as CPUOpBuilder
    from op_builder.builder.base import OpBuilder as OpBuilder
    from op_builder.builder.base import TorchCPUOpBuilder as TorchCPUOpBuilder
    from op_builder.builder.cuda import CUDAOpBuilder as CUDAOpBuilder
    from op_builder.builder.cuda import assert_no_cuda_mismatch as assert_no_cuda_mismatch
    from op_builder.builder.cuda import get_default_compute_capabilities as get_default_compute_capabilities
    from op_builder.builder.cuda import installed_cuda_version as installed_cuda_version
    from op_builder.builder.inline import load_inline as load_inline
    from op_builder.builder.kernel_paths import kernel_path_hooks as kernel_path_hooks
    from op_builder.builder.kernel_paths import sycl_kernel_include as sycl_kernel_include
    from op_builder.builder.kernel_paths import sycl_kernel_path as sycl_kernel_path
    from op_builder.builder.sycl import SYCLOpBuilder as SYCLOpBuilder
    from op_builder.errors import CUDAMismatchException as CUDAMismatchException
    from op_builder.errors import MissingCUDAException as MissingCUDAException
    from op_builder.plan import Binding as Binding

    TORCH_MAJOR: int
    TORCH_MINOR: int

_NAMES_OF = {
    "builder.base": ("OpBuilder", "CPUOpBuilder", "TorchCPUOpBuilder"),
    "builder.cuda": (
        "CUDAOpBuilder",
        "assert_no_cuda_mismatch",
        "get_default_compute_capabilities",
        "installed_cuda_version",
    ),
    "builder.inline": ("load_inline",),
    "builder.kernel_paths": ("kernel_path_hooks", "sycl_kernel_include", "sycl_kernel_path"),
    "builder.sycl": ("SYCLOpBuilder",),
    "errors": ("CUDAMismatchException", "MissingCUDAException"),
    "plan": ("Binding",),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = [*_MODULE_OF, "TORCH_MAJOR", "TORCH_MINOR"]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"op_builder.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    if name in ("TORCH_MAJOR", "TORCH_MINOR"):
        from op_builder.system.torch_install import torch_install

        return torch_install().release[name == "TORCH_MINOR"]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
