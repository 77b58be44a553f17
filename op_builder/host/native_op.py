"""What all of the project's own host ops have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from op_builder import env
from op_builder.builder.cpu import CPUOpBuilder
from op_builder.plan import Binding

if TYPE_CHECKING:
    from op_builder.system.outcomes import CheckOutcome


class NativeOpBuilder(CPUOpBuilder):
    """Torch-free kernels for each instruction set, and a thin binding on the Stable ABI."""

    BINDING = Binding.STABLE

    def include_paths(self) -> list[str]:
        return ["csrc"]

    def source_args(self, source: str) -> list[str]:
        # A binding checks and dispatches: half of the time it takes to compile would go into optimising that.
        return ["-O1"] if source.startswith("csrc/bindings/") else []

    def load_checks(self) -> list[CheckOutcome]:
        if env.ACCEL_CPU_ISA.raw() is None:  # every CPU has kernels for it
            return []
        from op_builder.system.cpu_isa import chosen_isa
        from op_builder.system.outcomes import Passed, guarded

        return [guarded("instruction set", lambda: Passed("instruction set", chosen_isa()))]
