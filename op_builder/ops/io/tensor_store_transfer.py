"""A tensor's bytes to and from a file in pieces: one is in flight while the checksum covers another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch
import xxhash

from op_builder.ops.io import file_pieces
from op_builder.ops.io.file_pieces import (
    SMALL_BYTES,
    Handles,
    Progress,
    in_order,
    memory_of,
    read_cached_blocks,
    read_uncached,
    write_plainly,
)
from op_builder.ops.io.tensor_store_files import explained
from op_builder.ops.io.tensor_store_format import HEADER_BYTES


def write_body(descriptor: int, path: Path, body: torch.Tensor, handles: Handles, progress: Progress | None) -> str:
    """Write the uint8 vector ``body`` after a file's header; returns its checksum. ``path`` is for error messages."""
    checksum = xxhash.xxh3_64()
    if body.nbytes <= SMALL_BYTES:
        with explained(f"Saving {path}", path):
            write_plainly(descriptor, memory_of(body), HEADER_BYTES)
        if progress is not None:
            progress(body.nbytes, body.nbytes)
        return xxhash.xxh3_64_hexdigest(memory_of(body))
    with handles.one() as handle:
        for at, piece in _pieces(body):
            with explained(f"Saving {path}", path):
                handle.async_pwrite(piece, descriptor, HEADER_BYTES + at)
                checksum.update(memory_of(piece))
                handle.wait()
            if progress is not None:
                progress(at + piece.nbytes, body.nbytes)
    return checksum.hexdigest()


def read_body(descriptor: int, path: Path, body: torch.Tensor, handles: Handles, progress: Progress | None) -> str:
    """Fill ``body`` from behind the file's header; the rest as :func:`write_body`."""
    checksum = xxhash.xxh3_64()
    memory, done = memory_of(body), 0
    torch.autograd.graph.increment_version(body)  # as a handle does
    for block in read_cached_blocks(descriptor, memory, HEADER_BYTES):
        checksum.update(block)
        done += len(block)
        if progress is not None and done % file_pieces.PIECE_BYTES == 0 and done < body.nbytes:
            progress(done, body.nbytes)
    if progress is not None and done == body.nbytes:
        progress(done, done)

    def read(piece: tuple[int, torch.Tensor]) -> None:
        with explained(f"Loading {path}", path):
            read_uncached(handles, descriptor, piece[1], HEADER_BYTES + piece[0])

    left = list(_pieces(body, done))
    if len(left) == 1:  # to start a thread would take about as long
        read(left[0])
    with closing(in_order(read, left) if len(left) > 1 else (each for each in left)) as pieces:
        for at, piece in pieces:
            checksum.update(memory_of(piece))
            if progress is not None:
                progress(at + piece.nbytes, body.nbytes)
    return checksum.hexdigest()


def _pieces(body: torch.Tensor, begin: int = 0) -> Iterator[tuple[int, torch.Tensor]]:
    for at in range(begin, body.nbytes, file_pieces.PIECE_BYTES):
        yield at, body[at : at + file_pieces.PIECE_BYTES]
