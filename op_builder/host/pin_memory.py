"""Page-locked host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from op_builder.host.native_op import NativeOpBuilder

if TYPE_CHECKING:
    from op_builder.system.outcomes import CheckOutcome


class PinMemoryBuilder(NativeOpBuilder):
    """Builds ``pin_memory``; ``load()`` returns a :class:`op_builder.ops.io.pin_memory.PinMemoryModule`."""

    NAME = "pin_memory"
    BUILD_VAR = "ACCEL_BUILD_PIN_MEMORY"
    SUMMARY = "page-locked host memory"

    def sources(self) -> list[str]:
        return ["csrc/bindings/pin_memory.cpp", "csrc/kernels/memory/pages.cpp"]

    def load_checks(self) -> list[CheckOutcome]:
        return []  # it has no kernels for instruction sets

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.io.pin_memory import PinMemoryModule

        return PinMemoryModule(opened)
