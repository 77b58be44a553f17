"""A tensor's bytes to and from a file in pieces: one is in flight while the checksum takes in another."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import xxhash

from op_builder.ops.io.aio_handle import Handle, check_handle_arguments
from op_builder.ops.io.tensor_store_files import explained
from op_builder.ops.io.tensor_store_format import HEADER_BYTES

Progress = Callable[[int, int], object]
"""Called with (bytes done, bytes in all)."""

SETTINGS: Mapping[str, Any] = {"block_size": 1 << 20, "queue_depth": 32, "overlap_events": True}
"""Of the handles, where none were given."""

_PIECE_BYTES = 32 << 20


@dataclass(frozen=True)
class StoreCounters:
    """What a store has transferred so far.

    Attributes:
        read_s, written_s: seconds in which that went on, in all threads together.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    read_s: float = 0.0
    written_s: float = 0.0


@dataclass(frozen=True)
class BodyFile:
    """An open file of a tensor; the path is for what is said of it."""

    descriptor: int
    path: Path


class Transfers:
    """Reads and writes the bodies of files; each transfer at a time has a handle of its own.

    Args:
        settings: of the handles.

    Raises:
        OpArgumentError: a handle does not take them.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        check_handle_arguments(settings)
        self._settings = dict(settings)
        self._lock = threading.Lock()
        self._idle: list[Handle] = []
        self._owner = os.getpid()
        self.counters = StoreCounters()

    def write(self, file: BodyFile, body: torch.Tensor, progress: Progress | None) -> str:
        """Write the uint8 vector ``body`` behind the header, and return its checksum."""
        return self._transfer(file, body, progress, is_write=True)

    def read(self, file: BodyFile, body: torch.Tensor, progress: Progress | None) -> str:
        """Fill the uint8 vector ``body`` from behind the header, and return its checksum."""
        return self._transfer(file, body, progress, is_write=False)

    def _transfer(self, file: BodyFile, body: torch.Tensor, progress: Progress | None, *, is_write: bool) -> str:
        checksum = xxhash.xxh3_64()
        if body.nbytes == 0:
            _tell(progress, 0, 0)
            return checksum.hexdigest()
        started = time.perf_counter()
        arrived: torch.Tensor | None = None
        with self._handle() as handle:
            begin_piece = handle.async_pwrite if is_write else handle.async_pread
            for begin, piece in _pieces(body):
                with explained(f"{'Saving' if is_write else 'Loading'} {file.path}", file.path):
                    begin_piece(piece, file.descriptor, HEADER_BYTES + begin)
                    known = piece if is_write else arrived
                    if known is not None:
                        checksum.update(_memory(known))
                    handle.wait()
                arrived = piece
                _tell(progress, begin + piece.nbytes, body.nbytes)
        if arrived is not None and not is_write:
            checksum.update(_memory(arrived))
        seconds = time.perf_counter() - started
        if is_write:
            self._count(bytes_written=body.nbytes, written_s=seconds)
        else:
            self._count(bytes_read=body.nbytes, read_s=seconds)
        return checksum.hexdigest()

    @contextmanager
    def _handle(self) -> Iterator[Handle]:
        if self._owner != os.getpid():  # a fork has none of the threads, and nobody to unlock the lock
            self._lock, self._idle, self._owner = threading.Lock(), [], os.getpid()
        with self._lock:
            handle = self._idle.pop() if self._idle else None
        handle = handle or _new_handle(self._settings)
        yield handle
        # Not after an exception: something may be in flight. The handle's end waits for it.
        with self._lock:
            self._idle.append(handle)

    def _count(self, **more: float) -> None:
        with self._lock:
            added = {name: getattr(self.counters, name) + value for name, value in more.items()}
            self.counters = replace(self.counters, **added)


def _new_handle(settings: Mapping[str, Any]) -> Handle:
    from op_builder.cpu import AsyncIOBuilder

    handle: Handle = AsyncIOBuilder().load().aio_handle(**settings)
    return handle


def _pieces(body: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    return ((begin, body[begin : begin + _PIECE_BYTES]) for begin in range(0, body.nbytes, _PIECE_BYTES))


def _memory(piece: torch.Tensor) -> Any:
    """The bytes of a CPU tensor, not copied; for as long as the tensor lives."""
    return (ctypes.c_char * piece.nbytes).from_address(piece.data_ptr())


def _tell(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)
