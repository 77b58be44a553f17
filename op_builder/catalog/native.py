"""This project's own builders: what the rows of the table have in common, and what is one op's own."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from op_builder import env
from op_builder.builder.base import OpBuilder
from op_builder.builder.cpu import CPUOpBuilder
from op_builder.catalog.table import Op
from op_builder.plan import Binding, BuildPlan

if TYPE_CHECKING:
    from op_builder.system.outcomes import CheckOutcome

# Checks are imported where they are made: a warm load of the usual op makes none.


class RowBuilder(OpBuilder):
    """A builder whose answers are in a row of the table."""

    BINDING = Binding.STABLE
    OP: ClassVar[Op]

    def source_args(self, source: str) -> list[str]:
        # A binding checks and dispatches: half of the time it takes to compile would go into optimising that.
        return ["-O1"] if "/bindings/" in source else []

    def bind(self, opened: Any) -> Any:
        module, _, name = self.OP.module.rpartition(".")
        # By its name, because the catalog is below the ops.
        return getattr(importlib.import_module(f"op_builder.ops.{module}"), name)(opened)


class NativeOpBuilder(RowBuilder, CPUOpBuilder):
    """Torch-free kernels in host memory, and a thin binding on the Stable ABI."""

    def sources(self) -> list[str]:
        return [f"csrc/bindings/{self.NAME}.cpp", *(f"csrc/kernels/{path}" for path in self.OP.sources)]

    def include_paths(self) -> list[str]:
        return ["csrc"]

    def load_checks(self) -> list[CheckOutcome]:
        if env.ACCEL_CPU_ISA.raw() is None or "cpu/isa.cpp" not in self.OP.sources:
            return []  # every CPU has kernels that work
        from op_builder.system.cpu_isa import chosen_isa
        from op_builder.system.outcomes import Passed, guarded

        return [guarded("instruction set", lambda: Passed("instruction set", chosen_isa()))]


class AsyncIOBase(NativeOpBuilder):
    """Needs no library and no header but the C library's. Every POSIX system has an engine that works."""

    def source_args(self, source: str) -> list[str]:  # noqa: ARG002
        return ["-O1"]  # it waits for devices; what -O2 would save is less than the system's calls take

    def extra_ldflags(self) -> list[str]:
        return ["-pthread"]

    def load_checks(self) -> list[CheckOutcome]:
        if env.ACCEL_AIO_ENGINE.raw() is None:  # one of them always works
            return []
        from op_builder.system.outcomes import guarded
        from op_builder.system.storage_engines import forced_engine_check

        return [guarded("storage engine", forced_engine_check)]


class SharedMemoryBase(NativeOpBuilder):
    """Needs Linux with memory that has no name (memfd_create(2)), and no library."""

    def source_args(self, source: str) -> list[str]:
        # Its work is in two files; the others call the system and each other.
        return [] if source.endswith(("/reduce.cpp", "/collectives.cpp")) else ["-O1"]

    def load_checks(self) -> list[CheckOutcome]:
        from op_builder.system.outcomes import guarded

        return [*super().load_checks(), guarded("shared memory", shared_memory_check)]


def shared_memory_check() -> CheckOutcome:
    """The system gives this process memory that it can share, and seal."""
    from op_builder.system.outcomes import Failed, Passed

    name = "shared memory"
    if not sys.platform.startswith("linux") or not hasattr(os, "memfd_create"):
        return Failed(name, f"it is made by Linux's memfd_create(2); this is {sys.platform}.", "Use gloo here.")
    try:
        os.close(os.memfd_create("accel_shm_comm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except OSError as error:
        return Failed(name, f"memfd_create(2) is refused: {error.strerror}.", "Allow it in the sandbox, or use gloo.")
    return Passed(name, "memfd_create(2) works")


class OneCCLBase(NativeOpBuilder):
    """Needs oneCCL: that of ``CCL_ROOT``, of PyPI's wheels or of the system."""

    def source_args(self, source: str) -> list[str]:  # noqa: ARG002
        return ["-O1"]  # it passes on what oneCCL does

    def extra_ldflags(self) -> list[str]:
        return ["-pthread"]

    def finish_plan(self, plan: BuildPlan) -> BuildPlan:
        from op_builder.toolchains.oneccl import find_oneccl

        found = find_oneccl()
        return plan if found is None else plan._replace(libraries=(found.as_library,))

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
