"""The fused optimizers by their SYCL kernels, whatever the current accelerator is.

On an XPU device :class:`op_builder.ops.FusedAdam` and :class:`op_builder.ops.FusedLion` have these kernels anyway.
These classes are for parameters in host memory, which a SYCL CPU device updates where they lie: to run, test and
compare what a GPU would run, on a machine without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from op_builder.errors import AccelError
from op_builder.ops.optim.fused_adam import FusedAdam
from op_builder.ops.optim.fused_lion import FusedLion


class SYCLFusedAdam(FusedAdam):
    """:class:`op_builder.ops.FusedAdam` by SYCL kernels; options and state are the same, without ``amsgrad``."""

    BUILDERS = "op_builder.xpu"

    def _builder_of(self, group: Mapping[str, Any]) -> str:
        if group["amsgrad"]:
            raise AccelError(
                "SYCL kernels have no amsgrad; SYCLFusedAdam was given amsgrad=True.",
                "Leave it out, or use CPUAdam or FusedAdam, which have it for parameters in host memory.",
            )
        return super()._builder_of(group)


class SYCLFusedLion(FusedLion):
    """:class:`op_builder.ops.FusedLion` by SYCL kernels; options and state are the same."""

    BUILDERS = "op_builder.xpu"
