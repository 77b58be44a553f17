"""``TensorStore``: named tensors in files of a directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from op_builder.errors import DamagedTensorError
from op_builder.ops.arguments import bounded_int, bytes_of
from op_builder.ops.io.file_pieces import DEFAULT_SETTINGS, Handles, Progress, write_plainly
from op_builder.ops.io.safetensors_format import check_byte_order
from op_builder.ops.io.tensor_store_files import StoreFiles, explained
from op_builder.ops.io.tensor_store_format import HEADER_BYTES, TensorInfo, decoded_header, encoded_header
from op_builder.ops.io.tensor_store_memory import body_to_write, check_out, is_filled_in_place, new_tensor
from op_builder.ops.io.tensor_store_queue import StoreQueue
from op_builder.ops.io.tensor_store_transfer import read_body, write_body
from op_builder.system.file_kinds import require_no_other_format
from op_builder.system.records import RecordError

_RESTORE = (
    "Save the tensor again, or restore the file from a backup; "
    "if nothing else wrote to it, look for errors of the disk: `dmesg`."
)


class TensorStore:
    """Tensors by name in a directory, at the disk's speed, in the background if wanted, and never torn.

    A tensor is one safetensors file with a checksum (XXH3), replaced as a whole. A store handles requests for one name
    in their order; requests for different names may overlap. docs/tensor_store.md has the guarantees.

    Args:
        directory: created if it is missing.
        threads: most background threads that work at a time.
        is_durable: whether a saved tensor outlives a power cut (``fsync``). Without it, a power cut may destroy
            the tensor, which the next load reports.
        aio: settings of the handles, as :meth:`AsyncIOModule.aio_handle` takes them and
            ``accel-ops tune-aio`` finds them.

    Raises:
        OpArgumentError: ``threads`` is not a positive int, or ``aio`` is invalid.
        StorageError: the directory cannot be created or read.
        IncompatibleOpError: this machine is big-endian.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        threads: int = 2,
        is_durable: bool = True,
        aio: Mapping[str, Any] | None = None,
    ) -> None:
        threads = bounded_int("threads", threads, 1, None, "Pass an int of at least 1.")
        check_byte_order()
        self._handles = Handles(DEFAULT_SETTINGS if aio is None else aio)
        self._files = StoreFiles(Path(directory).absolute(), is_durable=is_durable)
        self._queue = StoreQueue(threads)

    @property
    def directory(self) -> Path:
        """Where the files are."""
        return self._files.directory

    # Tensors in and out ------------------------------------------------------------------------

    def save(self, name: str, tensor: torch.Tensor, *, progress: Progress | None = None) -> None:
        """Write a tensor, in place of an earlier one of that name.

        Args:
            name: letters, digits and ``_ - .``, at most 200; it becomes the file's name.
            tensor: dense, of any type, shape and device. Unless it is contiguous in host memory, it is copied first.
            progress: called with (bytes done, bytes in all), in the thread that writes; an exception in it
                ends the save. It may use ``save_async`` and ``load_async``, but waiting for the store is refused.

        Raises:
            OpArgumentError: the name is invalid, or the tensor cannot be stored; nothing was written.
            StorageError: writing failed; the store has the old value.
        """
        self._queue.run(name, self._saving(name, tensor, progress))

    def save_async(self, name: str, tensor: torch.Tensor, *, progress: Progress | None = None) -> Future[None]:
        """As :meth:`save`, in the background.

        A contiguous tensor in host memory must not be changed before the future is done: the file would have
        neither value, and fail its checksum. Other tensors are copied in this call. Invalid arguments are raised
        here, other errors by the future; errors that no future has reported are raised by :meth:`wait` and
        :meth:`close`. The future cannot be cancelled.
        """
        return self._queue.begin(name, self._saving(name, tensor, progress))

    def load(self, name: str, out: torch.Tensor | None = None, *, progress: Progress | None = None) -> torch.Tensor:
        """Read a tensor.

        Args:
            out: filled with it; of its shape and type, on any device. By default a new tensor in host memory.
            progress: as in :meth:`save`.

        Returns:
            ``out``, or the new tensor.

        Raises:
            OpArgumentError: the name is invalid, or ``out`` does not fit; it was not touched.
            TensorNotFoundError: no tensor has that name.
            DamagedTensorError: the file is not what was saved; the content of ``out`` is undefined.
            StorageError: reading failed; ``out`` is undefined, too.
        """
        self._files.path(name)
        return self._queue.run(name, partial(self._load, name, out, progress))

    def load_async(
        self, name: str, out: torch.Tensor | None = None, *, progress: Progress | None = None
    ) -> Future[torch.Tensor]:
        """As :meth:`load`, in the background; ``out`` is whole when the future is done.

        All errors but that of an invalid name are raised by the future.
        """
        self._files.path(name)
        return self._queue.begin(name, partial(self._load, name, out, progress))

    def wait(self) -> None:
        """Wait for all work in the background; raise the first failure that no future reported, with ``others``."""
        self._queue.wait()

    # Contents ---------------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        """Remove a tensor; a TensorNotFoundError if it is missing, a StorageError if it cannot be removed."""
        self._files.path(name)
        self._queue.run(name, partial(self._files.delete, name))

    def names(self) -> list[str]:
        """The names of all tensors in the directory, sorted."""
        return self._files.names()

    def info(self, name: str) -> TensorInfo:
        """A stored tensor's type, shape and checksum, without reading it; raises as :meth:`load`."""
        self._files.path(name)
        return self._queue.run(name, partial(self._info, name))

    def __contains__(self, name: object) -> bool:
        return self._files.has(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    # Its end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish the work in the background and refuse more; raises as :meth:`wait`."""
        self._queue.close()
        self._queue.wait()

    def __enter__(self) -> TensorStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.close()
        if kind is None:  # otherwise the block's exception is the one to report
            self._queue.wait()

    def __repr__(self) -> str:
        return f"TensorStore({str(self.directory)!r})"

    # The work ----------------------------------------------------------------------------------

    def _saving(self, name: str, tensor: torch.Tensor, progress: Progress | None) -> Callable[[], None]:
        self._files.path(name)
        return partial(self._save, name, *body_to_write(tensor), progress)

    def _save(self, name: str, body: torch.Tensor, info: TensorInfo, progress: Progress | None) -> None:
        path = self._files.path(name)
        with self._files.replacement(name) as descriptor:
            checksum = write_body(descriptor, path, body, self._handles, progress)
            header = encoded_header(name, replace(info, checksum=checksum))
            with explained(f"Saving {path}", path):
                write_plainly(descriptor, header, 0)

    def _load(self, name: str, out: torch.Tensor | None, progress: Progress | None) -> torch.Tensor:
        path = self._files.path(name)
        descriptor = self._files.open_to_read(name)
        try:
            info = self._read_info(path, descriptor)
            if out is not None:
                check_out(name, out, info)
            host = out if out is not None and is_filled_in_place(out) else new_tensor(info)
            checksum = read_body(descriptor, path, bytes_of(host), self._handles, progress)
        finally:
            os.close(descriptor)
        if checksum != info.checksum:
            raise DamagedTensorError(
                f"{path} is damaged: the checksum of its {info.size_bytes} bytes is {checksum}, and was "
                f"{info.checksum} when they were saved.",
                _RESTORE,
                filename=str(path),
            )
        if out is None or out is host:
            return host
        with torch.no_grad():
            return out.copy_(host)

    def _info(self, name: str) -> TensorInfo:
        descriptor = self._files.open_to_read(name)
        try:
            return self._read_info(self._files.path(name), descriptor)
        finally:
            os.close(descriptor)

    def _read_info(self, path: Path, descriptor: int) -> TensorInfo:
        with explained(f"Loading {path}", path):
            header = os.pread(descriptor, HEADER_BYTES, 0)
            file_bytes = os.fstat(descriptor).st_size
        try:
            return decoded_header(header, file_bytes)
        except RecordError as error:
            require_no_other_format(path, header)
            raise DamagedTensorError(f"{path} cannot be loaded: {error}.", _RESTORE, filename=str(path)) from None
