"""The fused optimizers with SYCL kernels, on any accelerator.

On an XPU device :class:`op_builder.ops.FusedAdam` and :class:`op_builder.ops.FusedLion` already use these kernels.
These classes are for parameters in host memory, which a SYCL CPU device updates in place: to test a GPU's kernels on a
machine without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from op_builder.errors import AccelError
from op_builder.ops.optim.fused_adam import FusedAdam
from op_builder.ops.optim.fused_lion import FusedLion


class SYCLFusedAdam(FusedAdam):
    """:class:`op_builder.ops.FusedAdam` with SYCL kernels; options and state are the same, without ``amsgrad``."""

    BUILDERS = "op_builder.xpu"

    def _builder_of(self, group: Mapping[str, Any]) -> str:
        if group["amsgrad"]:
            raise AccelError(
                "SYCLFusedAdam does not support amsgrad=True.",
                "Pass amsgrad=False, or use CPUAdam or FusedAdam, which support it for parameters in host memory.",
            )
        return super()._builder_of(group)


class SYCLFusedLion(FusedLion):
    """:class:`op_builder.ops.FusedLion` with SYCL kernels; options and state are the same."""

    BUILDERS = "op_builder.xpu"
