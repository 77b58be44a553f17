"""Reading and writing files in pieces: reusable handles, from the page cache as far as it has them, in threads."""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch

from op_builder.errors import AccelError, OpArgumentError, StorageError
from op_builder.messages import warn_once
from op_builder.ops.declare import load_host
from op_builder.ops.io.aio_handle import Handle, HandleSettings
from op_builder.ops.io.async_io import OP as ASYNC_IO

logger = logging.getLogger(__name__)
T = TypeVar("T")

Progress = Callable[[int, int], object]
"""Called with (bytes done, bytes in all)."""

DEFAULT_SETTINGS: Mapping[str, Any] = {"block_size": 1 << 20, "queue_depth": 32, "overlap_events": True}
PIECE_BYTES = 32 << 20
BLOCK_BYTES = 1 << 20  # fits a core's cache, from which a checksum then reads it
SMALL_BYTES = (
    64 << 10
)  # through the page cache: preparing a direct transfer would take longer, and neighbours come, too
_THREADS = 4
_PLAIN_S = 10.0  # an op that cannot be loaded is tried again after it: processes or files may have been too many


class Handles:
    """Reusable handles of ``async_io``, one per concurrent transfer; an OpArgumentError for invalid settings."""

    def __init__(self, settings: Mapping[str, Any] = DEFAULT_SETTINGS) -> None:
        unknown = [name for name in settings if name not in HandleSettings._fields]
        if unknown:
            raise OpArgumentError(
                f"A handle has no setting {unknown[0]!r}.", f"Use one of {', '.join(HandleSettings._fields)}."
            )
        HandleSettings(**settings).checked()
        self._settings = dict(settings)
        self._owner = os.getpid()
        self._idle: deque[Handle] = deque()  # its methods need no lock
        self._plain_until = 0.0  # the op could not be loaded just now; on the clock of time.monotonic()

    @contextmanager
    def one(self) -> Iterator[Handle]:
        """A handle that nothing else uses meanwhile; raises an AccelError if the op cannot be loaded here."""
        if self._owner != os.getpid():  # a fork has none of the handles' threads
            self._owner, self._idle = os.getpid(), deque()
        handle: Handle | None = None
        with suppress(IndexError):  # an error of load() must not show this one as its context
            handle = self._idle.pop()
        if handle is None:
            handle = load_host(ASYNC_IO).aio_handle(**self._settings)
        yield handle
        # Not after an exception: commands may be in flight, for which the dropped handle waits.
        self._idle.append(handle)

    def read(self, body: torch.Tensor, descriptor: int, offset: int) -> None:
        """Fill a uint8 vector from a file, past the page cache; by plain reads if the op cannot be loaded."""
        if time.monotonic() >= self._plain_until:
            try:
                with self.one() as handle:
                    handle.sync_pread(body, descriptor, offset)
                    return
            except StorageError:
                raise
            except AccelError as error:
                if "engine" in self._settings:  # this one was requested
                    raise
                self._plain_until = time.monotonic() + _PLAIN_S
                warn_once(logger, f"Files are read without async_io, perhaps slowly: {error}")
        read_plainly(descriptor, memory_of(body), offset)


def in_order(work: Callable[[T], object], items: Iterable[T]) -> Generator[T, None, None]:
    """Do ``work`` on items in several threads, and yield each when it is done, in their order; for ``closing()``.

    An item is taken when one of few before it is done. Once the iterator is closed, nothing works any more.
    """
    waiting: deque[tuple[Future[object], T]] = deque()
    pool = ThreadPoolExecutor(_THREADS, "file_pieces")

    def first() -> T:
        future, item = waiting.popleft()
        future.result()
        return item

    def submit(item: T) -> Future[object]:
        try:
            return pool.submit(work, item)
        except RuntimeError:  # the interpreter is ending, or the system refuses threads
            future: Future[object] = Future()
            future.set_result(work(item))
            return future

    try:
        for item in items:
            waiting.append((submit(item), item))
            if len(waiting) > 2 * _THREADS:
                yield first()
        while waiting:
            yield first()
    finally:
        pool.shutdown(cancel_futures=True)


def read_blocks(handles: Handles, descriptor: int, body: torch.Tensor, offset: int) -> Iterator[memoryview]:
    """Fill a uint8 vector from a file; yields its blocks in order, each when it is filled."""
    memory, done = memory_of(body), 0
    for block in read_cached_blocks(descriptor, memory, offset):
        yield block
        done += len(block)
    read_uncached(handles, descriptor, body[done:], offset + done)
    for at in range(done, len(memory), BLOCK_BYTES):
        yield memory[at : at + BLOCK_BYTES]


def read_uncached(handles: Handles, descriptor: int, body: torch.Tensor, offset: int) -> None:
    """Fill a uint8 vector from a file that the page cache does not have; by plain reads if it is small."""
    if body.nbytes > SMALL_BYTES:
        handles.read(body, descriptor, offset)
    else:
        read_plainly(descriptor, memory_of(body), offset)


def read_cached_blocks(descriptor: int, memory: memoryview, offset: int) -> Iterator[memoryview]:
    """Fill the beginning of ``memory`` with the blocks that the page cache has, and yield each of them."""
    for at in range(0, len(memory), BLOCK_BYTES):
        block = memory[at : at + BLOCK_BYTES]
        if read_cached(descriptor, block, offset + at, len(block) if at else mmap.PAGESIZE) < len(block):
            return
        yield block


def read_cached(descriptor: int, memory: memoryview, offset: int, first_bytes: int = mmap.PAGESIZE) -> int:
    """Fill the beginning of ``memory`` from a file, as far as the page cache has it.

    Args:
        first_bytes: size of the first request; more where the cache is known to have more.

    Returns:
        how many bytes were read; 0 if the system does not support this.
    """
    flag = getattr(os, "RWF_NOWAIT", None)
    done = 0
    try:
        while flag is not None and done < len(memory):
            # The kernel reads ahead as much as was missing, so requests begin small and grow.
            block = memory[done : 2 * done + first_bytes]
            count = os.preadv(descriptor, [block], offset + done, flag)
            done += count
            if count < len(block):
                break
    except OSError:  # EAGAIN at the first page that is not cached; a later read reports other errors
        pass
    return done


def map_cached(descriptor: int, offset: int, size_bytes: int) -> mmap.mmap | None:
    """A private, writable mapping of a part of a file that begins at a page, if the page cache seems to have it.

    One byte of each MiB is tried. Pages that are missing nevertheless are read at their first use.
    """
    byte = memoryview(bytearray(1))
    if not all(read_cached(descriptor, byte, at) for at in range(offset, offset + size_bytes, 1 << 20)):
        return None
    with suppress(OSError):  # a file system without mappings
        return mmap.mmap(
            descriptor, size_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=offset
        )
    return None


def read_plainly(descriptor: int, memory: memoryview, offset: int) -> None:
    """Fill ``memory`` from a file, without the op; a StorageError if the file is too short, or an OSError."""
    done = 0
    while done < len(memory):
        count = os.preadv(descriptor, [memory[done:]], offset + done)
        if count == 0:
            end, bytes_done = offset + done, done
            message = f"the file ends at byte {end}, and the request ends at byte {offset + len(memory)}."
            raise StorageError(message, errno=errno.EIO, filename=descriptor, offset=end, bytes_done=bytes_done)
        done += count


def write_plainly(descriptor: int, memory: memoryview | bytes, offset: int) -> None:
    """Write ``memory`` to a file, without the op; raises an OSError."""
    done = 0
    while done < len(memory):
        done += os.pwrite(descriptor, memory[done:], offset + done)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, not copied; valid as long as the tensor lives."""
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")
