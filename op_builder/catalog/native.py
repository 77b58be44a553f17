"""This project's builders: the base classes of the table's rows, and the classes of ops that need more."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from op_builder import env
from op_builder.builder.base import CPUOpBuilder, OpBuilder
from op_builder.catalog.table import Op
from op_builder.plan import Binding, BuildPlan

if TYPE_CHECKING:
    from op_builder.system.outcomes import CheckOutcome

# Checks are imported in functions, because a warm load of most ops runs none.


class RowBuilder(OpBuilder):
    """A builder that reads a row of the table."""

    BINDING = Binding.STABLE
    OP: ClassVar[Op]

    def source_args(self, source: str) -> list[str]:
        # A binding only checks and dispatches; optimizing it would double its compile time.
        return ["-O1"] if "/bindings/" in source else []

    def bind(self, opened: Any) -> Any:
        return front_object(self.OP.module)(opened)


def front_object(path: str) -> Any:
    """The class that ``path`` names in ``op_builder.ops``."""
    module, _, name = path.rpartition(".")
    # Imported by name, because the catalog is a layer below the ops.
    return getattr(importlib.import_module(f"op_builder.ops.{module}"), name)


class NativeOpBuilder(RowBuilder, CPUOpBuilder):
    """Kernels for host memory without torch, and a thin binding on the Stable ABI."""

    def sources(self) -> list[str]:
        return [f"csrc/bindings/{self.NAME}.cpp", *(f"csrc/kernels/{path}" for path in self.OP.sources)]

    def include_paths(self) -> list[str]:
        return ["csrc"]

    def load_checks(self) -> list[CheckOutcome]:
        if env.ACCEL_CPU_ISA.raw() is None or "cpu/isa.cpp" not in self.OP.sources:
            return []  # the baseline kernels work on every CPU
        from op_builder.system.cpu_isa import chosen_isa
        from op_builder.system.outcomes import Passed, guarded

        return [guarded("instruction set", lambda: Passed("instruction set", chosen_isa()))]


class AsyncIOBase(NativeOpBuilder):
    """Needs only the C library. At least one storage engine works on every POSIX system."""

    def source_args(self, source: str) -> list[str]:  # noqa: ARG002
        return ["-O1"]  # it waits for devices, so -O2 would save nothing measurable

    def extra_ldflags(self) -> list[str]:
        return ["-pthread"]

    def load_checks(self) -> list[CheckOutcome]:
        if env.ACCEL_AIO_ENGINE.raw() is None:  # one engine always works
            return []
        from op_builder.system.outcomes import guarded
        from op_builder.system.storage_engines import forced_engine_check

        return [guarded("storage engine", forced_engine_check)]


def system_check(op: Op, system: str) -> list[CheckOutcome]:
    """A failed check with the table's reason where ``op`` does not work on ``system``, as ``sys.platform``."""
    from op_builder.system.outcomes import Failed

    # For Linux the table's reason concerns cross builds with ziglang.
    reason = None if system == "linux" else dict(op.left_out).get(system)
    return [Failed("system", f"{reason}; this is {system}.", "Use gloo here.")] if reason else []


class SharedMemoryBase(NativeOpBuilder):
    """Needs memfd_create(2) and futex(2) of Linux, and no library."""

    def source_args(self, source: str) -> list[str]:
        # Only these two files contain loops over data.
        return [] if source.endswith(("/reduce.cpp", "/collectives.cpp")) else ["-O1"]

    def load_checks(self) -> list[CheckOutcome]:
        from op_builder.system.outcomes import guarded

        return system_check(self.OP, sys.platform) or [
            *super().load_checks(),
            guarded("shared memory", shared_memory_check),
        ]


def shared_memory_check() -> CheckOutcome:
    """Whether this process can create shared memory and seal it."""
    from op_builder.system.outcomes import Failed, Passed

    name = "shared memory"
    if not hasattr(os, "memfd_create"):
        return Passed(name, "not checked, because this Python lacks os.memfd_create()")
    try:
        os.close(os.memfd_create("accel_shm_comm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    except OSError as error:
        return Failed(name, f"memfd_create(2) is refused: {error.strerror}.", "Allow it in the sandbox, or use gloo.")
    return Passed(name, "memfd_create(2) works")


class OneCCLBase(NativeOpBuilder):
    """Needs oneCCL from ``CCL_ROOT``, from PyPI's wheels or from the system."""

    def source_args(self, source: str) -> list[str]:  # noqa: ARG002
        return ["-O1"]  # it only calls oneCCL

    def extra_ldflags(self) -> list[str]:
        return ["-pthread"]

    def finish_plan(self, plan: BuildPlan) -> BuildPlan:
        from op_builder.toolchains.oneccl import find_oneccl

        found = find_oneccl()
        return plan if found is None else plan._replace(libraries=(found.as_library,))

    def build_checks(self) -> list[CheckOutcome]:
        from op_builder.system.outcomes import guarded
        from op_builder.toolchains.oneccl import build_check

        return system_check(self.OP, sys.platform) or [
            *super().build_checks(),
            guarded("oneCCL headers", lambda: build_check(self.cache.memo)),
        ]

    def load_checks(self) -> list[CheckOutcome]:
        from op_builder.system.outcomes import guarded
        from op_builder.toolchains.oneccl import load_check

        if system_check(self.OP, sys.platform):  # as the build's checks report
            return []
        return [guarded("oneCCL library", lambda: load_check(self.cache.memo))]

    def open_libraries(self) -> None:
        from op_builder.toolchains.oneccl import open_oneccl, require_oneccl

        open_oneccl(require_oneccl().library, self.cache.kernel_directory)
