"""Builders of SYCL ops."""

from __future__ import annotations

from op_builder.base import OpBuilder
from op_builder.outcomes import CheckOutcome, Failed


class SYCLOpBuilder(OpBuilder):
    """An op with SYCL sources. This version has no SYCL toolchain yet: the class says so when asked."""

    def build_checks(self) -> list[CheckOutcome]:
        return [
            Failed(
                "SYCL toolchain",
                "this version of accel-ops cannot compile SYCL sources.",
                "Use a device whose ops this version has; the report lists them.",
            )
        ]
