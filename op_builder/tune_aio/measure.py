"""How fast a handle with given settings reads and writes a scratch file."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from op_builder.errors import AccelError
from op_builder.ops.declare import load_host
from op_builder.ops.io.async_io import OP as ASYNC_IO

_PIECE_BYTES = 128 << 20  # of one request; the queue runs empty between two
_SPARE_BYTES = 64 << 20  # left to other programs on the disk


class Settings(NamedTuple):
    """The arguments of :meth:`AsyncIOModule.aio_handle`, by their names."""

    engine: str
    block_size: int
    queue_depth: int
    single_submit: bool = False
    overlap_events: bool = True
    intra_op_parallelism: int = 1


class Measurement(NamedTuple):
    """Bytes per second; writing includes the ``fsync`` after it.

    Attributes:
        direct_share: the share of the bytes that bypassed the page cache.
    """

    settings: Settings
    read_bytes_per_s: float
    written_bytes_per_s: float
    direct_share: float

    @property
    def both_bytes_per_s(self) -> float:
        """The rate at which bytes are written once and read once."""
        return 2 / (1 / self.read_bytes_per_s + 1 / self.written_bytes_per_s)


class Bench:
    """A scratch file and memory for it.

    Args:
        seconds: minimum time to measure each direction.
    """

    def __init__(self, descriptor: int, size_bytes: int, seconds: float, module: Any) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._seconds = seconds
        self._module = module
        handle = module.aio_handle()
        piece_bytes = min(_PIECE_BYTES, size_bytes)
        self._buffer = handle.new_cpu_locked_tensor(piece_bytes, torch.empty(0, dtype=torch.uint8))
        self._buffer.random_()  # devices may store zeros without writing them
        for offset, piece in self._pieces():
            handle.sync_pwrite(piece, descriptor, offset)
        os.fsync(descriptor)

    def measure(self, settings: Settings) -> Measurement:
        """Write and read the file repeatedly.

        Raises:
            AccelError: the system refuses these settings.
        """
        handle = self._module.aio_handle(**settings._asdict())
        handle.sync_pread(self._buffer[: 1 << 20], self._descriptor, 0)  # starts the threads
        before = handle.counters()
        written = self._rate(handle.sync_pwrite, lambda: os.fsync(self._descriptor))
        if hasattr(os, "posix_fadvise"):  # read nothing from the page cache
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        read = self._rate(handle.sync_pread, lambda: None)
        after = handle.counters()
        direct = after.direct_bytes - before.direct_bytes
        return Measurement(settings, read, written, direct / (direct + after.cached_bytes - before.cached_bytes))

    def _rate(self, transfer: Callable[[torch.Tensor, int, int], int], finish: Callable[[], object]) -> float:
        done = 0
        started = time.perf_counter()
        while True:
            for offset, piece in self._pieces():
                transfer(piece, self._descriptor, offset)
                done += piece.nbytes
                if time.perf_counter() - started >= self._seconds:
                    finish()
                    return done / (time.perf_counter() - started)

    def _pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        for offset in range(0, self._size_bytes, self._buffer.nbytes):
            yield offset, self._buffer[: min(self._buffer.nbytes, self._size_bytes - offset)]


@contextmanager
def bench(directory: Path, size_bytes: int, seconds: float) -> Iterator[Bench]:
    """A bench on a scratch file in ``directory``. The file has no name, so it ends with this process.

    Raises:
        AccelError: the directory is missing or cannot be written, or the disk has too little space.
    """
    if not os.path.isdir(directory):  # Path.is_dir() raises for a name that is too long
        raise AccelError(
            f"{directory} is {'not a directory' if os.path.exists(directory) else 'missing'}.",
            "Pass a directory on the disk to measure.",
        )
    free = shutil.disk_usage(directory).free
    if free < size_bytes + _SPARE_BYTES:
        raise AccelError(
            f"The disk of {directory} has {free >> 20} MiB free; {(size_bytes + _SPARE_BYTES) >> 20} are needed.",
            f"Free some, or pass a --size below {max(0, free - _SPARE_BYTES) >> 20}M.",
        )
    try:
        file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
    except OSError as error:
        raise AccelError(
            f"A file cannot be created in {directory}: {error.strerror}.", "Pass a directory that this user can write."
        ) from None
    with file:
        yield Bench(file.fileno(), size_bytes, seconds, load_host(ASYNC_IO))
