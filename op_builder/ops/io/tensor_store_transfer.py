"""A tensor's bytes to and from a file in pieces: one is in flight while the checksum covers another."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from op_builder.ops.io import file_pieces
from op_builder.ops.io.file_pieces import Handles, Progress, memory_of, read_cached, write_plainly
from op_builder.ops.io.tensor_store_files import explained
from op_builder.ops.io.tensor_store_format import HEADER_BYTES

_BLOCK_BYTES = 1 << 20  # fits a core's cache, from which the checksum then reads it

_SMALL_BYTES = 64 << 10  # written through the page cache: preparing a direct write would take longer


@dataclass(frozen=True)
class StoreCounters:
    """Counters of a store's transfers; seconds are those of all threads together."""

    bytes_read: int = 0
    bytes_written: int = 0
    read_s: float = 0.0
    written_s: float = 0.0


class Transfers:
    """Reads and writes the bodies of files; concurrent transfers have a handle each."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._handles = Handles(settings)
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self.counters = StoreCounters()

    def transfer(self, descriptor: int, path: Path, body: torch.Tensor, progress: Progress | None, action: str) -> str:
        """Write the uint8 vector ``body`` after a file's header, or fill it from there; returns its checksum.

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
            last_read: torch.Tensor | None = None
            with self._handles.one() as handle:
                begin_piece = handle.async_pwrite if is_write else handle.async_pread
                while done < body.nbytes:
                    piece = body[done : done + file_pieces.PIECE_BYTES]
                    with explained(f"{action} {path}", path):
                        begin_piece(piece, descriptor, HEADER_BYTES + done)
                        ready = piece if is_write else last_read
                        if ready is not None:
                            checksum.update(memory_of(ready))
                        handle.wait()
                    last_read = piece
                    done += piece.nbytes
                    report(done, body.nbytes)
            if last_read is not None and not is_write:
                checksum.update(memory_of(last_read))
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
    """Fill the beginning of ``body`` as far as the page cache has it; returns how many bytes that is."""
    memory = memory_of(body)
    torch.autograd.graph.increment_version(body)  # as a handle does
    block_bytes = min(_BLOCK_BYTES, file_pieces.PIECE_BYTES)
    done = 0
    while done < len(memory):
        block = memory[done : done + block_bytes]
        count = read_cached(descriptor, block, HEADER_BYTES + done)
        checksum.update(block[:count])
        done += count
        if count < len(block):
            break
        if done % file_pieces.PIECE_BYTES == 0 or done == len(memory):
            report(done, len(memory))
    return done
