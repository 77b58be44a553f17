"""The module that ``AsyncIOBuilder().load()`` returns."""

from __future__ import annotations

import logging
from typing import Any

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.io.aio_handle import Handle, HandleSettings
from op_builder.ops.io.aio_operation import File, checked_address
from op_builder.ops.io.locked_memory import LockedMemory
from op_builder.system import storage_engines

logger = logging.getLogger(__name__)


class AsyncIOModule:
    """Tensors to and from files.

    Args:
        ops: the namespace of torch ops that the binding registered.
    """

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        self._memory = LockedMemory(ops)

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
        """A handle with a queue of its own for each of its threads.

        Args:
            block_size: most bytes of one command to the system.
            queue_depth: most commands in flight, of each thread.
            single_submit: a system call for each command, instead of one for all that are ready.
            overlap_events: new commands as soon as one is complete, instead of when all in flight are.
            intra_op_parallelism: threads that share one request; those that the system gives no queue the others
                do without.
            engine: ``io_uring``, ``libaio`` or ``threads``, where ``ACCEL_AIO_ENGINE`` names none; by default the
                first of them that works.

        Raises:
            OpArgumentError: a number is out of range.
            IncompatibleOpError: the system refuses the engine that was asked for.
        """
        settings = HandleSettings(block_size, queue_depth, single_submit, overlap_events, intra_op_parallelism)
        settings.check()
        name, number = self._create(settings, engine)
        return Handle(self._ops, number, name, settings, self._memory)

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
        """Fill ``buffer`` from the beginning of a file; as :meth:`Handle.read`, by a handle of its own. Returns 0."""
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
        """Write ``buffer`` to the beginning of a file; as :meth:`Handle.write`, by a handle of its own. Returns 0."""
        return self.aio_handle(block_size, queue_depth, single_submit, overlap_events).write(buffer, filename, validate)

    def memcpy(self, dst: torch.Tensor, src: torch.Tensor) -> int:
        """Copy the bytes of one contiguous CPU tensor to another of the same size in bytes, by torch's threads.

        Returns 0.

        Raises:
            OpArgumentError: a tensor is not a contiguous CPU tensor, the sizes differ, or the two overlap.
        """
        distance = checked_address(dst, "dst") - checked_address(src, "src")
        if dst.nbytes != src.nbytes:
            raise OpArgumentError(f"dst has {dst.nbytes} bytes, src {src.nbytes}.", "Pass tensors of one size.")
        if 0 < abs(distance) < dst.nbytes:
            raise OpArgumentError("dst and src share a part of their memory.", "Pass src.clone().")
        with torch.no_grad():
            dst.detach().view(-1).view(torch.uint8).copy_(src.detach().view(-1).view(torch.uint8))
        return 0

    deepspeed_memcpy = memcpy

    def _create(self, settings: HandleSettings, engine: str | None) -> tuple[str, int]:
        """The engine's name and the number of a new native handle."""
        argument = storage_engines.checked_engine(engine)
        asked = storage_engines.forced_engine() or argument
        reasons = []
        for name in storage_engines.ENGINES if asked is None else (asked,):
            number = self._ops.create(name, *settings.positional())
            if number > 0:
                return name, number
            reason = f"with a queue of {settings.queue_depth}, {storage_engines.explain(name, -number)}"
            logger.info("The storage engine %s is passed over: %s", name, reason)
            reasons.append(f"{name}: {reason}")
        raise storage_engines.refused(asked or "of any kind", "; ".join(reasons))
