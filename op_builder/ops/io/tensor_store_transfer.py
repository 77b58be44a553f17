"""A tensor's bytes to and from a file in pieces: one is in flight while the checksum covers another."""

from __future__ import annotations

import ctypes
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
from op_builder.ops.io.aio_handle import Handle, check_handle_arguments
from op_builder.ops.io.tensor_store_files import explained
from op_builder.ops.io.tensor_store_format import HEADER_BYTES

Progress = Callable[[int, int], object]
"""Called with (bytes done, bytes in all)."""

DEFAULT_SETTINGS: Mapping[str, Any] = {"block_size": 1 << 20, "queue_depth": 32, "overlap_events": True}

_PIECE_BYTES = 32 << 20


@dataclass(frozen=True)
class StoreCounters:
    """Counters of a store's transfers.

    Attributes:
        read_s, written_s: seconds that this took, in all threads together.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    read_s: float = 0.0
    written_s: float = 0.0


class Transfers:
    """Reads and writes the bodies of files; concurrent transfers have a handle each.

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

    def transfer(self, descriptor: int, path: Path, body: torch.Tensor, progress: Progress | None, action: str) -> str:
        """Write the uint8 vector ``body`` behind a file's header, or fill it from there.

        Args:
            path: the file's name in error messages.
            action: ``Saving`` or ``Loading``.

        Returns:
            the body's checksum.
        """
        is_write = action == "Saving"
        checksum = xxhash.xxh3_64()
        started_s = time.perf_counter()
        arrived: torch.Tensor | None = None
        with self._handle() as handle:
            begin_piece = handle.async_pwrite if is_write else handle.async_pread
            for begin in range(0, body.nbytes, _PIECE_BYTES):
                piece = body[begin : begin + _PIECE_BYTES]
                with explained(f"{action} {path}", path):
                    begin_piece(piece, descriptor, HEADER_BYTES + begin)
                    known = piece if is_write else arrived
                    if known is not None:
                        checksum.update(_memory(known))
                    handle.wait()
                arrived = piece
                if progress is not None:
                    progress(begin + piece.nbytes, body.nbytes)
        if arrived is not None and not is_write:
            checksum.update(_memory(arrived))
        if body.nbytes == 0 and progress is not None:
            progress(0, 0)
        self._count(is_write, body.nbytes, time.perf_counter() - started_s)
        return checksum.hexdigest()

    @contextmanager
    def _handle(self) -> Iterator[Handle]:
        if self._owner != os.getpid():  # a fork has none of the threads, and the lock may be held
            self._lock, self._idle, self._owner = threading.Lock(), [], os.getpid()
        with self._lock:
            handle = self._idle.pop() if self._idle else None
        yield (handle := handle or AsyncIOBuilder().load().aio_handle(**self._settings))
        # Not after an exception, when something may be in flight: the handle's end waits for it.
        with self._lock:
            self._idle.append(handle)

    def _count(self, is_write: bool, size_bytes: int, seconds: float) -> None:
        with self._lock:
            c = self.counters
            if is_write:
                added = StoreCounters(c.bytes_read, c.bytes_written + size_bytes, c.read_s, c.written_s + seconds)
            else:
                added = StoreCounters(c.bytes_read + size_bytes, c.bytes_written, c.read_s + seconds, c.written_s)
            self.counters = added


def _memory(piece: torch.Tensor) -> Any:
    """The bytes of a CPU tensor, not copied; valid as long as the tensor lives."""
    return (ctypes.c_char * piece.nbytes).from_address(piece.data_ptr())
