"""CPU Lamb: optimizer step over tensors in host memory, scaled for each."""

from __future__ import annotations

from typing import Any

from op_builder.host.host_optimizer import HostOptimizerBuilder


class CPULambBuilder(HostOptimizerBuilder):
    """Builds ``cpu_lamb``; ``load()`` returns a :class:`op_builder.ops.optim.cpu_lamb_module.CPULambModule`."""

    NAME = "cpu_lamb"
    BUILD_VAR = "ACCEL_BUILD_CPU_LAMB"
    SUMMARY = "LAMB with parameters and state in host memory"
    OWN_SOURCES = ("bindings/cpu_lamb.cpp", "kernels/cpu/lamb.cpp")

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.optim.cpu_lamb_module import CPULambModule

        return CPULambModule(opened)
