"""Tensors to and from files: every way of asking, every engine, byte by byte."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies

from op_builder.ops.io.aio_handle import Handle
from op_builder.ops.io.async_io import AsyncIOModule
from op_builder.system import storage_engines

ENGINES = [engine.name for engine in storage_engines.storage_engines() if engine.refusal is None]
KIB = 1 << 10
PAGE = os.sysconf("SC_PAGESIZE")
# Around what the engine decides by: pages, blocks (64 KiB here), a bounce buffer, shares of several threads.
SIZES = (0, 1, 511, 512, PAGE - 1, PAGE, PAGE + 1, 64 * KIB, 3 * 64 * KIB + 13, (1 << 20) + PAGE, 5 * (1 << 20) + 4097)
OFFSETS = (0, 3, PAGE, 2 * PAGE + 511)


def bytes_of(size: int, seed: int = 0, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (size * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return data.view(dtype)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.view(-1).view(torch.uint8).numpy().tobytes()


def guarded(like: torch.Tensor, shift: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor of the same size at an odd address, and the memory around it, all of it 0xA5."""
    around = torch.full((like.nbytes + 4096,), 0xA5, dtype=torch.uint8)
    at = 1024 + (-around.data_ptr()) % 512 + shift
    return around[at : at + like.nbytes].view(like.dtype), around


def is_untouched(around: torch.Tensor, inside: torch.Tensor) -> bool:
    at = inside.data_ptr() - around.data_ptr()
    outside = torch.cat([around[:at], around[at + inside.nbytes :]])
    return bool((outside == 0xA5).all())


HANDLES = [
    pytest.param(engine, single, overlap, threads, id=f"{engine}-{single=}-{overlap=}-{threads=}".replace("=", ""))
    for engine, single, overlap, threads in itertools.product(ENGINES, (False, True), (False, True), (1, 3))
]


@pytest.mark.parametrize(("engine", "single", "overlap", "threads"), HANDLES)
def test_every_size_and_offset_comes_back_and_nothing_else_changes(
    async_io: AsyncIOModule, storage: Path, engine: str, single: bool, overlap: bool, threads: int
) -> None:
    handle = async_io.aio_handle(64 * KIB, 8, single, overlap, threads, engine=engine)
    path = storage / "file"
    for size, offset in itertools.product(SIZES, OFFSETS):
        data = bytes_of(size, seed=size + offset)
        path.write_bytes(b"\x5a" * (offset + size + 777))
        assert handle.sync_pwrite(data, path, offset) == 1
        found = path.read_bytes()
        assert found[:offset] == b"\x5a" * offset
        assert found[offset : offset + size] == raw(data)
        assert found[offset + size :] == b"\x5a" * 777
        back, around = guarded(data, shift=64)
        assert handle.sync_pread(back, path, offset) == 1
        assert same_bytes(back, data)
        assert is_untouched(around, back)


WAYS = ("read", "pread", "pread async", "sync_pread", "async_pread")


def transfer(handle: Handle, way: str, buffer: torch.Tensor, path: Any, offset: int, validate: bool) -> None:
    """One transfer, with what it is to return checked."""
    name, _, is_background = way.partition(" ")
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


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_every_way_of_asking(
    async_io: AsyncIOModule, storage: Path, engine: str, way: str, pinned: bool, dtype: torch.dtype
) -> None:
    handle = async_io.aio_handle(64 * KIB, 4, False, True, 2, engine=engine)
    path = storage / "file"
    for count, validate in ((0, False), (1, True), (50_001, False), (700_000, True)):
        data = bytes_of(count, dtype=dtype)
        source = handle.new_cpu_locked_tensor(count, data).copy_(data) if pinned else data
        target = handle.new_cpu_locked_tensor(count, data) if pinned else torch.zeros_like(data)
        # NaNs in the bytes: compared as bytes below.
        source.view(torch.uint8).copy_(data.view(torch.uint8))
        transfer(handle, way.replace("read", "write"), source, path, 5, validate)
        assert path.read_bytes()[5 : 5 + data.nbytes] == raw(data)
        transfer(handle, way, target, path, 5, validate)
        assert same_bytes(target, data)
        path.unlink()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_all_combinations_of_settings_and_ways(
    async_io: AsyncIOModule, disk: Path, engine: str, dtype: torch.dtype
) -> None:
    """Each way of submitting with each of asking: what one does well it may do badly with another."""
    flags = (False, True)
    for single, overlap, threads in itertools.product(flags, flags, (1, 3)):
        handle = async_io.aio_handle(16 * KIB, 4, single, overlap, threads, engine=engine)
        for pinned, way, (count, offset) in itertools.product(
            flags, ("read", "sync_pread", "async_pread"), ((0, 3), (1023, 1), (100_003, PAGE - 3))
        ):
            data = bytes_of(count, seed=count + offset, dtype=dtype)
            source, target = data.clone(), torch.zeros_like(data)
            if pinned:
                source, target = (handle.new_cpu_locked_tensor(count, data) for _ in range(2))
                source.view(torch.uint8).copy_(data.view(torch.uint8))
            transfer(handle, way.replace("read", "write"), source, disk / "file", offset, False)
            assert (disk / "file").read_bytes()[offset : offset + data.nbytes] == raw(data)
            transfer(handle, way, target, disk / "file", offset, False)
            assert same_bytes(target, data)
            (disk / "file").unlink()


@hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    engine=strategies.sampled_from(ENGINES),
    block=strategies.sampled_from([1, 4096, 5000, 64 * KIB, 1 << 20]),
    depth=strategies.integers(1, 9),
    flags=strategies.tuples(strategies.booleans(), strategies.booleans()),
    threads=strategies.integers(1, 4),
    pieces=strategies.lists(
        strategies.tuples(strategies.integers(0, 300_000), strategies.integers(0, 20_000)),
        min_size=1,
        max_size=6,
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
        data.copy_(bytes_of(size, seed=index))
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
        assert same_bytes(target, data)
        assert is_untouched(around, target)


@pytest.mark.parametrize("engine", ENGINES)
def test_whole_pages_go_past_the_page_cache_and_edges_through_it(
    async_io: AsyncIOModule, disk: Path, engine: str
) -> None:
    handle = async_io.aio_handle(64 * KIB, 8, engine=engine)
    data = handle.new_cpu_locked_tensor(10 * PAGE, torch.empty(0, dtype=torch.uint8))
    handle.write(data[: 8 * PAGE], disk / "file", False)
    counters = handle.counters()
    assert (counters.direct_bytes, counters.cached_bytes, counters.bounced_bytes) == (8 * PAGE, 0, 0)
    handle.write(data[: 3 * PAGE + 7], disk / "file", False, PAGE - 5)  # the address does not go with the offset
    counters = handle.counters()
    assert (counters.direct_bytes, counters.cached_bytes) == (8 * PAGE + 3 * PAGE, 5 + 2)
    assert counters.bounced_bytes == 3 * PAGE
    handle.write(data[PAGE - 5 : 2 * PAGE], disk / "file", False, PAGE - 5)
    assert handle.counters().bounced_bytes == 3 * PAGE


def device_read_bytes() -> int:
    """What this process has had devices read so far, page caches left out."""
    (line,) = (line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("read_bytes:"))
    return int(line.split()[1])


@pytest.mark.skipif(not os.access("/proc/self/io", os.R_OK), reason="the system does not tell what devices read")
@pytest.mark.parametrize("size", [1000, PAGE + 1000], ids=["part of a page", "a page and a part"])
@pytest.mark.parametrize("is_write", [True, False], ids=["write", "read"])
def test_validation_compares_what_the_device_has(
    async_io: AsyncIOModule, disk: Path, size: int, is_write: bool
) -> None:
    path, data = disk / "file", bytes_of(size)
    path.write_bytes(raw(data))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = device_read_bytes()
        file.read()
    if device_read_bytes() == before:
        pytest.skip("no device reads this file system")
    handle = async_io.aio_handle()
    with path.open("r+b") as file:  # what is written so the device does not have at once
        file.write(raw(data))
    before = device_read_bytes()
    if is_write:
        handle.write(data, path, True)
    else:
        handle.read(torch.zeros_like(data), path, True)
    assert device_read_bytes() - before >= size


@pytest.mark.parametrize("engine", ENGINES)
def test_single_submit_is_a_call_for_each_command(async_io: AsyncIOModule, disk: Path, engine: str) -> None:
    data = bytes_of(64 * PAGE)
    told = {}
    for single in (False, True):
        handle = async_io.aio_handle(PAGE, 16, single, False, engine=engine)
        handle.write(data, disk / "file", False)
        told[single] = handle.counters()
    assert told[True].commands == told[False].commands == 64
    assert told[True].submissions == 64
    assert told[False].submissions == 64 / 16


@pytest.mark.parametrize("engine", ENGINES)
def test_overlap_events_begins_new_commands_while_others_are_in_flight(
    async_io: AsyncIOModule, disk: Path, engine: str
) -> None:
    data = bytes_of(512 * PAGE)
    told = {}
    for overlap in (False, True):
        handle = async_io.aio_handle(PAGE, 8, False, overlap, engine=engine)
        for _ in range(50):  # on a busy machine all that are in flight may be complete when one is asked for
            handle.write(data, disk / "file", False)
            told[overlap] = handle.counters()
            if told[overlap].overlapped:
                break
    assert told[False].overlapped == 0
    assert told[True].overlapped > 0
    assert max(told[False].most_in_flight, told[True].most_in_flight) <= 8


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads cannot be counted")
@pytest.mark.parametrize("engine", ENGINES)
def test_threads_share_one_request(async_io: AsyncIOModule, disk: Path, engine: str) -> None:
    data = async_io.aio_handle().new_cpu_locked_tensor(4 << 20, torch.empty(0, dtype=torch.uint8))
    commands = {}
    for threads in (1, 4):
        before = len(os.listdir("/proc/self/task"))
        handle = async_io.aio_handle(4 << 20, 4, False, False, threads, engine=engine)
        handle.sync_pwrite(data, disk / "file")
        assert len(os.listdir("/proc/self/task")) >= before + threads
        commands[threads] = handle.counters().commands  # blocks are as large as the whole
        handle.write(data, disk / "file", False)
        assert handle.counters().commands == commands[threads] + 1  # which one thread does
        del handle  # its threads are not to be counted with the next one's
    assert commands == {1: 1, 4: 4}


@pytest.mark.parametrize("engine", ENGINES)
def test_many_operations_are_in_flight_together(async_io: AsyncIOModule, storage: Path, engine: str) -> None:
    handle = async_io.aio_handle(64 * KIB, 32, False, True, 2, engine=engine)
    tensors = [bytes_of(3000 + index, seed=index) for index in range(300)]
    for index, tensor in enumerate(tensors):
        handle.async_pwrite(tensor, storage / f"{index}")
    assert handle.wait() == 300
    back = [torch.zeros_like(tensor) for tensor in tensors]
    for index, tensor in enumerate(back):
        handle.async_pread(tensor, storage / f"{index}")
    assert handle.wait() == 300
    assert all(map(torch.equal, tensors, back))


def test_wait_counts_what_has_finished_since_the_last(async_io: AsyncIOModule, storage: Path) -> None:
    handle = async_io.aio_handle()
    assert handle.wait() == 0
    for _ in range(3):
        handle.async_pwrite(torch.ones(10), storage / "file")
    handle.sync_pwrite(torch.ones(10), storage / "other")  # which is not one of them
    assert handle.wait() == 3
    assert handle.wait() == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_descriptors_are_taken_like_names(async_io: AsyncIOModule, storage: Path, engine: str) -> None:
    handle = async_io.aio_handle(engine=engine)
    data = bytes_of(200_001)
    for extra in (0, getattr(os, "O_DIRECT", 0)):
        try:
            descriptor = os.open(storage / "file", os.O_RDWR | os.O_CREAT | extra)
        except OSError:  # a file system without O_DIRECT
            continue
        handle.sync_pwrite(data, descriptor, 11)
        back = torch.zeros_like(data)
        handle.async_pread(back, descriptor, 11)
        handle.wait()
        assert torch.equal(back, data)
        os.fstat(descriptor)  # it is still ours
        os.close(descriptor)


def test_a_descriptor_that_appends_is_written_where_asked(async_io: AsyncIOModule, storage: Path) -> None:
    (storage / "file").write_bytes(bytes(10_000))
    with open(storage / "file", "ab") as file:
        async_io.aio_handle().write(torch.full((4,), 7, dtype=torch.uint8), file.fileno(), False, 2)
    assert (storage / "file").read_bytes() == b"\0\0\7\7\7\7" + bytes(9_994)


def test_file_names_of_any_kind(async_io: AsyncIOModule, storage: Path) -> None:
    handle = async_io.aio_handle()
    for name in (
        str(storage / "text"),
        os.fsencode(storage / "bytes"),
        storage / "päth",
        os.fsencode(storage) + b"/\xff",
    ):
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


@pytest.mark.parametrize("engine", ENGINES)
def test_several_handles_and_threads(async_io: AsyncIOModule, storage: Path, engine: str) -> None:
    shared = async_io.aio_handle(64 * KIB, 8, False, True, 2, engine=engine)
    problems = []

    def work(index: int) -> None:
        own = async_io.aio_handle(64 * KIB, 8, engine=engine)
        data = bytes_of(300_000 + index, seed=index)
        for handle in (own, shared) * 5:
            back = torch.zeros_like(data)
            handle.sync_pwrite(data, storage / f"{index}")
            handle.sync_pread(back, storage / f"{index}")
            if not torch.equal(back, data):
                problems.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_buffers_stay_alive_until_they_are_done_with(async_io: AsyncIOModule, storage: Path) -> None:
    handle = async_io.aio_handle(64 * KIB, 4)
    for index in range(8):
        handle.async_pwrite(bytes_of(1_000_000, seed=index), storage / f"{index}")
        gc.collect()
    handle.wait()
    for index in range(8):
        assert (storage / f"{index}").read_bytes() == raw(bytes_of(1_000_000, seed=index))


def test_a_handle_with_work_in_flight_finishes_it_when_destroyed(async_io: AsyncIOModule, storage: Path) -> None:
    handle = async_io.aio_handle(64 * KIB, 4)
    data = bytes_of(8_000_000)
    handle.async_pwrite(data, storage / "file")
    del handle
    gc.collect()
    assert (storage / "file").read_bytes() == raw(data)


def test_reading_is_a_change_that_autograd_notices(async_io: AsyncIOModule, storage: Path) -> None:
    handle = async_io.aio_handle()
    (storage / "file").write_bytes(bytes(16))
    weight = torch.ones(4, requires_grad=True)
    loss = (weight * weight).sum()
    handle.read(weight.detach(), storage / "file", False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_module_level_functions(async_io: AsyncIOModule, storage: Path) -> None:
    data = bytes_of(100_000)
    assert async_io.aio_write(data, storage / "file", 4096, 8, False, True, True) == 0
    back = torch.zeros_like(data)
    assert async_io.aio_read(back, storage / "file", 4096, 8, True, False, True) == 0
    assert torch.equal(back, data)
    copy = torch.zeros(25_000, dtype=torch.float32)
    assert async_io.memcpy(copy, data) == 0
    assert same_bytes(copy, data)
    assert async_io.deepspeed_memcpy(copy, torch.zeros_like(data)) == 0
    assert not copy.any()


def test_other_python_threads_run_while_one_waits(async_io: AsyncIOModule, faulty: Path) -> None:
    (faulty / "slow").write_bytes(bytes(1000))
    handle = async_io.aio_handle()
    done = threading.Event()

    def read() -> None:
        handle.read(torch.zeros(1000, dtype=torch.uint8), faulty / "slow", False)
        done.set()

    thread = threading.Thread(target=read)
    started = time.monotonic()
    thread.start()
    ticks = 0
    while not done.is_set():
        ticks += 1
        time.sleep(0.01)
    thread.join()
    assert time.monotonic() - started > 0.9  # the file takes a second
    assert ticks > 20


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_more_than_the_kernel_takes_at_once(async_io: AsyncIOModule, disk: Path, engine: str) -> None:
    """No system call moves more than some bytes below 2 GiB."""
    size = (5 << 29) + 12345
    if shutil.disk_usage(disk).free < 2 * size:
        pytest.skip(f"the temporary directory has less than {2 * size >> 30} GiB free")
    data = torch.arange(size // 8 + 1).view(torch.uint8)[:size]
    handle = async_io.aio_handle(3 << 30, 4, False, True, 1, engine=engine)
    handle.sync_pwrite(data, disk / "file", 2 * PAGE)
    assert (disk / "file").stat().st_size == 2 * PAGE + size
    back = handle.new_cpu_locked_tensor(size, data)
    handle.sync_pread(back, disk / "file", 2 * PAGE)
    (disk / "file").unlink()
    assert torch.equal(back, data)
