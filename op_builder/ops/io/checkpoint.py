"""``CheckpointWriter`` and ``CheckpointReader``: storage for ``torch.distributed.checkpoint``."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from op_builder.errors import AccelError, OpArgumentError, StorageError
from op_builder.ops.arguments import bytes_of, require_memory
from op_builder.ops.io import checkpoint_files as files
from op_builder.ops.io.checkpoint_files import Part, PartRead
from op_builder.ops.io.file_pieces import Handles, memory_of
from op_builder.ops.io.safetensors_format import LENGTH_BYTES, METADATA, encoded
from op_builder.ops.io.tensor_store import TensorStore
from op_builder.ops.io.tensor_store_format import DTYPES, encoded_entry
from op_builder.ops.io.tensor_store_memory import body_to_write, is_filled_in_place

_PAGE_BYTES = 4096
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+:/")  # pathlib drops one of its two slashes


class _Call(threading.local):
    """What one save or load needs. Each runs in one thread, and those of several threads may share a storage."""

    directory: Path | None = None
    running: files.RunningSave | None = None
    parts: Mapping[MetadataIndex, Part] = MappingProxyType({})
    error: AccelError | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()  # a save in another process has begun nothing


class _InDirectory:
    """What both storages do with their path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._call = _Call()
        self.reset(path)

    @property
    def _directory(self) -> Path:
        return self._call.directory or self._default

    @property
    def checkpoint_id(self) -> Path:
        """The directory."""
        return self._directory

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is the path of a directory, and not an address."""
        return os.fspath(checkpoint_id) != "" and not _ADDRESS.match(os.fspath(checkpoint_id))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Use another directory, if one is passed."""
        if checkpoint_id is None:
            return
        if not self.validate_checkpoint_id(checkpoint_id):
            raise OpArgumentError(
                f"{os.fspath(checkpoint_id)!r} is not the path of a directory.",
                "Pass the path of a directory in a mounted file system.",
            )
        self._default = self._call.directory = Path(checkpoint_id).absolute()


class CheckpointWriter(_InDirectory, StorageWriter):
    """Saves a checkpoint: ``dcp.save(state, storage_writer=CheckpointWriter(path))``, or ``dcp.async_save``.

    Each rank writes one safetensors file, past the page cache, with a checksum (XXH3) of each MiB of a tensor. The
    coordinator then publishes all files by one rename, and removes those of the checkpoint that they replace.
    Errors reach all ranks in torch's ``CheckpointException``, whose ``failures`` have them by rank. docs/checkpoints.md
    has the guarantees.

    Args:
        path: the directory; created if it is missing.
        overwrite: whether to replace a checkpoint in it; otherwise that is an error, before anything is written.
        is_durable: whether a finished checkpoint outlives a power cut (``fsync``).

    Raises:
        OpArgumentError: the path is empty or an address, a value cannot be stored, or there is a checkpoint and
            ``overwrite`` is False.
        StorageError: the directory cannot be written or the disk is full; it has the earlier checkpoint or, after an
            error of the last ``fsync``, the new one, whole.
        IncompatibleOpError: this machine is big-endian, or the op ``async_io`` cannot be loaded.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = True, is_durable: bool = True) -> None:
        super().__init__(path)
        self._overwrite = overwrite
        self._is_durable = is_durable
        self._rank = 0

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Take the rank; refuse a save without collectives, which would have no coordinator to publish it."""
        if not kwargs.get("use_collectives", True):
            raise OpArgumentError("CheckpointWriter needs use_collectives=True.", "Omit use_collectives.")
        self._rank = kwargs.get("rank", 0)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Create the directory."""
        self._store()
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Check that a checkpoint may be replaced, and remove the files of killed saves."""
        self._end()  # of a save that another rank's error ended
        store = self._store()
        if not self._overwrite and files.CONTENTS in store:
            raise OpArgumentError(
                f"{self._directory} has a checkpoint, and overwrite is False.",
                "Choose another directory, or pass overwrite=True.",
            )
        self._call.running = files.RunningSave(store, is_durable=self._is_durable)
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file."""
        written: list[Part] = []
        items = sorted(plan.items, key=_order)
        if items:
            objects = {item.index: _pickled(item, planner) for item in items if item.tensor_data is None}
            # Named here: a planner that caches its plans would repeat a name that is in the plan.
            file = f"{secrets.token_hex(8)}-{self._rank:05}.safetensors"
            parts, header = _layout(file, items, objects)

            def blocks() -> Iterator[torch.Tensor]:
                yield torch.frombuffer(bytearray(header), dtype=torch.uint8)
                for item, part in zip(items, parts, strict=True):
                    is_object = item.index in objects
                    body = _body(item, part, objects[item.index] if is_object else planner.resolve_data(item))
                    yield from files.blocks_with_checksums(part, body, written)

            try:
                with files.new_file(self._directory / file, is_durable=self._is_durable) as descriptor:
                    files.write_blocks(descriptor, blocks())
            except BaseException:
                self._end()
                raise
        return _future([WriteResult(i.index, p.size_bytes, p) for i, p in zip(items, written, strict=True)])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publish the files of all ranks as the checkpoint, and remove others."""
        assert self._call.running is not None
        metadata.storage_data = {one.index: one.storage_data for rank in results for one in rank}
        try:
            for file in files.files_of(metadata):
                if not (self._directory / file).exists():
                    raise _failure(
                        self._directory / file,
                        "is missing before the checkpoint is complete; the ranks do not share the directory, or "
                        "another program removed the file",
                        "Save to a file system that all ranks share.",
                    )
            self._call.running.publish(metadata)
        finally:
            self._end()

    def _end(self) -> None:
        if self._call.running is not None:
            self._call.running.end()
            self._call.running = None

    def _store(self) -> TensorStore:
        return TensorStore(self._directory, is_durable=self._is_durable)


class CheckpointReader(_InDirectory, StorageReader):
    """Loads a checkpoint of :class:`CheckpointWriter`: ``dcp.load(state, storage_reader=CheckpointReader(path))``.

    Ranks may be more or fewer than at the save. Each reads the blocks that its shards need, from the page cache as far
    as it has them, and verifies their checksums. Non-tensor values are pickles, as in every checkpoint of
    ``torch.distributed.checkpoint``: load only files that you trust. Errors reach all ranks as in the writer.

    Args:
        path: the directory.

    Raises:
        StorageError: the directory has no such checkpoint, a file is missing or cannot be read.
        DamagedTensorError: a file is not what was saved; tensors may have been changed already.
    """

    def read_metadata(self) -> Metadata:
        """The description of the checkpoint; an empty one, if :meth:`set_up_storage_reader` will raise an error."""
        # torch would log the error, look for another file and raise an AssertionError.
        self._call.error = None
        try:
            self._call.error = _unreadable(self._directory)
            if self._call.error is None:
                return files.load_contents(TensorStore(self._directory))
        except AccelError as error:
            self._call.error = error
        return Metadata({})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Take the places of the tensors."""
        if self._call.error is not None:
            raise self._call.error
        self._call.parts = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan, with a digest of the names of the files that this rank found."""
        names = sorted({part.file for part in self._call.parts.values()})
        return replace(plan, storage_data=hashlib.sha256("\n".join(names).encode()).hexdigest())

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans themselves, if all ranks found the same checkpoint."""
        if any(plan.storage_data != plans[0].storage_data for plan in plans):
            raise _failure(
                self._directory,
                "has different checkpoints for different ranks; a save replaced it, or the ranks do not share it",
                "Load again when no save is running, from a file system that all ranks share.",
                errno.EBUSY,
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read and verify what the plan needs."""
        by_file: dict[str, list[ReadItem]] = {}
        for item in sorted(plan.items, key=lambda item: self._call.parts[item.storage_index].begin):
            by_file.setdefault(self._call.parts[item.storage_index].file, []).append(item)
        handles = Handles()
        for file, items in by_file.items():
            path = self._directory / file
            reads = (_part_read(item, self._call.parts[item.storage_index], planner) for item in items)
            try:
                files.read_parts(path, reads, handles)
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
                raise _failure(
                    path,
                    "is missing; a save replaced the checkpoint during the load, or the file was lost",
                    "Load again; if that fails, restore the file from a backup.",
                ) from None
        return _future(None)


# Saving ----------------------------------------------------------------------------------------


def _order(item: WriteItem) -> tuple[bool, int]:
    """The largest first; those that fill pages before all others, so that they begin at pages."""
    data = item.tensor_data
    size_bytes = 0 if data is None else prod(data.chunk.sizes) * data.properties.dtype.itemsize
    return size_bytes == 0 or size_bytes % _PAGE_BYTES != 0, -size_bytes


def _pickled(item: WriteItem, planner: SavePlanner) -> torch.Tensor:
    """A value that is not a tensor, as a uint8 vector."""
    data: Any = planner.resolve_data(item)
    return torch.frombuffer(data.getbuffer(), dtype=torch.uint8)


def _layout(file: str, items: list[WriteItem], objects: dict[MetadataIndex, torch.Tensor]) -> tuple[list[Part], bytes]:
    """Where each item goes in a file, and the file's header."""
    offsets: dict[str, Any] = {}
    members: dict[str, Any] = {METADATA: {"format": "pt"}}
    parts: list[Part] = []
    at = 0
    for item in items:
        fqn, data = item.index.fqn, item.tensor_data
        if data is None:
            part = Part(None, objects[item.index].shape, file, at, objects[item.index].nbytes)
            dtype, offset = torch.uint8, [0]
        else:
            dtype, offset = data.properties.dtype, list(data.chunk.offsets)
            size_bytes = prod(data.chunk.sizes) * dtype.itemsize
            part = Part(str(dtype).removeprefix("torch."), data.chunk.sizes, file, at, size_bytes)
        at += part.size_bytes
        name = fqn if fqn not in members else f"{fqn}@{offset}"
        members[name], _ = encoded_entry(dtype, part.sizes, part.begin, at)
        offsets[name] = {"saved_offsets": offset}
        parts.append(part)
    # As torch's HuggingFaceStorageWriter does, so that torch's tools can join the shards.
    members[METADATA]["DCP_SHARDING_INFO"] = json.dumps(offsets)
    size = LENGTH_BYTES + len(json.dumps(members).encode())
    size += -size % _PAGE_BYTES
    return [replace(part, begin=size + part.begin) for part in parts], encoded(members, size)


def _body(item: WriteItem, part: Part, value: Any) -> torch.Tensor:
    """The bytes of a tensor in host memory."""
    try:
        body, _ = body_to_write(value)
    except OpArgumentError as error:
        raise OpArgumentError(f"{item.index.fqn!r} cannot be saved. {error.message}", error.remedy) from None
    if body.nbytes != part.size_bytes:
        raise OpArgumentError(
            f"{item.index.fqn!r} has {body.nbytes} bytes, and had {part.size_bytes} when the save was planned.",
            "Do not change the state while it is being saved.",
        )
    return body


# Loading ---------------------------------------------------------------------------------------


def _part_read(item: ReadItem, part: Part, planner: LoadPlanner) -> PartRead:
    """The read of an item: into the tensor's own memory where the bytes fit there, else by a copy."""
    name = item.storage_index.fqn
    if part.dtype is None:
        body = torch.empty(part.size_bytes, dtype=torch.uint8)
        return PartRead(name, part, 0, body, lambda: planner.load_bytes(item, io.BytesIO(bytes(memory_of(body)))))
    target = planner.resolve_tensor(item).detach()
    require_memory(f"The tensor to load {name!r} into", target)
    dtype = DTYPES[part.dtype]
    if list(item.lengths) == list(part.sizes) and target.dtype == dtype and is_filled_in_place(target):
        torch.autograd.graph.increment_version(target)
        return PartRead(name, part, 0, bytes_of(target), partial(planner.commit_tensor, item, target))
    # Whole rows, of which the target may take some columns.
    first, count = (item.storage_offsets[0], item.lengths[0]) if part.sizes else (0, 1)
    row_bytes = part.size_bytes // part.sizes[0] if part.size_bytes and part.sizes else part.size_bytes
    begin, end = files.block_range(first * row_bytes, (first + count) * row_bytes, part.size_bytes)
    body = torch.empty(end - begin, dtype=torch.uint8)

    def deliver() -> None:
        at = first * row_bytes - begin
        values = body[at : at + count * row_bytes].view(dtype).view(item.lengths[:1] + tuple(part.sizes[1:]))
        for dim in range(1, len(part.sizes)):
            values = values.narrow(dim, item.storage_offsets[dim], item.lengths[dim])
        target.copy_(values)
        planner.commit_tensor(item, target)

    return PartRead(name, part, begin, body, deliver)


def _unreadable(directory: Path) -> StorageError | None:
    """The error if a directory has no checkpoint of ours; it names another format."""
    if (directory / f"{files.CONTENTS}.safetensors").exists():
        return None
    if directory.is_file():
        return _failure(directory, "is a file", "Load it by load_safetensors() or torch.load().", errno.EINVAL)
    if not directory.is_dir():
        return _failure(directory, "does not exist", "Check the path.")
    names = os.listdir(directory)
    if ".metadata" in names:
        return _failure(
            directory, "has a checkpoint of torch's FileSystemWriter", "Load it by FileSystemReader.", errno.EINVAL
        )
    if any(files.GENERATED.fullmatch(name) for name in names):
        return _failure(directory, "has only files of a save that did not end", "Load an earlier checkpoint.")
    if any(name.endswith(".safetensors") for name in names):
        return _failure(
            directory,
            "has safetensors files of another program",
            "Load it by HuggingFaceStorageReader of torch.",
            errno.EINVAL,
        )
    return _failure(directory, "has no checkpoint", "Check the path.")


def _failure(path: Path, what: str, remedy: str, number: int = errno.ENOENT) -> StorageError:
    return StorageError(f"{path} {what}.", remedy, errno=number, filename=str(path), offset=0, bytes_done=0)


def _future(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
