"""Intel GPUs: through torch's own XPU support, or through IPEX where it is installed.

The external variant, ``xpu.external``, is a class that ``intel_extension_for_deepspeed`` brings.
"""

# ruff: noqa: ARG002 - the contract's signatures hold arguments that this device has no use for
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch
from packaging.version import Version

from accelerator.errors import UnsupportedFeatureError
from accelerator.oneccl import oneccl_imports
from accelerator.torch_accelerator import TorchAccelerator

if TYPE_CHECKING:
    from types import ModuleType

_IPEX = "intel_extension_for_pytorch"
_EXTERNAL = "intel_extension_for_deepspeed"


class XPU_Accelerator(TorchAccelerator):
    """``torch.xpu``, which IPEX extends when it is installed."""

    device_type = "xpu"
    requirement = f"{_IPEX} or a torch with XPU support"
    visible_devices_variables = ("ZE_AFFINITY_MASK",)
    builder_package = "op_builder.xpu"
    bf16_supported = True
    graph_class = "XPUGraph"

    def __init__(self) -> None:
        super().__init__()
        self._ipex = _ipex()

    @classmethod
    def device_module(cls) -> ModuleType:
        _ipex()  # registers its part with torch.xpu; no matter when it is absent
        if getattr(torch.version, "xpu", None) is None and not torch.xpu.is_available():
            raise ImportError(f"torch {torch.__version__} is built without XPU")
        return torch.xpu

    @classmethod
    def probe_ipex(cls) -> str | None:
        """The same question as :meth:`probe`, for IPEX alone."""
        importlib.import_module(_IPEX)
        return super().probe()

    @classmethod
    def choose_communication_backend(cls) -> str:
        return "ccl" if oneccl_imports() else "xccl"

    def use_host_timers(self) -> bool:
        """True for IPEX before 2.6, whose events carry no time."""
        return self._ipex is not None and Version(self._ipex.__version__).release < (2, 6)

    def default_stream(self, device_index: int | None = None) -> Any:
        return self.current_stream(device_index)  # torch.xpu has no name for its default stream

    def pin_memory(
        self, tensor: torch.Tensor, align_bytes: int = 1, make_copy: bool = True, match_shape: bool = True
    ) -> torch.Tensor:
        """A copy of a CPU tensor in page-locked memory.

        Args:
            align_bytes: 1 leaves the alignment to torch. 0 asks for whole pages, which the AsyncIO
                op allocates; that op is not part of this version.

        Raises:
            UnsupportedFeatureError: ``align_bytes`` is not 1.
        """
        if align_bytes != 1:
            raise UnsupportedFeatureError(
                f"pin_memory(align_bytes={align_bytes}) needs page-aligned memory from the op async_io, "
                "which this version does not have.",
                "Use align_bytes=1, or op_builder ops that align by themselves.",
            )
        return tensor.pin_memory(device=self.current_device_name())

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned(device=self.current_device_name())

    def build_extension(self) -> Any:
        if self._ipex is None:
            return super().build_extension()
        return importlib.import_module(f"{_IPEX}.xpu.cpp_extension").DpcppBuildExtension


def external_class() -> Any:
    """The accelerator class of ``intel_extension_for_deepspeed``; raises whatever its import raises."""
    return importlib.import_module(_EXTERNAL).XPU_Accelerator


def external_message(reason: str) -> str:
    """The sentence that says what ``xpu.external`` needs and why it is not met."""
    return f"XPU_Accelerator external requires {_EXTERNAL} ({reason})."


def _ipex() -> Any:
    try:
        return importlib.import_module(_IPEX)
    except Exception:  # a broken IPEX counts as none: torch's own support may still do
        return None
