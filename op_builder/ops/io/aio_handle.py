"""The handle through which tensors go to and from files."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import logging
import os
import time
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from op_builder.errors import OpArgumentError, StorageError
from op_builder.ops.arguments import bounded_int, untraced
from op_builder.ops.io.aio_operation import (
    File,
    Operation,
    checked_address,
    checked_file,
    checked_offset,
    open_file,
)
from op_builder.ops.io.locked_memory import LockedTensors
from op_builder.system import storage_engines

logger = logging.getLogger(__name__)

STALLED_S = 30.0  # how long the end of the process waits for a device that does nothing
_SIGNAL_LATENCY_MS = 200  # a wait returns to Python this often, which then handles signals


class HandleSettings(NamedTuple):
    """The settings of a handle, as :meth:`AsyncIOModule.aio_handle` explains them."""

    block_size: int = 1 << 20
    queue_depth: int = 128
    single_submit: bool = False
    overlap_events: bool = False
    intra_op_parallelism: int = 1
    engine: str | None = None

    def checked(self) -> HandleSettings:
        """The same as ints and bools; raises an OpArgumentError if a number is out of range or the engine unknown."""
        if self.engine not in (None, *storage_engines.ENGINES):
            allowed = ", ".join(storage_engines.ENGINES)
            raise OpArgumentError(f"Unknown engine {self.engine!r}.", f"Choose one of {allowed}.")
        numbers: dict[str, Any] = {}
        for name, most in (("block_size", 1 << 62), ("queue_depth", 1 << 15), ("intra_op_parallelism", 1 << 10)):
            numbers[name] = bounded_int(name, getattr(self, name), 1, most, f"Pass an int of 1 to {most}.")
        numbers |= {name: bool(getattr(self, name)) for name in ("single_submit", "overlap_events")}
        return self._replace(**numbers)


class HandleCounters(NamedTuple):
    """Counters of a handle's threads.

    Attributes:
        commands: reads and writes that were started.
        submissions: calls that submitted commands to the engine.
        overlapped: of these, calls made while earlier commands were in flight.
        most_in_flight: most commands of one thread at a time.
        retries: commands restarted after a short result or a transient error.
        direct_bytes: bytes that bypassed the page cache.
        cached_bytes: bytes that went through it.
        bounced_bytes: of the direct bytes, those copied through an aligned buffer.
    """

    commands: int
    submissions: int
    overlapped: int
    most_in_flight: int
    retries: int
    direct_bytes: int
    cached_bytes: int
    bounced_bytes: int


class Handle(LockedTensors):
    """Reads and writes whole tensors, at once or in the background.

    Tensors are contiguous CPU tensors of any type, size and address; files may be longer than the tensor. Offsets are
    in bytes. A missing file is created, and no file is made shorter. docs/async_io.md has the guarantees.
    """

    def __init__(self, ops: Any, number: int, engine: str, settings: HandleSettings) -> None:
        super().__init__(ops)
        self._number = number
        self._engine = engine
        self._settings = settings
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        # By number; an operation is here before the native op starts it and until its outcome is known, so that no
        # exception of a signal handler can free its memory. No locks, because a signal handler may use the handle.
        self._operations: dict[int, Operation] = {}
        self._in_calls: set[int] = set()  # operations of running calls, which wait() ignores
        # The native handle waits for what is in flight; the tensors are kept until then.
        finalizer = weakref.finalize(self, _destroy, ops, number, self._owner, self._operations)
        finalizer.atexit = False  # that wait has no limit; _finish_at_exit() has one
        _living.add(self)

    @property
    def engine(self) -> str:
        """The engine in use: ``io_uring``, ``libaio`` or ``threads``."""
        return self._engine

    def get_block_size(self) -> int:
        """Largest size in bytes of one command to the system."""
        return self._settings.block_size

    def get_queue_depth(self) -> int:
        """Most commands in flight, per thread."""
        return self._settings.queue_depth

    def get_single_submit(self) -> bool:
        """Whether each command has a system call of its own."""
        return self._settings.single_submit

    def get_overlap_events(self) -> bool:
        """Whether new commands start when one completes."""
        return self._settings.overlap_events

    def get_intra_op_parallelism(self) -> int:
        """Threads that share one request."""
        return self._settings.intra_op_parallelism

    def get_alignment(self) -> int:
        """The best alignment of sizes and offsets, in bytes: a page for each thread. Others work, too."""
        return os.sysconf("SC_PAGESIZE") * self._settings.intra_op_parallelism

    def counters(self) -> HandleCounters:
        """The counters of the handle's threads."""
        return HandleCounters(*self._ops.counters(self._number))

    # One thread, at once -----------------------------------------------------------------------

    def read(self, buffer: torch.Tensor, filename: File, validate: bool, file_offset: int = 0) -> int:
        """Fill ``buffer`` from a file, with one thread. Returns 0.

        Args:
            validate: read the file once more, from the device, and compare.

        Raises:
            OpArgumentError: an argument is invalid; nothing was touched.
            StorageError: the file cannot be read, is too short, or does not compare.
        """
        return self._transfer(buffer, filename, file_offset, is_write=False, validates=validate, is_split=False)

    def write(self, buffer: torch.Tensor, filename: File, validate: bool, file_offset: int = 0) -> int:
        """Write ``buffer`` to a file, with one thread. Returns 0; raises as :meth:`read`."""
        return self._transfer(buffer, filename, file_offset, is_write=True, validates=validate, is_split=False)

    # All threads, at once or in the background -------------------------------------------------

    def pread(self, buffer: torch.Tensor, filename: File, validate: bool, *rest: Any, **keywords: Any) -> int:
        """Fill ``buffer`` from a file, with all threads; raises as :meth:`read`.

        The full signature is ``pread(buffer, filename, validate, async, file_offset=0)``; ``async`` is a
        reserved word, so by name it is passed through ``**{"async": True}``.

        Returns:
            1 when it is done, 0 where it continues in the background until :meth:`wait`, which raises its failures.
        """
        is_background, offset = _background_and_offset("pread", rest, keywords)
        return self._transfer(buffer, filename, offset, is_write=False, validates=validate, is_background=is_background)

    def pwrite(self, buffer: torch.Tensor, filename: File, validate: bool, *rest: Any, **keywords: Any) -> int:
        """Write ``buffer`` to a file, with all threads; the rest as :meth:`pread`."""
        is_background, offset = _background_and_offset("pwrite", rest, keywords)
        return self._transfer(buffer, filename, offset, is_write=True, validates=validate, is_background=is_background)

    def sync_pread(
        self, buffer: torch.Tensor, filename: File | None = None, file_offset: int = 0, *, fd: int | None = None
    ) -> int:
        """Fill ``buffer`` from a file, with all threads. ``fd`` is an open descriptor, instead of a name. Returns 1."""
        return self._transfer(buffer, _one_file(filename, fd), file_offset, is_write=False)

    def sync_pwrite(
        self, buffer: torch.Tensor, filename: File | None = None, file_offset: int = 0, *, fd: int | None = None
    ) -> int:
        """Write ``buffer`` to a file, with all threads; ``fd`` as in :meth:`sync_pread`. Returns 1."""
        return self._transfer(buffer, _one_file(filename, fd), file_offset, is_write=True)

    def async_pread(
        self, buffer: torch.Tensor, filename: File | None = None, file_offset: int = 0, *, fd: int | None = None
    ) -> int:
        """:meth:`sync_pread` in the background: ``buffer`` is whole after :meth:`wait`. Returns 0."""
        return self._transfer(buffer, _one_file(filename, fd), file_offset, is_write=False, is_background=True)

    def async_pwrite(
        self, buffer: torch.Tensor, filename: File | None = None, file_offset: int = 0, *, fd: int | None = None
    ) -> int:
        """:meth:`sync_pwrite` in the background: ``buffer`` may be changed again after :meth:`wait`. Returns 0."""
        return self._transfer(buffer, _one_file(filename, fd), file_offset, is_write=True, is_background=True)

    @untraced
    def wait(self) -> int:
        """Wait for all operations in the background.

        Returns:
            how many have finished since the last call.

        Raises:
            StorageError: one failed; where several did, ``others`` has the rest. Each failure is raised once.
        """
        self._require_owner()
        count, failures = self._finish(
            {number: operation for number, operation in self._operations.copy().items() if number not in self._in_calls}
        )
        if failures:
            failures[0].others = tuple(failures[1:])
            raise failures[0]
        return count

    # -------------------------------------------------------------------------------------------

    @untraced
    def _transfer(
        self,
        buffer: torch.Tensor,
        filename: File,
        file_offset: int,
        *,
        is_write: bool,
        validates: bool = False,
        is_split: bool = True,
        is_background: bool = False,
    ) -> int:
        """Returns 1 if it is done by all threads, otherwise 0."""
        self._require_owner()
        offset = checked_offset(file_offset)
        address = checked_address(buffer)
        operation = Operation(buffer.detach(), checked_file(filename), offset, is_write, bool(validates))
        descriptor = open_file(operation)
        number = next(self._numbers)
        self._in_calls.add(number)
        try:
            self._operations[number] = operation
            error = self._ops.submit(
                self._number, number, descriptor, address, buffer.nbytes, offset, is_write, bool(validates), is_split
            )
            if error != 0:
                del self._operations[number]
                raise operation.system_error(error, offset, 0)
            if not is_write:
                torch.autograd.graph.increment_version(buffer)
            _, failures = (0, []) if is_background else self._finish({number: operation})
        finally:
            self._in_calls.discard(number)  # after an interrupt the next wait() reports the operation
        if failures:
            raise failures[0]
        return int(is_split and not is_background)

    def _finish(self, operations: Mapping[int, Operation]) -> tuple[int, list[StorageError]]:
        """Wait for operations; return how many ended, and the failures. Each outcome goes to one waiting thread."""
        numbers = list(operations)
        while not self._ops.wait(self._number, numbers, _SIGNAL_LATENCY_MS):
            pass
        outcomes = self._ops.take(self._number, numbers)
        for number in numbers:
            self._operations.pop(number, None)
        failures = []
        for at in range(0, len(outcomes), 5):
            number, *outcome = outcomes[at : at + 5]
            failure = operations[number].failure(*outcome)
            if failure is not None:
                failures.append(failure)
        return len(outcomes) // 5, failures

    def finish_at_exit(self) -> None:
        """Wait for what is in flight until nothing has moved for ``STALLED_S``. The tensors are never freed."""
        if os.getpid() != self._owner:
            return
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._operations))
        numbers = list(self._operations)
        moved, moved_at = None, time.monotonic()
        while not self._ops.wait(self._number, numbers, _SIGNAL_LATENCY_MS):
            counters = self.counters()
            if counters != moved:
                moved, moved_at = counters, time.monotonic()
            elif time.monotonic() - moved_at > STALLED_S:
                text = "The process ends without %d operations of async_io: none has made progress for %g s."
                logger.warning(text, len(numbers), STALLED_S)
                return

    def _require_owner(self) -> None:
        if os.getpid() != self._owner:
            raise OpArgumentError(
                f"The handle belongs to process {self._owner}; this is process {os.getpid()}, forked from it, "
                "which does not have its threads.",
                "Create a handle in this process with aio_handle().",
            )


_living: weakref.WeakSet[Handle] = weakref.WeakSet()


@atexit.register
def _finish_at_exit() -> None:
    for handle in list(_living):
        handle.finish_at_exit()


def _background_and_offset(name: str, rest: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[bool, int]:
    """The arguments ``async``, which is a reserved word, and ``file_offset``."""
    names = ("async", "file_offset")
    given = dict(zip(names, rest, strict=False))
    unknown = [key for key in keywords if key not in names or key in given]
    given.update(keywords)
    if len(rest) > len(names) or unknown or "async" not in given:
        raise TypeError(f"The arguments are {name}(buffer, filename, validate, async, file_offset=0).")
    return bool(given["async"]), given.get("file_offset", 0)


def _one_file(filename: File | None, descriptor: int | None) -> File:
    """The file, given by name or by descriptor."""
    if (filename is None) == (descriptor is None):
        raise OpArgumentError("The call names no file, or two.", "Pass either filename or fd.")
    return filename if descriptor is None else descriptor  # type: ignore[return-value]


def _destroy(ops: Any, number: int, owner: int, operations: dict[int, Operation]) -> None:
    if os.getpid() == owner:
        ops.destroy(number)
        operations.clear()
