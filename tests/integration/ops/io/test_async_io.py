"""Tensors to and from files: every call, every engine, byte by byte."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies

from op_builder.errors import OpArgumentError
from op_builder.ops.io.aio_handle import Handle
from op_builder.ops.io.async_io import AsyncIOModule
from tests.support.engines import ENGINES
from tests.support.files import cache_only, random_bytes, raw

KIB = 1 << 10
PAGE = os.sysconf("SC_PAGESIZE")
# Around what the engine decides by: pages, blocks (64 KiB here), a bounce buffer, shares of several threads.
SIZES = (0, 1, 511, 512, PAGE - 1, PAGE, PAGE + 1, 64 * KIB, 3 * 64 * KIB + 13, (1 << 20) + PAGE, 5 * (1 << 20) + 4097)
OFFSETS = (0, 3, PAGE, 2 * PAGE + 511)

each_engine = pytest.mark.parametrize("engine", ENGINES)


def guarded(like: torch.Tensor, shift: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor of the same size at an odd address, and the memory around it, all of it 0xA5."""
    around = torch.full((like.nbytes + 4096,), 0xA5, dtype=torch.uint8)
    at = 1024 + (-around.data_ptr()) % 512 + shift
    return around[at : at + like.nbytes].view(like.dtype), around


def is_untouched(around: torch.Tensor, inside: torch.Tensor) -> bool:
    at = inside.data_ptr() - around.data_ptr()
    outside = torch.cat([around[:at], around[at + inside.nbytes :]])
    return bool((outside == 0xA5).all())


@each_engine
@pytest.mark.parametrize(
    ("single", "overlap", "threads"), [(False, False, 1), (True, False, 3), (False, True, 3), (True, True, 1)]
)
def test_every_size_and_offset_comes_back_and_nothing_else_changes(
    async_io: AsyncIOModule, storage: Path, engine: str, single: bool, overlap: bool, threads: int
) -> None:
    handle = async_io.aio_handle(64 * KIB, 8, single, overlap, threads, engine=engine)
    path = storage / "file"
    for size, offset in itertools.product(SIZES, OFFSETS):
        data = random_bytes(size, seed=size + offset)
        path.write_bytes(b"\x5a" * (offset + size + 777))
        assert handle.sync_pwrite(data, path, offset) == 1
        found = path.read_bytes()
        assert found[:offset] == b"\x5a" * offset
        assert found[offset : offset + size] == raw(data)
        assert found[offset + size :] == b"\x5a" * 777
        back, around = guarded(data, shift=64)
        assert handle.sync_pread(back, path, offset) == 1
        assert raw(back) == raw(data)
        assert is_untouched(around, back)


def transfer(handle: Handle, call: str, buffer: torch.Tensor, path: Any, offset: int, validate: bool) -> None:
    """One transfer whose results are checked."""
    name, _, is_background = call.partition(" ")
    if name in ("read", "write"):
        assert getattr(handle, name)(buffer, path, validate, offset) == 0
    elif name in ("pread", "pwrite"):
        keywords = {"async": bool(is_background), "file_offset": offset}
        assert getattr(handle, name)(buffer, path, validate, **keywords) == (0 if is_background else 1)
        assert handle.wait() == (1 if is_background else 0)
    else:
        is_async = name.startswith("async")
        assert getattr(handle, name)(buffer, path, offset) == (0 if is_async else 1)
        assert handle.wait() == (1 if is_async else 0)


@each_engine
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_every_call(async_io: AsyncIOModule, storage: Path, engine: str, dtype: torch.dtype) -> None:
    handle = async_io.aio_handle(64 * KIB, 4, False, True, 2, engine=engine)
    path = storage / "file"
    calls = ("read", "pread", "pread async", "sync_pread", "async_pread")
    sizes = ((0, False), (1, True), (50_001, False), (200_000, True))
    for call, pinned, (count, validate) in itertools.product(calls, (False, True), sizes):
        source, target = random_bytes(count, count, dtype), torch.zeros(count, dtype=dtype)
        if pinned:
            source, target = (handle.new_cpu_locked_tensor(count, target).copy_(each) for each in (source, target))
        transfer(handle, call.replace("read", "write"), source, path, 5, validate)
        assert path.read_bytes()[5:] == raw(source)
        transfer(handle, call, target, path, 5, validate)
        assert raw(target) == raw(source)
        path.unlink()


@hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    engine=strategies.sampled_from(ENGINES),
    block=strategies.sampled_from([1, 4096, 5000, 64 * KIB, 1 << 20]),
    depth=strategies.integers(1, 9),
    flags=strategies.tuples(strategies.booleans(), strategies.booleans()),
    threads=strategies.integers(1, 4),
    pieces=strategies.lists(
        strategies.tuples(strategies.integers(0, 300_000), strategies.integers(0, 20_000)), min_size=1, max_size=6
    ),
    shift=strategies.integers(0, 600),
)
def test_any_pieces_of_one_file_in_flight_together(
    async_io: AsyncIOModule,
    storage: Path,
    engine: str,
    block: int,
    depth: int,
    flags: tuple[bool, bool],
    threads: int,
    pieces: list[tuple[int, int]],
    shift: int,
) -> None:
    """Neighbours that share pages are written and read at once: none may disturb another."""
    handle = async_io.aio_handle(block, depth, *flags, threads, engine=engine)
    path = storage / "pieces"
    path.unlink(missing_ok=True)
    expected = bytearray()
    written = []
    for index, (size, gap) in enumerate(pieces):
        if block == 1:
            size %= 10_000
        data, _ = guarded(torch.empty(size, dtype=torch.uint8), shift)
        data.copy_(random_bytes(size, seed=index))
        expected += bytes(gap)
        written.append((data, len(expected)))
        expected += raw(data)
    for data, offset in written:
        handle.async_pwrite(data, path, offset)
    assert handle.wait() == len(pieces)
    assert path.read_bytes().ljust(len(expected), b"\0") == bytes(expected)
    targets = []
    for data, offset in written:
        target, around = guarded(data, (shift * 7) % 512)
        handle.async_pread(target, path, offset)
        targets.append((target, around, data))
    assert handle.wait() == len(pieces)
    for target, around, data in targets:
        assert raw(target) == raw(data)
        assert is_untouched(around, target)


@each_engine
def test_whole_pages_bypass_the_page_cache_and_edges_go_through_it(
    async_io: AsyncIOModule, disk: Path, engine: str
) -> None:
    handle = async_io.aio_handle(64 * KIB, 8, engine=engine)
    data = handle.new_cpu_locked_tensor(10 * PAGE, torch.empty(0, dtype=torch.uint8))
    handle.write(data[: 8 * PAGE], disk / "file", False)
    counters = handle.counters()
    assert (counters.direct_bytes, counters.cached_bytes, counters.bounced_bytes) == (8 * PAGE, 0, 0)
    handle.write(data[: 3 * PAGE + 7], disk / "file", False, PAGE - 5)  # the address does not fit the offset
    counters = handle.counters()
    assert (counters.direct_bytes, counters.cached_bytes) == (8 * PAGE + 3 * PAGE, 5 + 2)
    assert counters.bounced_bytes == 3 * PAGE
    handle.write(data[PAGE - 5 : 2 * PAGE], disk / "file", False, PAGE - 5)
    assert handle.counters().bounced_bytes == 3 * PAGE


def device_read_bytes() -> int:
    """What this process has read from devices so far."""
    (line,) = (line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("read_bytes:"))
    return int(line.split()[1])


@pytest.mark.skipif(not os.access("/proc/self/io", os.R_OK), reason="the system does not count reads from devices")
@pytest.mark.parametrize("is_write", [True, False], ids=["write", "read"])
def test_validation_compares_what_the_device_has(async_io: AsyncIOModule, disk: Path, is_write: bool) -> None:
    path, data, handle = disk / "file", random_bytes(PAGE + 1000), async_io.aio_handle()
    path.write_bytes(raw(data))
    cache_only(path, 0)
    before = device_read_bytes()
    path.read_bytes()
    if device_read_bytes() == before:
        pytest.skip("this file system is not read from a device")
    path.write_bytes(raw(data))  # the device does not have it at once
    before = device_read_bytes()
    if is_write:
        handle.write(data, path, True)
    else:
        handle.read(torch.zeros_like(data), path, True)
    assert device_read_bytes() - before >= data.nbytes


@each_engine
def test_single_submit_is_a_call_for_each_command(async_io: AsyncIOModule, disk: Path, engine: str) -> None:
    submissions = {}
    for single in (False, True):
        handle = async_io.aio_handle(PAGE, 16, single, False, engine=engine)
        handle.write(random_bytes(64 * PAGE), disk / "file", False)
        assert handle.counters().commands == 64
        submissions[single] = handle.counters().submissions
    assert submissions == {True: 64, False: 64 / 16}


@each_engine
def test_descriptors_are_taken_like_names(async_io: AsyncIOModule, storage: Path, engine: str) -> None:
    handle = async_io.aio_handle(engine=engine)
    data = random_bytes(200_001)
    for extra in (0, getattr(os, "O_DIRECT", 0)):
        try:
            descriptor = os.open(storage / "file", os.O_RDWR | os.O_CREAT | extra)
        except OSError:  # a file system without O_DIRECT
            continue
        handle.sync_pwrite(data, descriptor, 11)
        back = torch.zeros_like(data)
        handle.async_pread(back, file_offset=11, fd=descriptor)
        handle.wait()
        assert torch.equal(back, data)
        for arguments in ({}, {"filename": storage / "file", "fd": descriptor}):
            with pytest.raises(OpArgumentError, match="no file, or two"):
                handle.async_pwrite(data, **arguments)
        os.close(descriptor)  # it is still open


def test_a_descriptor_that_appends_is_written_at_the_offset(async_io: AsyncIOModule, storage: Path) -> None:
    (storage / "file").write_bytes(bytes(10_000))
    with open(storage / "file", "ab") as file:
        async_io.aio_handle().write(torch.full((4,), 7, dtype=torch.uint8), file.fileno(), False, 2)
    assert (storage / "file").read_bytes() == b"\0\0\7\7\7\7" + bytes(9_994)


def test_file_names_of_any_kind(async_io: AsyncIOModule, storage: Path) -> None:
    handle = async_io.aio_handle()
    names = (str(storage / "text"), os.fsencode(storage / "bytes"), storage / "päth", os.fsencode(storage) + b"/\xff")
    for name in names:
        handle.write(torch.arange(5), name, False)
        back = torch.zeros(5, dtype=torch.int64)
        handle.read(back, name, False)
        assert back.tolist() == [0, 1, 2, 3, 4]


def test_sparse_files_read_as_zeros_and_grow(async_io: AsyncIOModule, disk: Path) -> None:
    handle = async_io.aio_handle(64 * KIB, 4)
    path = disk / "file"
    with path.open("wb") as file:
        file.truncate(40 << 20)
    back = torch.ones(3_000_000, dtype=torch.uint8)
    handle.read(back, path, True, 1_000_001)
    assert not back.any()
    handle.write(torch.ones(100, dtype=torch.uint8), path, True, (60 << 20) + 1)
    assert path.stat().st_size == (60 << 20) + 101
    assert path.stat().st_blocks * 512 < 4 << 20  # the hole is still one
    handle.write(torch.ones(100, dtype=torch.uint8), path, True, 0)
    assert path.stat().st_size == (60 << 20) + 101  # never made shorter


def test_buffers_are_kept_and_a_dropped_handle_finishes_its_work(async_io: AsyncIOModule, tmp_path: Path) -> None:
    handle = async_io.aio_handle(64 * KIB, 4)
    for index in range(8):
        handle.async_pwrite(random_bytes(1_000_000, seed=index), tmp_path / f"{index}")
        gc.collect()
    del handle
    gc.collect()
    for index in range(8):
        assert (tmp_path / f"{index}").read_bytes() == raw(random_bytes(1_000_000, seed=index))


def test_memory_in_use_is_kept_when_the_tensor_gets_other_memory(async_io: AsyncIOModule, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes([7]) * (32 << 20))
    handle = async_io.aio_handle(block_size=4096, queue_depth=1)
    buffer = torch.zeros(32 << 20, dtype=torch.uint8)
    handle.async_pread(buffer, tmp_path / "file")
    buffer.data = torch.zeros(1, dtype=torch.uint8)
    others = [torch.zeros(32 << 20, dtype=torch.uint8) for _ in range(3)]
    assert handle.wait() == 1
    assert not any(other.any() for other in (*others, buffer))


def test_autograd_notices_that_reading_changes_a_tensor(async_io: AsyncIOModule, storage: Path) -> None:
    (storage / "file").write_bytes(bytes(16))
    weight = torch.ones(4, requires_grad=True)
    loss = (weight * weight).sum()
    async_io.aio_handle().read(weight.detach(), storage / "file", False)
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


def test_module_level_functions(async_io: AsyncIOModule, storage: Path) -> None:
    data = random_bytes(100_000)
    assert async_io.aio_write(data, storage / "file", 4096, 8, False, True, True) == 0
    back = torch.zeros_like(data)
    assert async_io.aio_read(back, storage / "file", 4096, 8, True, False, True) == 0
    assert torch.equal(back, data)
    copy = torch.zeros(25_000, dtype=torch.float32)
    assert async_io.memcpy(copy, data) == 0
    assert raw(copy) == raw(data)
    assert async_io.deepspeed_memcpy(copy, torch.zeros_like(data)) == 0
    assert not copy.any()


def test_other_python_threads_run_while_one_waits(async_io: AsyncIOModule, faulty: Path) -> None:
    backing = faulty.parent / "backing"
    (backing / "busy").write_bytes(bytes(1000))
    data = torch.ones(1000, dtype=torch.uint8)
    thread = threading.Thread(target=lambda: async_io.aio_handle().read(data, faulty / "busy", False))
    thread.start()
    (backing / "released").touch()  # the read lasts until this thread has run
    thread.join()
    assert not data.any()


@pytest.mark.slow
def test_more_than_the_kernel_takes_at_once(async_io: AsyncIOModule, disk: Path) -> None:
    """A system call moves less than 2 GiB."""
    size = (5 << 29) + 12345
    if shutil.disk_usage(disk).free < 2 * size:
        pytest.skip(f"the temporary directory has less than {2 * size >> 30} GiB free")
    data = torch.arange(size // 8 + 1).view(torch.uint8)[:size]
    handle = async_io.aio_handle(3 << 30, 4, False, True, 1)
    handle.sync_pwrite(data, disk / "file", 2 * PAGE)
    assert (disk / "file").stat().st_size == 2 * PAGE + size
    back = handle.new_cpu_locked_tensor(size, data)
    handle.sync_pread(back, disk / "file", 2 * PAGE)
    (disk / "file").unlink()
    assert torch.equal(back, data)
