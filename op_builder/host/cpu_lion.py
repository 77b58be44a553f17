"""CPU Lion: optimizer step over tensors in host memory."""

from __future__ import annotations

from typing import Any

from op_builder.host.host_optimizer import HostOptimizerBuilder


class CPULionBuilder(HostOptimizerBuilder):
    """Builds ``cpu_lion``; ``load()`` returns a :class:`op_builder.ops.optim.cpu_lion_module.CPULionModule`."""

    NAME = "cpu_lion"
    BUILD_VAR = "ACCEL_BUILD_CPU_LION"
    SUMMARY = "Lion with parameters and state in host memory"
    OWN_SOURCES = ("bindings/cpu_lion.cpp", "kernels/cpu/lion.cpp")

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.optim.cpu_lion_module import CPULionModule

        return CPULionModule(opened)
