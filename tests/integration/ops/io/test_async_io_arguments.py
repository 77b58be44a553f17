"""What async_io refuses, and with which words; nothing is touched then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.io.async_io import AsyncIOModule
from tests.support.files import fake_tensor, freed

BUFFERS = {
    "on another device": (lambda: torch.zeros(4, device="meta"), "is on meta"),
    "with gaps": (lambda: torch.zeros(4, 4)[:, ::2], "not contiguous"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "layout torch.sparse_coo"),
    "not a tensor": (lambda: [1, 2], "is of type list"),
    "a lazy view": (lambda: torch.zeros(3, dtype=torch.complex64).conj(), "lazy view"),
    "nested": (lambda: torch.nested.nested_tensor([torch.zeros(2)]), "is nested"),
    "nested, jagged": (lambda: torch.nested.nested_tensor([torch.zeros(2)], layout=torch.jagged), "is nested"),
    "fake": (fake_tensor, "FakeTensor without memory of its own"),
    "freed": (lambda: freed(torch.zeros(100)), "reaches to byte 400 of its storage, which has 0"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "is quantized; a tensor of plain numbers",
    ),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("what", BUFFERS)
def test_buffers(async_io: AsyncIOModule, tmp_path: Path, what: str) -> None:
    make, message = BUFFERS[what]
    handle = async_io.aio_handle()
    for call in (handle.sync_pwrite, handle.async_pread):
        with pytest.raises(OpArgumentError, match=message):
            call(make(), tmp_path / "file")
    assert not (tmp_path / "file").exists()
    assert handle.wait() == 0


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.functionalize])  # no storage; no address
def test_a_buffer_inside_a_transformation(async_io: AsyncIOModule, tmp_path: Path, transform: Any) -> None:
    handle = async_io.aio_handle()

    def write(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(OpArgumentError, match="without memory"):
            handle.sync_pwrite(x, tmp_path / "file")
        return x

    transform(write)(torch.ones(2, 3))
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("file", [True, None, 1.5, "a\0b", b"\0", "\ud800", -1, 1 << 40, ["file"]], ids=ascii)
def test_files(async_io: AsyncIOModule, file: Any) -> None:
    handle = async_io.aio_handle()
    for call in (handle.sync_pread, handle.async_pwrite):
        with pytest.raises(OpArgumentError, match=r"file's name|filename or fd"):
            call(torch.zeros(1), file)
    assert handle.wait() == 0


@pytest.mark.parametrize("offset", [-1, 1.5, True, 1 << 62, None])
def test_offsets(async_io: AsyncIOModule, tmp_path: Path, offset: Any) -> None:
    with pytest.raises(OpArgumentError, match="file_offset is"):
        async_io.aio_handle().write(torch.zeros(1), tmp_path / "file", False, offset)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_size", 0),
        ("block_size", 1.5),
        ("queue_depth", 0),
        ("queue_depth", 1 << 20),
        ("intra_op_parallelism", -1),
        ("intra_op_parallelism", True),
    ],
)
def test_settings(async_io: AsyncIOModule, name: str, value: Any) -> None:
    with pytest.raises(OpArgumentError, match=f"{name} is {value!r}"):
        async_io.aio_handle(**{name: value})


def test_numbers_may_be_numpys(async_io: AsyncIOModule, tmp_path: Path) -> None:
    handle = async_io.aio_handle(np.int64(4096), np.int32(8))
    with open(tmp_path / "file", "wb") as file:
        handle.write(torch.ones(3), np.int64(file.fileno()), False, np.int64(0))
    assert (tmp_path / "file").stat().st_size == 12


def test_settings_come_back(async_io: AsyncIOModule) -> None:
    def settings(*arguments: Any) -> tuple[Any, ...]:
        handle = async_io.aio_handle(*arguments)
        names = ("block_size", "queue_depth", "single_submit", "overlap_events", "intra_op_parallelism")
        return tuple(getattr(handle, f"get_{name}")() for name in names)

    assert settings(12_345, 7, True, False, 3) == (12_345, 7, True, False, 3)
    assert settings() == (1 << 20, 128, False, False, 1)
    assert async_io.aio_handle(intra_op_parallelism=3).get_alignment() % (3 * 512) == 0


def test_the_fourth_place_is_async(async_io: AsyncIOModule, tmp_path: Path) -> None:
    handle = async_io.aio_handle()
    data = torch.ones(3)
    assert handle.pwrite(data, tmp_path / "file", False, False) == 1
    assert handle.pwrite(data, tmp_path / "file", False, True, 12) == 0
    assert handle.wait() == 1
    assert (tmp_path / "file").stat().st_size == 24
    assert handle.pread(data, tmp_path / "file", False, file_offset=4, **{"async": False}) == 1
    for arguments, keywords in (((), {}), ((True, 0, 1), {}), ((True,), {"async": True}), ((True,), {"offset": 3})):
        with pytest.raises(TypeError, match="validate, async, file_offset=0"):
            handle.pread(data, tmp_path / "file", False, *arguments, **keywords)


def test_copies_of_bytes(async_io: AsyncIOModule) -> None:
    shared = torch.arange(8.0)
    for dst, src in (
        (torch.zeros(3), torch.zeros(4)),
        (torch.zeros(4, 4)[:, 0], torch.zeros(4)),
        (torch.zeros(3), fake_tensor(3)),
        (shared[:7], shared[1:]),
        (shared[1:], shared[:7]),
    ):
        with pytest.raises(OpArgumentError):
            async_io.memcpy(dst, src)
    assert async_io.memcpy(shared[:4], shared[4:]) == 0
    assert shared.tolist() == [4.0, 5.0, 6.0, 7.0] * 2


def test_the_compiler_leaves_files_alone(async_io: AsyncIOModule, tmp_path: Path) -> None:
    """Tracing transfers nothing, and no transfer is dropped from a graph for having no result."""
    handle = async_io.aio_handle()
    handle.write(torch.arange(8.0), tmp_path / "file", False)

    def work(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        handle.read(y, tmp_path / "file", False)
        z = y + 1
        handle.async_pread(y, tmp_path / "file")
        handle.wait()
        return z + y

    compiled = torch.compile(work, backend="eager")
    assert compiled(torch.ones(8)).tolist() == [2 * i + 1 for i in range(8)]
    assert handle.counters().commands == 3
