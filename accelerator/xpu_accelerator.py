"""Intel GPUs, with torch's own XPU support or with IPEX if it is installed."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from accelerator.errors import UnsupportedFeatureError
from accelerator.torch_accelerator import TorchAccelerator
from accelerator.vendors import import_vendor, optional_vendor

if TYPE_CHECKING:
    from types import ModuleType

_IPEX = "intel_extension_for_pytorch"


class XPU_Accelerator(TorchAccelerator):
    """``torch.xpu``, which IPEX extends when it is installed."""

    device_type = "xpu"
    requirement = f"{_IPEX} or a torch with XPU support"
    visible_devices_variables = ("ZE_AFFINITY_MASK",)
    builder_package = "op_builder.xpu"
    bf16_supported = True
    graph_class = "XPUGraph"

    @classmethod
    def device_module(cls) -> ModuleType:
        optional_vendor(_IPEX)  # extends torch.xpu; torch's own may work if it is broken
        if getattr(torch.version, "xpu", None) is None and not torch.xpu.is_available():
            raise ImportError(f"torch {torch.__version__} is built without XPU")
        return torch.xpu

    @classmethod
    def choose_communication_backend(cls) -> str:
        return "ccl" if optional_vendor("oneccl_bindings_for_pytorch") else "xccl"

    def use_host_timers(self) -> bool:
        """True for IPEX before 2.6, whose events cannot measure time."""
        ipex: Any = optional_vendor(_IPEX)
        if ipex is None:
            return False
        from packaging.version import Version

        return Version(ipex.__version__).release < (2, 6)

    def default_stream(self, device_index: int | None = None) -> Any:
        return self.current_stream(device_index)  # torch.xpu does not expose its default stream

    def pin_memory(
        self, tensor: torch.Tensor, align_bytes: int = 1, make_copy: bool = True, match_shape: bool = True
    ) -> torch.Tensor:
        """A copy of a CPU tensor in page-locked memory.

        Args:
            align_bytes: 1 is torch's alignment; 0 requests whole pages, which the op async_io allocates.
            make_copy: with ``align_bytes=0``, False leaves the values undefined.
            match_shape: with ``align_bytes=0``, False returns a one-dimensional tensor.

        Raises:
            UnsupportedFeatureError: ``align_bytes`` is another number.
            IncompatibleOpError: whole pages are requested, and async_io cannot be built or loaded.
        """
        if align_bytes == 0:
            return self._lock_pages(tensor, make_copy, match_shape)
        if align_bytes != 1:
            raise UnsupportedFeatureError(
                f"pin_memory(align_bytes={align_bytes}): expected 1 (torch's alignment) or 0 (whole pages).",
                "Pass `align_bytes=0`, which aligns to whole pages.",
            )
        return super().pin_memory(tensor, 1, make_copy, match_shape)

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory(device=self.current_device_name())

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned(device=self.current_device_name())

    def build_extension(self) -> Any:
        if optional_vendor(_IPEX) is None:
            return super().build_extension()
        return import_vendor(f"{_IPEX}.xpu.cpp_extension").DpcppBuildExtension
