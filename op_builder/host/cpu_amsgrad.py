"""CPU AMSGrad: optimizer step over tensors in host memory."""

from __future__ import annotations

from typing import Any

from op_builder.host.host_optimizer import HostOptimizerBuilder


class CPUAmsgradBuilder(HostOptimizerBuilder):
    """Builds ``cpu_amsgrad``; ``load()`` returns a :class:`op_builder.ops.optim.cpu_amsgrad_module.CPUAmsgradModule`."""

    NAME = "cpu_amsgrad"
    BUILD_VAR = "ACCEL_BUILD_CPU_AMSGRAD"
    SUMMARY = "Adam and AdamW with amsgrad, with parameters and state in host memory"
    OWN_SOURCES = ("bindings/cpu_amsgrad.cpp", "kernels/cpu/amsgrad.cpp")

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.optim.cpu_amsgrad_module import CPUAmsgradModule

        return CPUAmsgradModule(opened)
