"""Tensors to and from storage, asynchronously."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from op_builder import env
from op_builder.host.native_op import NativeOpBuilder

if TYPE_CHECKING:
    from op_builder.system.outcomes import CheckOutcome


class AsyncIOBuilder(NativeOpBuilder):
    """Builds ``async_io``; ``load()`` returns a :class:`op_builder.ops.io.async_io.AsyncIOModule`.

    Needs no library and no header but the C library's. Every POSIX system has an engine that works.
    """

    NAME = "async_io"
    BUILD_VAR = "ACCEL_BUILD_ASYNC_IO"
    SUMMARY = "tensors to and from storage, asynchronously"

    def sources(self) -> list[str]:
        # Those that take longest come first, so that no core waits for them at the end.
        engine = ("pump", "handle", "thread_queue", "operation", "file", "linux_aio_queue", "uring_queue", "queue")
        return [
            "csrc/bindings/async_io.cpp",
            *(f"csrc/kernels/aio/{name}.cpp" for name in engine),
            "csrc/kernels/memory/pages.cpp",
        ]

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

    def bind(self, opened: Any) -> Any:
        from op_builder.ops.io.async_io import AsyncIOModule

        return AsyncIOModule(opened)
