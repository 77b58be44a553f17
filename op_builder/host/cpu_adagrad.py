"""CPU Adagrad: optimizer step over tensors in host memory."""

from __future__ import annotations

from typing import Any

from op_builder.host.host_optimizer import HostOptimizerBuilder


class CPUAdagradBuilder(HostOptimizerBuilder):
    """Builds ``cpu_adagrad``; ``load()`` returns a :class:`op_builder.ops.optim.cpu_adagrad_module.CPUAdagradModule`."""

    NAME = "cpu_adagrad"
    BUILD_VAR = "ACCEL_BUILD_CPU_ADAGRAD"
    SUMMARY = "Adagrad with parameters and state in host memory"
    OWN_SOURCES = ("bindings/cpu_adagrad.cpp", "kernels/cpu/adagrad.cpp")

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.optim.cpu_adagrad_module import CPUAdagradModule

        return CPUAdagradModule(opened)
