"""CPU Adam: optimizer step over tensors in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from op_builder.cpu_builder import CPUOpBuilder
from op_builder.plan import Binding

if TYPE_CHECKING:
    from op_builder.outcomes import CheckOutcome


class CPUAdamBuilder(CPUOpBuilder):
    """Builds ``cpu_adam``; ``load()`` returns a :class:`op_builder.ops.native.cpu_adam.CPUAdamModule`."""

    NAME = "cpu_adam"
    BUILD_VAR = "ACCEL_BUILD_CPU_ADAM"
    BINDING = Binding.STABLE
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
            "csrc/kernels/cpu/isa.cpp",
        ]

    def include_paths(self) -> list[str]:
        return ["csrc"]

    def load_checks(self) -> list[CheckOutcome]:
        from op_builder.cpu_isa import chosen_isa
        from op_builder.outcomes import Passed, guarded

        return [guarded("instruction set", lambda: Passed("instruction set", chosen_isa()))]

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.native.cpu_adam import CPUAdamModule

        return CPUAdamModule(opened)
