"""CPU Adam: optimizer step over tensors in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from op_builder.cpu_builder import CPUOpBuilder
from op_builder.plan import Binding

if TYPE_CHECKING:
    from op_builder.checks import CheckOutcome


class CPUAdamBuilder(CPUOpBuilder):
    """Builds ``cpu_adam``; ``load()`` returns a :class:`op_builder.ops.native.cpu_adam.CPUAdamModule`."""

    NAME = "cpu_adam"
    BUILD_VAR = "ACCEL_BUILD_CPU_ADAM"
    BINDING = Binding.STABLE
    SUMMARY = "Adam and AdamW with parameters and state in host memory"

    def sources(self) -> list[str]:
        # One file per instruction set, so that they compile side by side; each is empty elsewhere.
        return [
            "csrc/bindings/cpu_adam.cpp",
            "csrc/kernels/cpu/adam.cpp",
            "csrc/kernels/cpu/isa.cpp",
            "csrc/kernels/cpu/adam_baseline.cpp",
            "csrc/kernels/cpu/adam_avx2.cpp",
            "csrc/kernels/cpu/adam_avx512.cpp",
            "csrc/kernels/cpu/adam_neon.cpp",
        ]

    def include_paths(self) -> list[str]:
        return ["csrc"]

    def load_checks(self) -> list[CheckOutcome]:
        from op_builder import checks

        return [checks.guarded("instruction set", checks.cpu_isa_check)]

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.native.cpu_adam import CPUAdamModule

        return CPUAdamModule(opened)
