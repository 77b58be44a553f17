"""CPU Adam: optimizer step over tensors in host memory."""

from __future__ import annotations

from typing import Any

from op_builder.host.host_optimizer import HostOptimizerBuilder


class CPUAdamBuilder(HostOptimizerBuilder):
    """Builds ``cpu_adam``; ``load()`` returns a :class:`op_builder.ops.optim.cpu_adam_module.CPUAdamModule`."""

    NAME = "cpu_adam"
    BUILD_VAR = "ACCEL_BUILD_CPU_ADAM"
    SUMMARY = "Adam and AdamW with parameters and state in host memory"
    # One file per instruction set, so that they compile side by side; each is empty on other architectures.
    OWN_SOURCES = (
        "bindings/cpu_adam.cpp",
        "kernels/cpu/adam_avx512.cpp",
        "kernels/cpu/adam_avx2.cpp",
        "kernels/cpu/adam_neon.cpp",
        "kernels/cpu/adam_baseline.cpp",
        "kernels/cpu/adam.cpp",
    )

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.optim.cpu_adam_module import CPUAdamModule

        return CPUAdamModule(opened)
