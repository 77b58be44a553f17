"""The handle through which tensors go to and from files."""

from __future__ import annotations

import itertools
import operator
import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple, SupportsIndex

import torch

from op_builder.errors import OpArgumentError, StorageError
from op_builder.ops.arguments import untraced
from op_builder.ops.io.aio_operation import (
    File,
    Operation,
    checked_address,
    checked_file,
    checked_offset,
    open_file,
)
from op_builder.ops.io.locked_memory import LockedMemory, LockedTensors
from op_builder.system import storage_engines

_WRITES, _VALIDATES, _IS_SPLIT, _COUNTS = 1, 2, 4, 8  # as csrc/bindings/async_io.cpp has them
_ALL = 0
_SLICE_MS = 200  # how long a wait lasts until Python may act on a signal

_Ended = dict[int, StorageError | None]
"""Operations by number, and their failures."""


class HandleSettings(NamedTuple):
    """The numbers of a handle; :meth:`AsyncIOModule.aio_handle` says what they mean."""

    block_size: int = 1 << 20
    queue_depth: int = 128
    single_submit: bool = False
    overlap_events: bool = False
    intra_op_parallelism: int = 1

    def check(self) -> None:
        """Raise an OpArgumentError for a number that is out of range."""
        limits = {"block_size": 1 << 62, "queue_depth": 1 << 15, "intra_op_parallelism": 1 << 10}
        for name, most in limits.items():
            value = getattr(self, name)
            is_number = isinstance(value, SupportsIndex) and not isinstance(value, bool)
            if not is_number or not 1 <= operator.index(value) <= most:
                raise OpArgumentError(f"{name} is {value!r}.", f"Pass an int of 1 to {most}.")

    def positional(self) -> tuple[int, int, bool, bool, int]:
        """The arguments of the native op, behind the engine."""
        block_size, queue_depth, threads = map(
            operator.index, (self.block_size, self.queue_depth, self.intra_op_parallelism)
        )
        return block_size, queue_depth, bool(self.single_submit), bool(self.overlap_events), threads


def check_handle_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse what is not of :meth:`AsyncIOModule.aio_handle`, by name, before there is a handle.

    Raises:
        OpArgumentError: a name is unknown, a number out of range, or there is no engine of that name.
    """
    unknown = [name for name in arguments if name not in (*HandleSettings._fields, "engine")]
    if unknown:
        raise OpArgumentError(
            f"A handle has no setting {unknown[0]!r}.", f"It has {', '.join(HandleSettings._fields)} and engine."
        )
    storage_engines.checked_engine(arguments.get("engine"))
    HandleSettings(**{name: value for name, value in arguments.items() if name != "engine"}).check()


class HandleCounters(NamedTuple):
    """What a handle's threads have done so far.

    Attributes:
        commands: reads and writes that were begun.
        submissions: calls that handed commands to the engine.
        overlapped: of those, calls made while commands of an earlier one were in flight.
        most_in_flight: most commands of one thread at a time.
        retries: commands begun again after a short result or a transient error.
        direct_bytes: bytes that went past the page cache.
        cached_bytes: bytes that went through it.
        bounced_bytes: of the direct bytes, those that took the way through an aligned buffer.
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
    """Reads and writes of whole tensors, at once or in the background.

    Tensors are contiguous CPU tensors of any type, size and address; files may be longer than the
    tensor. Offsets are in bytes. A finished write is seen by every reader; to survive a power cut it
    needs ``os.fsync``. A file is made where there is none and never made shorter. One handle may be
    used by several threads; of operations in flight no two may touch the same bytes, unless both read.

    While an operation waits, Python's other threads run. Signals, as of Ctrl-C, interrupt a wait; what
    is in flight goes on, and the next :meth:`wait` waits for it and tells what failed, also of calls that
    were not in the background. After a fork the child cannot use the handle.
    """

    def __init__(self, ops: Any, number: int, engine: str, settings: HandleSettings, memory: LockedMemory) -> None:
        super().__init__(memory)
        self._ops = ops
        self._number = number
        self._engine = engine
        self._settings = settings
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        self._running: dict[int, Operation] = {}
        # By number what is known of each operation that an exception took from its caller, until wait() has it.
        self._abandoned: dict[int, _Ended] = {}
        self._ended: _Ended = {}  # in the background, and no wait() has told it
        self._taken: set[int] = set()  # known here to have ended, and not yet acknowledged to the native op
        self._lock = threading.RLock()  # a signal's handler may call what its thread is in the midst of
        # Waits for what is in flight; the tensors are kept until then.
        weakref.finalize(self, _destroy, ops, number, self._owner, self._running)

    # What it is --------------------------------------------------------------------------------

    @property
    def engine(self) -> str:
        """The engine in use: ``io_uring``, ``libaio`` or ``threads``."""
        return self._engine

    def get_block_size(self) -> int:
        """Most bytes of one command to the system."""
        return self._settings.block_size

    def get_queue_depth(self) -> int:
        """Most commands in flight, of each thread."""
        return self._settings.queue_depth

    def get_single_submit(self) -> bool:
        """Whether each command has a system call of its own."""
        return bool(self._settings.single_submit)

    def get_overlap_events(self) -> bool:
        """Whether new commands begin as soon as one is complete."""
        return bool(self._settings.overlap_events)

    def get_intra_op_parallelism(self) -> int:
        """Threads that share one request."""
        return self._settings.intra_op_parallelism

    def get_alignment(self) -> int:
        """Bytes that sizes and offsets are best multiples of: a page for each thread. Any others work, too."""
        return os.sysconf("SC_PAGESIZE") * self._settings.intra_op_parallelism

    def counters(self) -> HandleCounters:
        """What was done so far."""
        return HandleCounters(*self._ops.counters(self._number))

    # One thread, at once -----------------------------------------------------------------------

    def read(self, buffer: torch.Tensor, filename: File, validate: bool, file_offset: int = 0) -> int:
        """Fill ``buffer`` from a file, by one thread. Returns 0.

        Args:
            validate: read the file once more, from the device, and compare.

        Raises:
            OpArgumentError: an argument does not fit; nothing was touched.
            StorageError: the file cannot be read, is too short, or does not compare.
        """
        self._run(buffer, filename, file_offset, _VALIDATES if validate else 0)
        return 0

    def write(self, buffer: torch.Tensor, filename: File, validate: bool, file_offset: int = 0) -> int:
        """Write ``buffer`` to a file, by one thread. Returns 0; raises as :meth:`read`."""
        self._run(buffer, filename, file_offset, _WRITES | (_VALIDATES if validate else 0))
        return 0

    # All threads, at once or in the background -------------------------------------------------

    def pread(self, buffer: torch.Tensor, filename: File, validate: bool, *rest: Any, **keywords: Any) -> int:
        """Fill ``buffer`` from a file, by all threads.

        The whole signature is ``pread(buffer, filename, validate, async, file_offset=0)``; ``async`` is a
        reserved word, so by name it goes through ``**{"async": True}``.

        Returns:
            1 when it is done, 0 where it goes on in the background until :meth:`wait`.

        Raises:
            OpArgumentError, StorageError: as :meth:`read`. In the background, what fails later is raised by
                :meth:`wait`.
        """
        return self._split("pread", buffer, filename, _VALIDATES if validate else 0, rest, keywords)

    def pwrite(self, buffer: torch.Tensor, filename: File, validate: bool, *rest: Any, **keywords: Any) -> int:
        """Write ``buffer`` to a file, by all threads; the rest as :meth:`pread`."""
        return self._split("pwrite", buffer, filename, _WRITES | (_VALIDATES if validate else 0), rest, keywords)

    def sync_pread(self, buffer: torch.Tensor, filename: File, file_offset: int = 0) -> int:
        """Fill ``buffer`` from a file, by all threads. Returns 1."""
        self._run(buffer, filename, file_offset, _IS_SPLIT)
        return 1

    def sync_pwrite(self, buffer: torch.Tensor, filename: File, file_offset: int = 0) -> int:
        """Write ``buffer`` to a file, by all threads. Returns 1."""
        self._run(buffer, filename, file_offset, _IS_SPLIT | _WRITES)
        return 1

    def async_pread(self, buffer: torch.Tensor, filename: File, file_offset: int = 0) -> int:
        """Begin to fill ``buffer`` from a file; it is whole after :meth:`wait`. Returns 0."""
        self._begin(buffer, filename, file_offset, _IS_SPLIT | _COUNTS)
        return 0

    def async_pwrite(self, buffer: torch.Tensor, filename: File, file_offset: int = 0) -> int:
        """Begin to write ``buffer`` to a file; it may be changed again after :meth:`wait`. Returns 0."""
        self._begin(buffer, filename, file_offset, _IS_SPLIT | _COUNTS | _WRITES)
        return 0

    @untraced
    def wait(self) -> int:
        """Wait for all operations in the background.

        Returns:
            how many have finished since the last call.

        Raises:
            StorageError: one failed; where several did, ``others`` has the rest. None of them is told again.
        """
        self._require_owner()
        self._adopt_abandoned()
        self._collect(_ALL, self._ended)
        told: _Ended = {}
        try:
            with self._lock:
                for number in sorted(self._ended):
                    if number in self._ended:  # else a signal's handler has told it in the midst of this
                        told[number] = self._ended[number]
                        del self._ended[number]
        except BaseException:
            self._ended.update(told)
            raise
        failures = [failure for failure in told.values() if failure is not None]
        if failures:
            failures[0].others = tuple(failures[1:])
            raise failures[0]
        return len(told)

    # -------------------------------------------------------------------------------------------

    def _split(
        self, name: str, buffer: torch.Tensor, filename: File, flags: int, rest: tuple[Any, ...], keywords: Any
    ) -> int:
        names = ("async", "file_offset")
        given = dict(zip(names, rest, strict=False))
        unknown = [key for key in keywords if key not in names or key in given]
        given.update(keywords)
        if len(rest) > len(names) or unknown or "async" not in given:
            raise TypeError(f"The arguments are {name}(buffer, filename, validate, async, file_offset=0).")
        offset = given.get("file_offset", 0)
        if given["async"]:
            self._begin(buffer, filename, offset, flags | _IS_SPLIT | _COUNTS)
            return 0
        self._run(buffer, filename, offset, flags | _IS_SPLIT)
        return 1

    @untraced
    def _run(self, buffer: torch.Tensor, filename: File, file_offset: int, flags: int) -> None:
        number = next(self._numbers)
        ended: _Ended = {}
        try:
            self._submit(number, buffer, filename, file_offset, flags)
            self._collect(number, ended)
        except BaseException:  # Ctrl-C: it goes on, and the next wait() waits for it
            self._abandoned[number] = ended  # at once: from here on a second signal may come
            self._adopt_abandoned()
            raise
        failure = ended[number]
        if failure is not None:
            raise failure

    @untraced
    def _begin(self, buffer: torch.Tensor, filename: File, file_offset: int, flags: int) -> None:
        number = next(self._numbers)
        try:
            self._submit(number, buffer, filename, file_offset, flags)
        except BaseException:
            self._abandoned[number] = {}
            self._adopt_abandoned()
            raise

    def _submit(self, number: int, buffer: torch.Tensor, filename: File, file_offset: int, flags: int) -> None:
        self._require_owner()
        offset = checked_offset(file_offset)
        address = checked_address(buffer)
        is_write, validates = bool(flags & _WRITES), bool(flags & _VALIDATES)
        file = checked_file(filename)
        running = Operation(buffer.detach(), buffer.nbytes, file, offset, is_write, validates)
        descriptor = open_file(running)
        # Before the call: whatever a signal interrupts, memory in use is kept, and an end told is known here.
        self._running[number] = running
        error = self._ops.submit(self._number, number, descriptor, address, running.size_bytes, offset, flags)
        if error != 0:
            del self._running[number]
            raise running.system_error(error, offset, 0)
        if not is_write:
            torch.autograd.graph.increment_version(buffer)

    def _adopt_abandoned(self) -> None:
        """Leave operations that lost their caller, and may be in flight, to the next :meth:`wait`."""
        for number, ended in list(self._abandoned.items()):
            self._ended.update(ended)
            ended.clear()
            if number in self._running and not self._ops.adopt(self._number, number):
                self._running.pop(number, None)  # it was never begun
            self._abandoned.pop(number, None)

    def _collect(self, number: int, ended: _Ended) -> None:
        """Wait for one operation or for all that count, and add how they ended to ``ended``.

        What has ended stays with the native op until a later call acknowledges it: an exception anywhere in
        here loses nothing.
        """
        is_left = True
        while is_left:
            with self._lock:
                taken = list(self._taken)
            is_left, *told = self._ops.wait(self._number, number, _SLICE_MS, taken)
            with self._lock:
                self._taken.difference_update(taken)
                for at in range(0, len(told), 5):
                    operation, *outcome = told[at : at + 5]
                    running = self._running.get(operation)
                    failure = None if running is None else running.failure(*outcome)
                    if operation in self._running:  # else another thread, or a signal's handler, was faster
                        ended[operation] = failure
                        self._running.pop(operation, None)
                    self._taken.add(operation)

    def _require_owner(self) -> None:
        if os.getpid() != self._owner:
            raise OpArgumentError(
                f"The handle belongs to process {self._owner}; this is process {os.getpid()}, forked from it, "
                "which has none of its threads.",
                "Make a handle in this process with aio_handle().",
            )


def _destroy(ops: Any, number: int, owner: int, running: dict[int, Operation]) -> None:
    if os.getpid() == owner:
        ops.destroy(number)
        running.clear()
