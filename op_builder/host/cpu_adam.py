"""CPU Adam: optimizer step over tensors in host memory."""

from __future__ import annotations

from typing import Any

from op_builder.host.native_op import NativeOpBuilder


class CPUAdamBuilder(NativeOpBuilder):
    """Builds ``cpu_adam``; ``load()`` returns a :class:`op_builder.ops.native.cpu_adam.CPUAdamModule`."""

    NAME = "cpu_adam"
    BUILD_VAR = "ACCEL_BUILD_CPU_ADAM"
    SUMMARY = "Adam and AdamW with parameters and state in host memory"

    def sources(self) -> list[str]:
        # One file per instruction set, so that they compile side by side; each is empty on other
        # architectures. Those that take longest come first, so that no core waits for them at the end.
        return [
            "csrc/bindings/cpu_adam.cpp",
            "csrc/kernels/cpu/adam_avx512.cpp",
            "csrc/kernels/cpu/adam_avx2.cpp",
            "csrc/kernels/cpu/adam_neon.cpp",
            "csrc/kernels/cpu/adam_baseline.cpp",
            "csrc/kernels/cpu/adam.cpp",
            "csrc/kernels/cpu/norm.cpp",
            "csrc/kernels/cpu/isa.cpp",
        ]

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.native.cpu_adam import CPUAdamModule

        return CPUAdamModule(opened)
