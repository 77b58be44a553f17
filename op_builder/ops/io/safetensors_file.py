"""``load_safetensors``: the tensors of any safetensors file."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from op_builder.errors import DamagedTensorError, StorageError
from op_builder.ops.io import file_pieces
from op_builder.ops.io.aio_operation import opened
from op_builder.ops.io.file_pieces import Handles, Progress, in_order, map_cached, read_blocks, read_plainly
from op_builder.ops.io.safetensors_format import (
    LENGTH_BYTES,
    TensorEntry,
    check_byte_order,
    decoded_entries,
    header_bytes,
)
from op_builder.ops.io.tensor_store_files import explained
from op_builder.ops.io.tensor_store_memory import new_memory
from op_builder.system.file_kinds import MARKS_BYTES, require_no_other_format
from op_builder.system.records import RecordError

_SHARED_BYTES = 8 << 20  # smaller tensors share memory, because one read for each would be slow


def load_safetensors(
    path: str | os.PathLike[str],
    device: str | int | torch.device = "cpu",
    *,
    is_mapped: bool = False,
    progress: Progress | None = None,
) -> dict[str, torch.Tensor]:
    """Read all tensors of a safetensors file, whoever wrote it.

    The cached beginning of each 32 MiB is copied from the page cache. The op ``async_io`` reads the rest, bypassing
    the cache; if it cannot be built or loaded, plain reads do. By default the file may be changed afterwards; it may
    be replaced or removed at any time.

    Args:
        path: the file.
        device: where the tensors go.
        is_mapped: map what the page cache has, instead of copying it. The load of large tensors is faster, and takes
            no memory of its own, but until the tensors are freed, a program that writes into the file changes their
            values, and one that truncates it ends this process by a signal (SIGBUS). Changes of the tensors never
            reach the file.
        progress: called with (bytes done, bytes in all) in this thread; an exception in it ends the call.

    Returns:
        The tensors by their names, in the order of their bytes, with the file's types and shapes. In host memory,
        neighbours of at most 8 MiB in total share a block of memory, which is freed with the last of them.

    Raises:
        DamagedTensorError: it is not an intact safetensors file, or torch lacks a type.
        StorageError: the file cannot be opened or read, or was changed while it was read.
        IncompatibleOpError: this machine is big-endian.
    """
    check_byte_order()
    path = Path(path)
    device = torch.device(device)
    with _opened(path) as descriptor:
        before = os.fstat(descriptor)
        entries, data_begin = _read_entries(path, descriptor, before)
        handles = Handles()
        tensors: dict[str, torch.Tensor] = {}
        done, total = 0, entries[-1].end if entries else 0

        def read(piece: _Piece) -> None:
            if piece.begin < piece.end and not piece.run.is_filled:
                with explained(f"Loading {path}", path):
                    for _ in read_blocks(handles, descriptor, piece.run.bytes(piece.begin, piece.end), piece.begin):
                        pass

        # In order and few at a time, so that a device's tensors are not all in host memory.
        with closing(in_order(read, _pieces(entries, data_begin, descriptor if is_mapped else None))) as pieces:
            for piece in pieces:
                if piece.end == piece.run.end:
                    tensors.update((name, tensor.to(device)) for name, tensor in piece.run.tensors())
                done += piece.end - piece.begin
                if progress is not None and piece.end > piece.begin:
                    progress(done, total)
        _require_unchanged(path, before, os.fstat(descriptor))
    if progress is not None and total == 0:
        progress(0, 0)
    return tensors


class _Run:
    """Adjacent tensors of a file, its bytes from ``begin`` to ``end``, and memory for them.

    The memory begins at the same offset in a page as the bytes in the file, so that direct reads work. It is a private
    mapping of the file, if the descriptor ``mapped`` is passed and the page cache has all of the bytes.
    """

    def __init__(self, entries: list[TensorEntry], data_begin: int, mapped: int | None) -> None:
        self._entries = entries
        self._data_begin = data_begin
        self.begin, self.end = data_begin + entries[0].begin, data_begin + entries[-1].end
        self._shift = self.begin % mmap.PAGESIZE
        size_bytes = max(1, self._shift + self.end - self.begin)
        mapping = None if mapped is None else map_cached(mapped, self.begin - self._shift, size_bytes)
        self.is_filled = mapping is not None
        self._memory = mapping or new_memory(size_bytes)

    def bytes(self, begin: int, end: int) -> torch.Tensor:
        """The memory of a part of the file, as a uint8 vector."""
        return torch.frombuffer(
            self._memory, dtype=torch.uint8, count=end - begin, offset=self._shift + begin - self.begin
        )

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors with their names, in this memory unless they are not aligned there."""
        for name, dtype, shape, begin, end in self._entries:
            if begin == end:
                # view() accepts what empty() refuses: dimensions beside a 0 whose product overflows.
                yield name, torch.empty(0, dtype=dtype, device="cpu").view(shape)
                continue
            offset = self._shift + self._data_begin + begin - self.begin
            tensor = torch.frombuffer(
                self._memory, dtype=dtype, count=(end - begin) // dtype.itemsize, offset=offset
            ).view(shape)
            yield name, tensor if offset % dtype.itemsize == 0 else tensor.clone()


class _Piece(NamedTuple):
    """A part of a run's bytes."""

    run: _Run
    begin: int
    end: int


def _pieces(entries: list[TensorEntry], data_begin: int, mapped: int | None) -> Iterator[_Piece]:
    """All bytes of the file after its header; a run's memory is allocated with its first piece."""
    for group in _grouped(entries):
        run = _Run(group, data_begin, mapped)
        at = run.begin
        while True:  # one piece even of a run without bytes
            end = min(run.end, at + file_pieces.PIECE_BYTES)
            yield _Piece(run, at, end)
            if end == run.end:
                break
            at = end


def _grouped(entries: list[TensorEntry]) -> Iterator[list[TensorEntry]]:
    found: list[TensorEntry] = []
    for entry in entries:
        if found and entry.end - found[0].begin > _SHARED_BYTES:
            yield found
            found = []
        found.append(entry)
    if found:
        yield found


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    with explained(f"Opening {path}", path):
        descriptor = opened(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _require_unchanged(path: Path, before: os.stat_result, after: os.stat_result) -> None:
    if _was_written(path, before, after):
        raise StorageError(
            f"Loading {path} failed: another program changed the file meanwhile.",
            "Load it again when it is complete. A program that writes a new file and renames it disturbs no reader.",
            errno=errno.EBUSY,
            filename=str(path),
            offset=0,
            bytes_done=0,
        )


def _was_written(path: Path, before: os.stat_result, after: os.stat_result) -> bool:
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        return True
    if before.st_ctime_ns == after.st_ctime_ns:
        return False
    # A program can restore st_mtime_ns, as tar and `cp -p` do, but not st_ctime_ns. A file that keeps its content has a
    # new st_ctime_ns if it was renamed or removed, or got another link, mode or owner.
    try:
        has_its_name = os.path.samestat(os.stat(path), after)
    except OSError:
        has_its_name = False
    kept = all(getattr(before, name) == getattr(after, name) for name in ("st_nlink", "st_mode", "st_uid", "st_gid"))
    return has_its_name and kept


def _read_entries(path: Path, descriptor: int, status: os.stat_result) -> tuple[list[TensorEntry], int]:
    """The tensors in the order of their bytes, and where these begin in the file."""
    begin = b""
    try:
        with explained(f"Loading {path}", path):
            if not stat.S_ISREG(status.st_mode):
                raise RecordError("it is not a regular file")
            begin = os.pread(descriptor, MARKS_BYTES, 0)
            size = header_bytes(begin[:LENGTH_BYTES], status.st_size)
            header = bytearray(size)
            read_plainly(descriptor, memoryview(header), LENGTH_BYTES)
        data_begin = LENGTH_BYTES + size
        return decoded_entries(header, status.st_size - data_begin)[0], data_begin
    except RecordError as error:
        require_no_other_format(path, begin)
        raise DamagedTensorError(
            f"{path} is not an intact safetensors file: {error}.",
            "Copy or download the file again, or have its author write it again.",
            filename=str(path),
        ) from None
