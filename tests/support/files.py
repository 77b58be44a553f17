"""What the tests of async_io and TensorStore share."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def random_bytes(size: int, seed: int = 0, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """``size`` elements of random bits."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size * dtype.itemsize,), dtype=torch.uint8, generator=generator).view(dtype)


def fake_tensor(size: int = 4) -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(size)


def freed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, whose storage was freed."""
    tensor.untyped_storage().resize_(0)
    return tensor


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


@contextmanager
def mounted(mount: Path, *options: object) -> Iterator[Path]:
    """A file system mounted there, by mount(8); skips where that is not possible."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting needs root and the program mount")
    mount.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, mount], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"such a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", mount], check=True)
