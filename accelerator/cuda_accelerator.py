"""CUDA devices, and AMD's ROCm devices, which torch presents as CUDA."""

# torch.cuda.nvtx and torch.backends.cuda are untyped.
# mypy: disable-error-code="no-any-return, no-untyped-call"

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import sys
from typing import Any

import torch

from accelerator.nvml import free_memory_bytes
from accelerator.torch_accelerator import TorchAccelerator
from accelerator.vendors import optional_vendor
from op_builder import env as environment


class CUDA_Accelerator(TorchAccelerator):
    """``torch.cuda``. Works without a device for builders, the report and prebuilds."""

    device_type = "cuda"
    requirement = "a torch with CUDA or ROCm and a device it can use"
    visible_devices_variables = ("CUDA_VISIBLE_DEVICES",)
    exported_variables = ("NCCL",)
    builder_package = "op_builder.cuda"
    graph_class = "CUDAGraph"
    supports_nvtx_domain = True

    @classmethod
    def choose_communication_backend(cls) -> str:
        return "gloo" if sys.platform == "win32" else "nccl"

    def device_capability(self, device_index: int | None = None) -> Any:
        """(major, minor), or None without a device."""
        return torch.cuda.get_device_capability(device_index) if self.is_available() else None

    def _has_capability(self, major: int, minor: int = 0) -> bool:
        capability = self.device_capability()
        return capability is not None and capability >= (major, minor)

    def available_memory(self, device_index: int | None = None) -> int:
        """Free bytes: from NVML if ``pynvml`` is installed, else from the CUDA driver."""
        if torch.version.hip is None:
            index = self.current_device() if device_index is None else device_index
            visible, order = environment.CUDA_VISIBLE_DEVICES.get(), environment.CUDA_DEVICE_ORDER.get()
            free = free_memory_bytes(visible, order, index)
            if free is not None:
                return free
        return super().available_memory(device_index)

    def is_bf16_supported(self) -> bool:
        return self.is_available() and torch.cuda.is_bf16_supported()

    def is_fp16_supported(self) -> bool:
        return self._has_capability(7)

    def is_fp8_supported(self) -> bool:
        """Capability 8.9 (Ada, Hopper) on NVIDIA; gfx94, gfx95 (CDNA 3, 4) and gfx12 (RDNA 4) on AMD."""
        if torch.version.hip is not None:
            architecture = getattr(self.get_device_properties(), "gcnArchName", "") if self.is_available() else ""
            return architecture.startswith(("gfx94", "gfx95", "gfx12"))
        return self._has_capability(8, 9)

    def is_triton_supported(self) -> bool:
        return self._has_capability(8)

    def prefer_triton_grouped_mm(self) -> bool:
        """On capability 7.x and 8.x, if Triton is installed."""
        is_old = self._has_capability(7) and not self._has_capability(9)
        return torch.version.hip is None and is_old and importlib.util.find_spec("triton") is not None

    def communication_backend_version(self) -> Any:
        """NCCL's version, such as (2, 27, 5), or None without NCCL."""
        has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
        return torch.cuda.nccl.version() if has_nccl else None

    def register_host_memory(self, address: int, num_bytes: int) -> bool:
        """Page-lock existing memory with ``cudaHostRegister``; raises torch's ``CudaError`` if that fails."""
        _check(self._call(torch.cuda.cudart).cudaHostRegister(address, num_bytes, 0))
        return True

    def unregister_host_memory(self, address: int) -> bool:
        """Undo :meth:`register_host_memory`; raises torch's ``CudaError`` if that fails."""
        _check(self._call(torch.cuda.cudart).cudaHostUnregister(address))
        return True

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> Any:
        """Open an NVTX range; without the package ``nvtx``, ``domain`` is ignored."""
        nvtx = _nvtx() if domain is not None else None
        if nvtx is not None:
            return nvtx.push_range(msg, domain=domain, category=category)
        return torch.cuda.nvtx.range_push(msg) if torch.backends.cuda.is_built() else None

    def range_pop(self, domain: str | None = None) -> Any:
        nvtx = _nvtx() if domain is not None else None
        if nvtx is not None:
            return nvtx.pop_range(domain=domain)
        return torch.cuda.nvtx.range_pop() if torch.backends.cuda.is_built() else None


def _check(code: Any) -> None:
    """Raise an error of the CUDA runtime, and clear it there, or torch would report it at its next kernel."""
    if int(code) != 0:
        major = str(torch.version.cuda).partition(".")[0]
        with contextlib.suppress(OSError, AttributeError):  # HIP's runtime
            ctypes.CDLL(f"libcudart.so.{major}", mode=os.RTLD_NOLOAD).cudaGetLastError()
    torch.cuda.check_error(code)


@functools.cache  # ranges are frequent, and a failing import is slow
def _nvtx() -> Any:
    return optional_vendor("nvtx")
