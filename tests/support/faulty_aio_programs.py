"""Programs of test_async_io_faults.py: each runs in a process of its own, in which system calls fail."""

from __future__ import annotations

import errno
import logging
import os
import resource
import sys
from itertools import product

import torch

from op_builder import env
from op_builder.cpu import AsyncIOBuilder
from op_builder.errors import IncompatibleOpError, StorageError
from op_builder.ops.io import aio_handle
from op_builder.ops.io.aio_handle import Handle
from op_builder.ops.io.async_io import AsyncIOModule


def opened() -> AsyncIOModule:
    loaded: AsyncIOModule = AsyncIOBuilder().load()
    return loaded


def made(engine: str | None = None, single: bool = False, overlap: bool = True) -> Handle:
    return opened().aio_handle(8192, 8, single, overlap, 2, engine=engine)


def transfer(handle: Handle, path: str, size: int) -> None:
    data, back = torch.randint(0, 256, (size,), dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    handle.sync_pwrite(data, path, 3)
    handle.pread(back, path, True, False, 3)
    assert torch.equal(back, data)


def transfers(path: str, *engines: str) -> None:
    for period, engine, (single, overlap) in product("13", engines, ((False, False), (True, True), (False, True))):
        os.environ["FAULTY_PERIOD"] = period
        transfer(made(engine, single, overlap), path, 400_003)


def one_transfer(path: str) -> None:
    transfer(made(), path, 400_003)


def chosen() -> None:
    aio = opened()
    print("engine", aio.aio_handle().engine, aio.rejected_engines())


def cached(path: str) -> None:
    handle = made("threads")
    handle.sync_pwrite(torch.ones(400_003, dtype=torch.uint8), path)
    counters = handle.counters()
    print("counted", counters.direct_bytes, counters.bounced_bytes, counters.cached_bytes, counters.retries > 0)


def stalled(path: str) -> Handle:
    aio_handle.STALLED_S = 0.5
    handle = opened().aio_handle(engine="threads")
    os.environ["FAULTY_REFUSED"] = "progress"
    handle.async_pwrite(torch.ones(3), path)
    return handle


def overlaps(path: str, engine: str) -> None:
    data = torch.randint(0, 256, (512 * 4096,), dtype=torch.uint8)
    for overlap in (False, True):
        handle = opened().aio_handle(4096, 8, False, overlap, engine=engine)
        for _ in range(50):  # on a busy machine all commands in flight may be complete when one is collected
            handle.sync_pwrite(data, path)
            if handle.counters().overlapped:
                break
        print("overlapped", bool(handle.counters().overlapped), handle.counters().most_in_flight <= 8)


def full(path: str, engine: str) -> None:
    handle = opened().aio_handle(queue_depth=16, engine=engine)
    os.environ["FAULTY_REFUSED"] = "full"
    for number in range(16):
        handle.async_pwrite(torch.ones(3), f"{path}{number}")
    try:
        handle.wait()
    except StorageError as error:
        print("failures", 1 + len(error.others))
    print("submissions", handle.counters().submissions)


def refused_later(path: str, engine: str) -> None:
    handle = opened().aio_handle(engine=engine)
    os.environ["FAULTY_REFUSED"] = "commands"
    try:
        handle.sync_pwrite(torch.ones(3), path)
    except StorageError as error:
        print(error.errno == errno.EPERM, error.remedy)


def too_large(path: str) -> None:
    handle = opened().aio_handle()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    try:
        handle.sync_pwrite(torch.ones(1 << 20), path)
    except StorageError as error:
        print(error.errno == errno.EFBIG, os.stat(path).st_size, os.stat(path).st_blocks)
    print(handle.sync_pwrite(torch.ones(1 << 18), path))


def forced() -> None:
    with env.scope(ACCEL_AIO_ENGINE=None):
        handle = opened().aio_handle
    for make in (lambda: opened().aio_handle(), handle):
        try:
            print(make().engine)
        except IncompatibleOpError as error:
            print("REFUSED", error)


def locked() -> None:
    handle = opened().aio_handle()
    tensor, _ = (handle.new_cpu_locked_tensor(5000, torch.zeros(1)) for _ in range(2))
    print(handle.is_pinned(tensor), tensor.data_ptr() % 4096)


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
    kept = globals()[sys.argv[1]](*sys.argv[2:])  # until the process ends
