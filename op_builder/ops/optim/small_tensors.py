"""Contiguous memory for an optimizer's many small states.

Ten thousand states that are allocated separately are on at least as many pages, and reading them waits longer for the
translation of addresses than for the values. Placed in the order in which they are updated they are one stream. Each
tensor still has its own storage, so it is saved, copied and freed without its neighbours; the memory of a chunk is
freed with the last of its tensors.
"""

from __future__ import annotations

import mmap

import torch

CHUNK_BYTES = 1 << 20
#: Larger tensors fill their own pages.
LARGEST_BYTES = 64 << 10

_ALIGNMENT = 64  # a cache line, so that no two threads write to the same one


class SmallTensors:
    """Makes contiguous CPU tensors, and places small ones next to each other."""

    def __init__(self) -> None:
        # Steps are stored together, apart from arrays: an update reads all of them first.
        self._numbers = _Chunks(1)
        self._arrays = _Chunks(_ALIGNMENT)

    def copy(self, source: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A contiguous copy of a dense tensor in host memory; ``dtype`` is by default that of ``source``."""
        dtype = source.dtype if dtype is None else dtype
        nbytes = source.numel() * dtype.itemsize
        if not 0 < nbytes <= LARGEST_BYTES:
            return source.detach().to("cpu", dtype, copy=True, memory_format=torch.contiguous_format)
        chunks = self._arrays if source.dim() else self._numbers
        return chunks.place(source.shape, dtype, nbytes).copy_(source.detach())


class _Chunks:
    def __init__(self, alignment: int) -> None:
        self._alignment = alignment
        self._chunk: mmap.mmap | None = None  # the last one; earlier chunks live as long as their tensors
        self._used = 0

    def place(self, shape: torch.Size, dtype: torch.dtype, nbytes: int) -> torch.Tensor:
        step = max(self._alignment, dtype.itemsize)
        offset = -(-self._used // step) * step
        if self._chunk is None or offset + nbytes > CHUNK_BYTES:
            # Private to the process: a forked child that uses the optimizer gets its own copy.
            self._chunk, offset = mmap.mmap(-1, CHUNK_BYTES, access=mmap.ACCESS_COPY), 0
        self._used = offset + nbytes
        count = nbytes // dtype.itemsize
        # resize_() makes no view, unlike view().
        return torch.frombuffer(self._chunk, dtype=dtype, count=count, offset=offset).resize_(shape)
