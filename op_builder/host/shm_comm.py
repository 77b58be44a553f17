"""Collectives between the ranks of one host."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from op_builder.host.native_op import NativeOpBuilder

if TYPE_CHECKING:
    from op_builder.system.outcomes import CheckOutcome


class ShareMemCommBuilder(NativeOpBuilder):
    """Builds ``shm_comm``; ``load()`` returns a :class:`op_builder.ops.comm.shm_comm.ShareMemCommModule`.

    Needs Linux with memory that has no name (memfd_create(2)), and no library.
    """

    NAME = "shm_comm"
    BUILD_VAR = "ACCEL_BUILD_SHM_COMM"
    SUMMARY = "collectives between CPU ranks of one host"

    def sources(self) -> list[str]:
        # Those that take longest come first, so that no core waits for them at the end.
        parts = ("reduce", "collectives", "group", "segment")
        return [
            "csrc/bindings/shm_comm.cpp",
            *(f"csrc/kernels/comm/{name}.cpp" for name in parts),
            "csrc/kernels/cpu/isa.cpp",
        ]

    def source_args(self, source: str) -> list[str]:
        # Its work is in two files; the others call the system and each other.
        return [] if source.endswith(("/reduce.cpp", "/collectives.cpp")) else ["-O1"]

    def load_checks(self) -> list[CheckOutcome]:
        from op_builder.system.outcomes import guarded

        return [*super().load_checks(), guarded("shared memory", shared_memory_check)]

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.comm.shm_comm import ShareMemCommModule

        return ShareMemCommModule(opened)


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
