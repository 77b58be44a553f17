"""What the builders of all optimizers on host tensors have in common."""

from __future__ import annotations

from typing import ClassVar

from op_builder.host.native_op import NativeOpBuilder


class HostOptimizerBuilder(NativeOpBuilder):
    """An optimizer's binding and kernels, and what every one of them uses.

    Attributes:
        OWN_SOURCES: the optimizer's own files below ``csrc``. Those that take longest come first, so
            that no core waits for them at the end.
    """

    OWN_SOURCES: ClassVar[tuple[str, ...]] = ()

    def sources(self) -> list[str]:
        return [f"csrc/{path}" for path in (*self.OWN_SOURCES, "kernels/cpu/norm.cpp", "kernels/cpu/isa.cpp")]
