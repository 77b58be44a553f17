"""CPU SGD: optimizer step over tensors in host memory."""

from __future__ import annotations

from typing import Any

from op_builder.host.host_optimizer import HostOptimizerBuilder


class CPUSGDBuilder(HostOptimizerBuilder):
    """Builds ``cpu_sgd``; ``load()`` returns a :class:`op_builder.ops.optim.cpu_sgd_module.CPUSGDModule`."""

    NAME = "cpu_sgd"
    BUILD_VAR = "ACCEL_BUILD_CPU_SGD"
    SUMMARY = "SGD with momentum with parameters and state in host memory"
    OWN_SOURCES = ("bindings/cpu_sgd.cpp", "kernels/cpu/sgd.cpp")

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.optim.cpu_sgd_module import CPUSGDModule

        return CPUSGDModule(opened)
