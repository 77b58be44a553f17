"""Memory of an optimizer's many small states, one behind the other.

Ten thousand states with allocations of their own lie on as many pages and more, and a processor that goes
through them waits for addresses to be translated longer than for the values. Placed in the order in which
they are updated they are one stream. A tensor placed here still has a storage of its own, so saving,
copying or freeing one does not drag its neighbours along; their memory is given back with the last of a
chunk.
"""

from __future__ import annotations

import mmap

import torch

CHUNK_BYTES = 1 << 20
#: Larger ones fill their pages themselves.
LARGEST_BYTES = 64 << 10

_ALIGNMENT = 64  # a cache line: two threads do not write to one


class SmallTensors:
    """Makes contiguous CPU tensors, the small ones of them side by side."""

    def __init__(self) -> None:
        # Steps by themselves, close together: all are read before an update.
        self._numbers = _Chunks(1)
        self._arrays = _Chunks(_ALIGNMENT)

    def copy(self, source: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A contiguous copy in host memory, of ``source``'s shape.

        Args:
            source: a dense tensor on any device.
            dtype: the copy's type; None for that of ``source``.
        """
        dtype = source.dtype if dtype is None else dtype
        nbytes = source.numel() * dtype.itemsize
        if not 0 < nbytes <= LARGEST_BYTES:
            return source.detach().to("cpu", dtype, copy=True, memory_format=torch.contiguous_format)
        chunks = self._arrays if source.dim() else self._numbers
        return chunks.place(source.shape, dtype, nbytes).copy_(source.detach())


class _Chunks:
    def __init__(self, alignment: int) -> None:
        self._alignment = alignment
        self._chunk: mmap.mmap | None = None  # the last one; those before are kept by what lies in them
        self._used = 0

    def place(self, shape: torch.Size, dtype: torch.dtype, nbytes: int) -> torch.Tensor:
        step = max(self._alignment, dtype.itemsize)
        offset = -(-self._used // step) * step
        if self._chunk is None or offset + nbytes > CHUNK_BYTES:
            # Private to the process, also where a child process goes on with the optimizer.
            self._chunk, offset = mmap.mmap(-1, CHUNK_BYTES, access=mmap.ACCESS_COPY), 0
        self._used = offset + nbytes
        count = nbytes // dtype.itemsize
        # resize_() makes no view, as view() would: the shape becomes the tensor's own.
        return torch.frombuffer(self._chunk, dtype=dtype, count=count, offset=offset).resize_(shape)
