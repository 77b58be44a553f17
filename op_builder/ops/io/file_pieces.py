"""Reading and writing files in pieces: handles that are used again, what the page cache has, a store's transfers."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from op_builder.cpu import AsyncIOBuilder
from op_builder.errors import OpArgumentError, StorageError
from op_builder.ops.io.aio_handle import Handle, HandleSettings
from op_builder.ops.io.tensor_store_files import explained
from op_builder.ops.io.tensor_store_format import HEADER_BYTES

Progress = Callable[[int, int], object]
"""Called with (bytes done, bytes in all)."""

DEFAULT_SETTINGS: Mapping[str, Any] = {"block_size": 1 << 20, "queue_depth": 32, "overlap_events": True}
PIECE_BYTES = 32 << 20
_BLOCK_BYTES = 1 << 20  # fits a core's cache, from which the checksum then reads it
_SMALL_BYTES = 64 << 10  # written through the page cache: preparing a direct write would take longer


class Handles:
    """Handles of ``async_io`` with these settings, or an OpArgumentError; concurrent transfers have one each."""

    def __init__(self, settings: Mapping[str, Any] = DEFAULT_SETTINGS) -> None:
        unknown = [name for name in settings if name not in HandleSettings._fields]
        if unknown:
            raise OpArgumentError(
                f"A handle has no setting {unknown[0]!r}.", f"It has {', '.join(HandleSettings._fields)}."
            )
        HandleSettings(**settings).checked()
        self._settings = dict(settings)
        self._reset()

    @contextmanager
    def one(self) -> Iterator[Handle]:
        """A handle that nothing else uses meanwhile; raises an AccelError if the op cannot be loaded here."""
        if self._owner != os.getpid():  # a fork has none of the threads, and the lock may be held
            self._reset()
        with self._lock:
            handle = self._idle.pop() if self._idle else None
        yield (handle := handle or AsyncIOBuilder().load().aio_handle(**self._settings))
        # Not after an exception, when something may be in flight: the handle's end waits for it.
        with self._lock:
            self._idle.append(handle)

    def _reset(self) -> None:
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._idle: list[Handle] = []


def read_cached(descriptor: int, memory: memoryview, offset: int) -> int:
    """Fill the beginning of ``memory`` from a file, as far as the page cache has it.

    Returns:
        how many bytes that were; 0 where the system does not support the question.
    """
    flag = getattr(os, "RWF_NOWAIT", None)
    done = 0
    try:
        while flag is not None and done < len(memory):
            # The kernel reads ahead as much as was missing, so ask for little where little is known.
            block = memory[done : 2 * done + mmap.PAGESIZE]
            count = os.preadv(descriptor, [block], offset + done, flag)
            done += count
            if count < len(block):
                break
    except OSError:  # EAGAIN at the first page that is not in the cache; what is wrong with the file, a read reports
        pass
    return done


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


@dataclass(frozen=True)
class StoreCounters:
    """Counters of a store's transfers; seconds are those of all threads together."""

    bytes_read: int = 0
    bytes_written: int = 0
    read_s: float = 0.0
    written_s: float = 0.0


class Transfers:
    """Reads and writes the bodies of a store's files; concurrent transfers have a handle each.

    One piece is in flight while the checksum covers another.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._handles = Handles(settings)
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self.counters = StoreCounters()

    def transfer(self, descriptor: int, path: Path, body: torch.Tensor, progress: Progress | None, action: str) -> str:
        """Write the uint8 vector ``body`` behind a file's header, or fill it from there; returns its checksum.

        ``action`` is ``Saving`` or ``Loading``; ``path`` is the file's name in error messages.
        """
        is_write = action == "Saving"
        checksum = xxhash.xxh3_64()
        started_s = time.perf_counter()
        report = progress or (lambda _done, _total: None)
        done = 0 if is_write else _read_cached(descriptor, body, checksum, report)
        if is_write and body.nbytes <= _SMALL_BYTES:
            memory = memory_of(body)
            with explained(f"{action} {path}", path):
                write_plainly(descriptor, memory, HEADER_BYTES)
            checksum.update(memory)
            report(body.nbytes, body.nbytes)
        elif done < body.nbytes:
            arrived: torch.Tensor | None = None
            with self._handles.one() as handle:
                begin_piece = handle.async_pwrite if is_write else handle.async_pread
                while done < body.nbytes:
                    piece = body[done : done + PIECE_BYTES]
                    with explained(f"{action} {path}", path):
                        begin_piece(piece, descriptor, HEADER_BYTES + done)
                        known = piece if is_write else arrived
                        if known is not None:
                            checksum.update(memory_of(known))
                        handle.wait()
                    arrived = piece
                    done += piece.nbytes
                    report(done, body.nbytes)
            if arrived is not None and not is_write:
                checksum.update(memory_of(arrived))
        elif body.nbytes == 0:
            report(0, 0)
        self._count(is_write, body.nbytes, time.perf_counter() - started_s)
        return checksum.hexdigest()

    def _count(self, is_write: bool, size_bytes: int, seconds: float) -> None:
        if self._owner != os.getpid():  # a fork has none of the threads, and the lock may be held
            self._lock, self._owner = threading.Lock(), os.getpid()
        with self._lock:
            c = self.counters
            if is_write:
                added = StoreCounters(c.bytes_read, c.bytes_written + size_bytes, c.read_s, c.written_s + seconds)
            else:
                added = StoreCounters(c.bytes_read + size_bytes, c.bytes_written, c.read_s + seconds, c.written_s)
            self.counters = added


def _read_cached(descriptor: int, body: torch.Tensor, checksum: Any, report: Progress) -> int:
    """Fill the beginning of ``body`` as far as the page cache has it; returns how many bytes that are."""
    memory = memory_of(body)
    torch.autograd.graph.increment_version(body)  # as a handle does
    block_bytes = min(_BLOCK_BYTES, PIECE_BYTES)
    done = 0
    while done < len(memory):
        block = memory[done : done + block_bytes]
        count = read_cached(descriptor, block, HEADER_BYTES + done)
        checksum.update(block[:count])
        done += count
        if count < len(block):
            break
        if done % PIECE_BYTES == 0 or done == len(memory):
            report(done, len(memory))
    return done
