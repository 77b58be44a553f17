"""The module that ``AsyncIOBuilder().load()`` returns."""

from __future__ import annotations

import logging
from typing import Any

import torch

from op_builder import env
from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import bytes_of
from op_builder.ops.declare import host_recipe, native_spec
from op_builder.ops.io.aio_handle import Handle, HandleSettings
from op_builder.ops.io.aio_operation import File, checked_address
from op_builder.spec import OpFamily
from op_builder.system import storage_engines
from op_builder.system.outcomes import CheckOutcome, checked

logger = logging.getLogger(__name__)


class AsyncIOModule:
    """Tensors to and from files.

    Args:
        ops: the namespace of torch ops that the binding registered.
    """

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def aio_handle(
        self,
        block_size: int = 1 << 20,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
        *,
        engine: str | None = None,
    ) -> Handle:
        """A handle whose threads have a queue each.

        Args:
            block_size: largest size in bytes of one command to the system.
            queue_depth: most commands in flight, per thread.
            single_submit: one system call per command, instead of one for all that are ready.
            overlap_events: start new commands when one completes, instead of when all in flight have completed.
            intra_op_parallelism: threads that share one request. Threads that the system refuses a queue are left out.
            engine: ``io_uring``, ``libaio`` or ``threads``; ``ACCEL_AIO_ENGINE`` overrides it. By default the first of
                them that works.

        Raises:
            OpArgumentError: a number is out of range.
            IncompatibleOpError: the system refuses the requested engine.
        """
        settings = HandleSettings(
            block_size, queue_depth, single_submit, overlap_events, intra_op_parallelism, engine
        ).checked()
        requested = env.ACCEL_AIO_ENGINE.get() or engine
        reasons = []
        for name in storage_engines.ENGINES if requested is None else (requested,):
            handle = self._create(name, settings)
            if isinstance(handle, Handle):
                return handle
            reasons.append(f"{name}: with a queue of {queue_depth}, {handle}")
            logger.info("Storage engine %s", reasons[-1])
        raise storage_engines.unusable_engine(requested or "of any kind", "; ".join(reasons))

    def rejected_engines(self) -> dict[str, str]:
        """The names of the engines that this process cannot use, with the reasons."""
        handles = {name: self._create(name, HandleSettings()) for name in storage_engines.ENGINES}
        return {name: handle for name, handle in handles.items() if not isinstance(handle, Handle)}

    def _create(self, engine: str, settings: HandleSettings) -> Handle | str:
        """A handle, or why the system refuses it."""
        number = self._ops.create(engine, *settings[:5])
        return Handle(self._ops, number, engine, settings) if number > 0 else storage_engines.explain(engine, -number)

    def aio_read(
        self,
        buffer: torch.Tensor,
        filename: File,
        block_size: int,
        queue_depth: int,
        single_submit: bool,
        overlap_events: bool,
        validate: bool,
    ) -> int:
        """Fill ``buffer`` from the beginning of a file: :meth:`Handle.read` with a handle of its own. Returns 0."""
        return self.aio_handle(block_size, queue_depth, single_submit, overlap_events).read(buffer, filename, validate)

    def aio_write(
        self,
        buffer: torch.Tensor,
        filename: File,
        block_size: int,
        queue_depth: int,
        single_submit: bool,
        overlap_events: bool,
        validate: bool,
    ) -> int:
        """Write ``buffer`` to the beginning of a file: :meth:`Handle.write` with a handle of its own. Returns 0."""
        return self.aio_handle(block_size, queue_depth, single_submit, overlap_events).write(buffer, filename, validate)

    def memcpy(self, dst: torch.Tensor, src: torch.Tensor) -> int:
        """Copy the bytes of one contiguous CPU tensor to another of the same size in bytes that does not overlap it.

        torch's threads do it. Returns 0.
        """
        distance = checked_address(dst, "dst") - checked_address(src, "src")
        if dst.nbytes != src.nbytes:
            raise OpArgumentError(f"dst has {dst.nbytes} bytes, src {src.nbytes}.", "Pass tensors of one size.")
        if 0 < abs(distance) < dst.nbytes:
            raise OpArgumentError("dst and src share a part of their memory.", "Pass src.clone().")
        with torch.no_grad():
            bytes_of(dst).copy_(bytes_of(src))
        return 0

    deepspeed_memcpy = memcpy


def _load_checks(_: object) -> list[CheckOutcome]:
    """The engine that is forced exists. Whether it works is known when a handle is made."""
    if env.ACCEL_AIO_ENGINE.raw() is None:
        return []
    return [checked("storage engine", lambda: env.ACCEL_AIO_ENGINE.get() or "")]


_FILES = ("pump", "handle", "thread_queue", "operation", "file", "linux_aio_queue", "uring_queue")

OP = OpFamily(
    "async_io",
    "AsyncIOBuilder",
    "tensors to and from files, asynchronously",
    host=native_spec(
        # The queues of io_uring and libaio are empty except on Linux; the threads need only POSIX. All wait for
        # devices, so -O2 would save nothing measurable.
        host_recipe(
            "async_io",
            (*(f"aio/{name}.cpp" for name in _FILES), "memory/pages.cpp"),
            optimized=(),
            link_flags=("-pthread",),
        ),
        AsyncIOModule,
        load_checks=_load_checks,
    ),
)
