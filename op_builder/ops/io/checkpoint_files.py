"""The files of a checkpoint: what they hold, and the tensors' bytes to and from them.

::

    checkpoint.safetensors               which tensor is where, with checksums; a JSON text as a tensor of uint8
    <random>-<rank>.safetensors          the tensors of one rank, one after another

A save writes new files of the second kind, then replaces the first, which makes them the checkpoint. Then it removes
the files that the checkpoint lacks, unless another save is running, to which they may belong.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch
import xxhash
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from op_builder.errors import AccelError, DamagedTensorError, OpArgumentError, TensorNotFoundError
from op_builder.ops.io.file_pieces import BLOCK_BYTES, Handles, in_order, memory_of, read_blocks
from op_builder.ops.io.tensor_store import TensorStore
from op_builder.ops.io.tensor_store_files import StoreFiles, explained
from op_builder.ops.io.tensor_store_format import DTYPES
from op_builder.ops.io.tensor_store_memory import new_memory

CONTENTS = "checkpoint"
"""The name of the tensor that describes the checkpoint, and of its file."""
GENERATED = re.compile(r"[0-9a-f]{16}-\d{5,}\.safetensors")
"""The files of ranks; only such files are removed."""

_FORMAT = 1
_PIECE_BYTES = 8 << 20  # of one read or write
_REMEDY = (
    "Load an earlier checkpoint, or restore the file from a backup; "
    "if nothing else wrote to it, look for errors of the disk: `dmesg`."
)


@dataclass(frozen=True)
class Part:
    """A stored part of a value: a tensor, a shard of one, or a pickled object.

    Attributes:
        dtype: the tensor's; None for an object.
        sizes: its shape.
        file: the name of its file in the directory.
        begin: where it begins in the file, in bytes.
        size_bytes: its length there.
        checksums: XXH3 (64 bits) of each MiB of it, in hexadecimal.
    """

    dtype: str | None
    sizes: Sequence[int]
    file: str
    begin: int
    size_bytes: int
    checksums: Sequence[str] = ()


class RunningSave:
    """Marks a directory as in use by a save: until :meth:`end`, or this object is freed, or its process ends.

    The mark is a locked file, as writers of a store have; the next one that opens the directory removes a dead one.
    """

    def __init__(self, store: TensorStore, *, is_durable: bool) -> None:
        self._store = store
        self._files = StoreFiles(store.directory, is_durable=is_durable)
        with explained(f"Writing to {store.directory}", store.directory):
            self._mark, descriptor = self._files.new_partial()
        self._close = weakref.finalize(self, os.close, descriptor)
        self._replaced: set[str] = set()
        with contextlib.suppress(AccelError):  # it is damaged
            self._replaced = _published(store)
        self._remove_unused(set())

    def publish(self, metadata: Metadata) -> None:
        """Make the files of ``metadata`` the checkpoint, and remove those of the replaced one."""
        with explained(f"Writing to {self._store.directory}", self._store.directory):
            self._files.sync_entries()  # before a rename that may reach the disk earlier
        save_contents(self._store, metadata)
        with contextlib.suppress(OSError):  # the checkpoint is complete; the next save removes them
            self._remove_unused(self._replaced)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._mark.unlink()
        self._close()

    def _remove_unused(self, replaced: set[str]) -> None:
        """Remove ranks' files that the checkpoint lacks; only ``replaced`` ones if another save may be running."""
        # In this order: a save that has one of these files has marked the directory before, and published before it
        # ended.
        found = set(filter(GENERATED.fullmatch, os.listdir(self._store.directory)))
        if self._files.partials() != [self._mark]:
            found &= replaced
        with contextlib.suppress(AccelError):  # a damaged description may name them
            for file in found - _published(self._store):
                with contextlib.suppress(OSError):  # another process removed it
                    (self._store.directory / file).unlink()


# The contents ----------------------------------------------------------------------------------


def save_contents(store: TensorStore, metadata: Metadata) -> None:
    """Replace the description of the checkpoint by that of ``metadata``, whose storage_data are the parts."""
    shapes = {
        name: value.size
        for name, value in metadata.state_dict_metadata.items()
        if isinstance(value, TensorStorageMetadata)
    }
    parts = [[index.fqn, index.offset, vars(part)] for index, part in metadata.storage_data.items()]
    record = {"format": _FORMAT, "shapes": shapes, "parts": parts, "planner_data": metadata.planner_data}
    try:
        text = json.dumps(record).encode()
    except TypeError as error:
        raise OpArgumentError(
            f"The save planner's data cannot be stored: {error}.",
            "Return only values that JSON can represent, or None.",
        ) from None
    store.save(CONTENTS, torch.frombuffer(bytearray(text), dtype=torch.uint8))


def load_contents(store: TensorStore) -> Metadata:
    """The metadata as they were given to :func:`save_contents`; raises as :meth:`TensorStore.load`."""
    try:
        text = store.load(CONTENTS)
        record = json.loads(bytes(memory_of(text)))
        found_format = record["format"]
        if found_format == _FORMAT:
            return _decoded(record)
    except TensorNotFoundError:
        raise
    except (DamagedTensorError, ValueError, KeyError, TypeError):
        file = str(store.directory / f"{CONTENTS}.safetensors")
        raise DamagedTensorError(
            f"{file}, which describes the checkpoint, is damaged, or another program wrote it.", _REMEDY, filename=file
        ) from None
    raise DamagedTensorError(
        f"{store.directory} has a checkpoint of format {found_format}; this version loads {_FORMAT}.",
        "Load it with the version of accel-ops that saved it.",
        filename=str(store.directory),
    )


def _decoded(record: dict[str, Any]) -> Metadata:
    values: dict[str, Any] = {}
    parts = {}
    for name, offset, members in record["parts"]:
        part = parts[MetadataIndex(name, offset)] = Part(**members)
        if part.dtype is None:
            values[name] = BytesStorageMetadata()
            continue
        if name not in values:
            properties = TensorProperties(DTYPES[part.dtype])
            values[name] = TensorStorageMetadata(properties, torch.Size(record["shapes"][name]), [])
        sizes = torch.Size(part.sizes)
        values[name].chunks.append(ChunkStorageMetadata(torch.Size(offset or [0] * len(sizes)), sizes))
    planner_data = record["planner_data"]
    if isinstance(planner_data, dict):
        planner_data = {name: tuple(path) for name, path in planner_data.items()}
    return Metadata(values, planner_data, parts)


def files_of(metadata: Metadata) -> set[str]:
    """The names of the files that have the parts."""
    return {part.file for part in metadata.storage_data.values()}


def _published(store: TensorStore) -> set[str]:
    return files_of(load_contents(store)) if CONTENTS in store else set()


# Writing ---------------------------------------------------------------------------------------


@contextmanager
def new_file(path: Path, *, is_durable: bool) -> Iterator[int]:
    """A descriptor of a new file, which is removed if the block raises."""
    with explained(f"Creating {path}", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with explained(f"Writing {path}", path):
            yield descriptor
            if is_durable:
                os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)


def blocks_with_checksums(part: Part, body: torch.Tensor, done: list[Part]) -> Iterator[torch.Tensor]:
    """The blocks of a part's bytes; when all are taken, the part with its checksums is in ``done``."""
    checksums = []
    for at in range(0, body.nbytes, BLOCK_BYTES):
        block = body[at : at + BLOCK_BYTES]
        checksums.append(xxhash.xxh3_64_hexdigest(memory_of(block)))
        yield block
    done.append(replace(part, checksums=checksums))


def write_blocks(descriptor: int, blocks: Iterable[torch.Tensor]) -> None:
    """Write uint8 vectors one after another, from page-aligned memory; it is filled while the device writes."""
    handles = Handles()
    with handles.one() as first, handles.one() as second:
        memory = torch.frombuffer(new_memory(2 * _PIECE_BYTES), dtype=torch.uint8).view(2, _PIECE_BYTES)
        turns = cycle(zip((first, second), memory, strict=True))
        handle, piece = next(turns)
        filled = offset = 0
        for block in blocks:
            while block.nbytes > 0:
                count = min(block.nbytes, _PIECE_BYTES - filled)
                piece[filled : filled + count].copy_(block[:count])
                filled += count
                block = block[count:]
                if filled == _PIECE_BYTES:
                    handle.async_pwrite(piece, descriptor, offset)
                    offset += filled
                    handle, piece = next(turns)
                    handle.wait()
                    filled = 0
        handle.async_pwrite(piece[:filled], descriptor, offset)
        first.wait()
        second.wait()


# Reading ---------------------------------------------------------------------------------------


class PartRead(NamedTuple):
    """A part to read, all of it or some of its blocks.

    Attributes:
        name: of the tensor, for error messages.
        begin: where the read bytes begin in the part; a block begins there, too.
        body: a uint8 vector in host memory for them.
        deliver: called when they are verified.
    """

    name: str
    part: Part
    begin: int
    body: torch.Tensor
    deliver: Callable[[], object]


def block_range(begin: int, end: int, size_bytes: int) -> tuple[int, int]:
    """A range of a part's bytes, extended to whole blocks."""
    return begin - begin % BLOCK_BYTES, min(size_bytes, -(-end // BLOCK_BYTES) * BLOCK_BYTES)


def read_parts(path: Path, reads: Iterable[PartRead], handles: Handles) -> None:
    """Fill the bodies from one file, verify their checksums and deliver them; after an error nothing writes to them."""
    with explained(f"Opening {path}", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(pieces: list[_Piece]) -> None:
        for piece in pieces:
            _read_piece(path, descriptor, handles, *piece)

    try:
        with closing(in_order(read, _batches(path, descriptor, reads))) as batches:
            for each, at in chain.from_iterable(batches):
                if at + _PIECE_BYTES >= each.body.nbytes:
                    each.deliver()
    finally:
        os.close(descriptor)


_Piece = tuple[PartRead, int]
"""Some blocks of a read, which begin at this byte of its body."""


def _read_piece(path: Path, descriptor: int, handles: Handles, read: PartRead, at: int) -> None:
    begin, number = read.part.begin + read.begin + at, (read.begin + at) // BLOCK_BYTES
    with explained(f"Loading {read.name} from {path}", path):
        for block in read_blocks(handles, descriptor, read.body[at : at + _PIECE_BYTES], begin):
            checksum, saved = xxhash.xxh3_64_hexdigest(block), read.part.checksums[number]
            if checksum != saved:
                raise DamagedTensorError(
                    f"Tensor {read.name!r} of {path} is damaged: the checksum of bytes {begin} to "
                    f"{begin + len(block)} of the file is {checksum}, and was {saved} when they were saved.",
                    _REMEDY,
                    filename=str(path),
                )
            begin, number = begin + len(block), number + 1


def _batches(path: Path, descriptor: int, reads: Iterable[PartRead]) -> Iterator[list[_Piece]]:
    """Pieces that one thread reads."""
    file_bytes = os.fstat(descriptor).st_size
    batch: list[_Piece] = []
    batch_bytes = 0
    for read in reads:
        end = read.part.begin + read.part.size_bytes
        if end > file_bytes:
            raise DamagedTensorError(
                f"Tensor {read.name!r} of {path} is damaged: it ends at byte {end} of {file_bytes}.",
                _REMEDY,
                filename=str(path),
            )
        for at in range(0, max(1, read.body.nbytes), _PIECE_BYTES):  # one piece even of an empty tensor
            batch.append((read, at))
            batch_bytes += min(_PIECE_BYTES, read.body.nbytes - at)
            if batch_bytes >= _PIECE_BYTES:
                yield batch
                batch, batch_bytes = [], 0
    yield batch
