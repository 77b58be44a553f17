"""Helpers to read and write files in pieces: reusable handles, and reads from the page cache alone."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from op_builder.errors import OpArgumentError, StorageError
from op_builder.ops.declare import load_host
from op_builder.ops.io.aio_handle import Handle, HandleSettings
from op_builder.ops.io.async_io import OP as ASYNC_IO

Progress = Callable[[int, int], object]
"""Called with (bytes done, bytes in all)."""

DEFAULT_SETTINGS: Mapping[str, Any] = {"block_size": 1 << 20, "queue_depth": 32, "overlap_events": True}
PIECE_BYTES = 32 << 20


class Handles:
    """Reusable handles of ``async_io``, one per concurrent transfer; an OpArgumentError for invalid settings."""

    def __init__(self, settings: Mapping[str, Any] = DEFAULT_SETTINGS) -> None:
        unknown = [name for name in settings if name not in HandleSettings._fields]
        if unknown:
            raise OpArgumentError(
                f"A handle has no setting {unknown[0]!r}.", f"Use one of {', '.join(HandleSettings._fields)}."
            )
        HandleSettings(**settings).checked()
        self._settings = dict(settings)
        self._owner = os.getpid()
        self._idle: deque[Handle] = deque()  # its methods need no lock

    @contextmanager
    def one(self) -> Iterator[Handle]:
        """A handle that nothing else uses meanwhile; raises an AccelError if the op cannot be loaded here."""
        if self._owner != os.getpid():  # a fork has none of the handles' threads
            self._owner, self._idle = os.getpid(), deque()
        handle: Handle | None = None
        with suppress(IndexError):  # an error of load() must not show this one as its context
            handle = self._idle.pop()
        if handle is None:
            handle = load_host(ASYNC_IO).aio_handle(**self._settings)
        yield handle
        # Not after an exception: commands may be in flight, for which the dropped handle waits.
        self._idle.append(handle)


def read_cached(descriptor: int, memory: memoryview, offset: int, first_bytes: int = mmap.PAGESIZE) -> int:
    """Fill the beginning of ``memory`` from a file, as far as the page cache has it.

    Args:
        first_bytes: size of the first request; more where the cache is known to have more.

    Returns:
        how many bytes were read; 0 if the system does not support this.
    """
    flag = getattr(os, "RWF_NOWAIT", None)
    done = 0
    try:
        while flag is not None and done < len(memory):
            # The kernel reads ahead as much as was missing, so requests begin small and grow.
            block = memory[done : 2 * done + first_bytes]
            count = os.preadv(descriptor, [block], offset + done, flag)
            done += count
            if count < len(block):
                break
    except OSError:  # EAGAIN at the first page that is not cached; a later read reports other errors
        pass
    return done


def map_cached(descriptor: int, offset: int, size_bytes: int) -> mmap.mmap | None:
    """A private, writable mapping of a part of a file that begins at a page, if the page cache seems to have it.

    One byte of each MiB is tried. Pages that are missing nevertheless are read at their first use.
    """
    byte = memoryview(bytearray(1))
    if not all(read_cached(descriptor, byte, at) for at in range(offset, offset + size_bytes, 1 << 20)):
        return None
    with suppress(OSError):  # a file system without mappings
        return mmap.mmap(
            descriptor, size_bytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=offset
        )
    return None


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
