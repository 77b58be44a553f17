"""What the tests of async_io and TensorStore share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from op_builder.system import storage_engines

ENGINES = [engine.name for engine in storage_engines.storage_engines() if engine.refusal is None]


def random_bytes(size: int, seed: int = 0, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """``size`` elements of random bits."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size * dtype.itemsize,), dtype=torch.uint8, generator=generator).view(dtype)


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def cache_only(path: Path, size_bytes: int) -> None:
    """Leave only the first bytes of a file, or all for -1, in the page cache."""
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # without reading ahead
        file.read(size_bytes)


def wait_until(is_so: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Return when ``is_so()``; fail after a generous time."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
