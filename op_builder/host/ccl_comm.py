"""Collectives between CPU ranks through oneCCL."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from op_builder.host.native_op import NativeOpBuilder

if TYPE_CHECKING:
    from op_builder.plan import BuildPlan
    from op_builder.system.outcomes import CheckOutcome


class CCLCommBuilder(NativeOpBuilder):
    """Builds ``ccl_comm``; ``load()`` returns a :class:`op_builder.ops.comm.ccl_comm.CCLCommModule`.

    Needs oneCCL: that of ``CCL_ROOT``, of PyPI's wheels or of the system.
    """

    NAME = "ccl_comm"
    BUILD_VAR = "ACCEL_BUILD_CCL_COMM"
    SUMMARY = "collectives between CPU ranks through oneCCL"

    def sources(self) -> list[str]:
        return ["csrc/kernels/ccl/communicator.cpp", "csrc/bindings/ccl_comm.cpp"]

    def source_args(self, source: str) -> list[str]:  # noqa: ARG002
        return ["-O1"]  # it hands on what oneCCL does

    def extra_ldflags(self) -> list[str]:
        return ["-pthread"]

    def finish_plan(self, plan: BuildPlan) -> BuildPlan:
        from op_builder.toolchains.oneccl import find_oneccl

        found = find_oneccl()
        return plan if found is None else replace(plan, libraries=(found.as_library,))

    def build_checks(self) -> list[CheckOutcome]:
        from op_builder.system.outcomes import guarded
        from op_builder.toolchains.oneccl import build_check

        return [*super().build_checks(), guarded("oneCCL headers", lambda: build_check(self.cache.memo))]

    def load_checks(self) -> list[CheckOutcome]:
        from op_builder.system.outcomes import guarded
        from op_builder.toolchains.oneccl import load_check

        return [guarded("oneCCL library", lambda: load_check(self.cache.memo))]

    def open_libraries(self) -> None:
        from op_builder.toolchains.oneccl import open_oneccl, require_oneccl

        open_oneccl(require_oneccl().library, self.cache.root)

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.comm.ccl_comm import CCLCommModule

        return CCLCommModule(opened)
