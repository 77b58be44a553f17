"""Programs of the ranks of test_ccl_comm.py."""

from __future__ import annotations

import ctypes
import enum
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from op_builder.cpu import CCLCommBuilder
from op_builder.errors import CommunicationError, OpArgumentError
from op_builder.ops.comm.ccl_comm import CCLCommModule
from op_builder.toolchains.oneccl import find_oneccl
from tests.support.distributed_programs import OPS, expected, small_integers
from tests.support.waiting import has_ended, pid_of, wait_until, wait_until_asleep, write_pid

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
TYPES = (*FLOATS, torch.int32, torch.int64, torch.int8, torch.uint8)

FOREVER_S = 1e6
needs_oneccl = pytest.mark.skipif(
    not getattr(find_oneccl(), "version", ""), reason="needs oneCCL: the extra ccl, or CCL_ROOT"
)


class Reduction(enum.Enum):
    """Another enumeration, modelled on torch's."""

    SUM = 0


def module(rank: int, size: int, directory: str, timeout_s: float = FOREVER_S) -> CCLCommModule:
    torch.set_num_threads(1)
    loaded: CCLCommModule = CCLCommBuilder().load()
    loaded.initialize(
        size, rank, shared_address(directory, "world", loaded.get_kvs_addr(rank), size), timeout_s=timeout_s
    )
    return loaded


def shared_address(directory: str, name: str, address: list[int], size: int) -> list[int]:
    """The address that one rank has, on all of them."""
    store = dist.FileStore(str(Path(directory) / f"store_{name}"), size)
    if any(address):
        store.set("address", bytes(address))
    return list(store.get("address"))


def everything(rank: int, size: int, directory: str) -> dict[str, Any]:
    ccl = module(rank, size, directory)
    operations = dist.ReduceOp
    assert (ccl.get_rank(), ccl.get_world_size(), ccl.get_rank(0), ccl.get_world_size(None)) == (rank, size, rank, size)
    for dtype in TYPES:
        for name, op in {**OPS, "product": operations.PRODUCT}.items():
            if name == "avg" and dtype not in FLOATS:
                continue
            for numel in (1, 7, 3000):
                tensor = small_integers(rank, numel, dtype)
                ccl.all_reduce(tensor, op, 0, False)
                assert torch.allclose(tensor.double(), expected(size, numel, dtype, name).double()), (dtype, op, numel)
        for src in range(size):
            tensor = small_integers(rank, 11, dtype)
            ccl.broadcast(tensor, src, [], False)
            assert torch.equal(tensor, small_integers(src, 11, dtype)), (dtype, src)
    flags = torch.tensor([rank == 1, rank == 0])
    ccl.broadcast(flags, 1, None, False)
    assert flags.tolist() == [True, False]
    large = torch.full((3 << 20,), float(rank))
    ccl.all_reduce(large, operations.SUM)
    assert torch.equal(large, torch.full((3 << 20,), float(sum(range(size)))))
    for op in (Reduction.SUM, operations(operations.SUM), operations.SUM):
        tensor = small_integers(rank, 3, torch.float32)
        assert ccl.inference_all_reduce(tensor, op) is tensor
        assert torch.equal(tensor, expected(size, 3, torch.float32, "sum"))
    for number in range(3):  # the plan of the first is used again
        tensor = small_integers(rank, 100, torch.float32) + number
        ccl.all_reduce_caching(tensor, operations.SUM, "weights", 0, False)
        assert torch.equal(tensor, expected(size, 100, torch.float32, "sum") + number * size)
    ccl.barrier(0, False)
    _asynchronous(ccl, rank, size, directory)
    _groups(ccl, rank, size, directory)
    _refusals(ccl)
    torch.library.opcheck(
        ccl.ops.inference_all_reduce.default,
        (torch.ones(3), ccl.ops.connect(1, 0, ccl.get_sub_kvs_addr(True))[0], 0, 60000),
        test_utils=("test_schema", "test_faketensor"),
    )
    return {"collectives": ccl.get_available_coll()}


def _asynchronous(ccl: CCLCommModule, rank: int, size: int, directory: str) -> None:
    operations = dist.ReduceOp
    tensors = [small_integers(rank, 50, torch.float32) + number for number in range(8)]
    works = [ccl.all_reduce(tensor, operations.SUM, 0, **{"async": True}) for tensor in tensors]
    works.append(ccl.barrier(0, True))
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed()
    for number, tensor in enumerate(tensors):
        assert torch.equal(tensor, expected(size, 50, torch.float32, "sum") + number * size)
    # Only one rank has begun, so it cannot have finished; the other begins later.
    late = torch.ones(5)
    if rank == 0:
        work = ccl.all_reduce(late, operations.AVG, 0, True)
        assert not work.is_completed()
    store = dist.FileStore(str(Path(directory) / "turns"), size)
    store.set(f"here{rank}", "1")
    for other in range(size):
        store.get(f"here{other}")
    if rank != 0:
        work = ccl.all_reduce(late, operations.AVG, 0, True)
    work.wait()
    assert torch.equal(late, torch.ones(5))


def _groups(ccl: CCLCommModule, rank: int, size: int, directory: str) -> None:
    ranks = [size - 1, 0]  # in another order than the world has them
    if rank in ranks:
        place = ranks.index(rank)
        address = shared_address(directory, "group", ccl.get_sub_kvs_addr(place == 0), 2)
        ccl.initialize_sub_comm(2, place, torch.tensor(address, dtype=torch.uint8), ranks)
        assert (ccl.get_rank(ranks), ccl.get_world_size(ranks)) == (place, 2)
        tensor = torch.full((4,), float(rank))
        ccl.all_reduce(tensor, dist.ReduceOp.SUM, ranks, False)
        assert torch.equal(tensor, torch.full((4,), float(size - 1)))
        tensor = torch.full((4,), float(rank))
        ccl.broadcast(tensor, size - 1, ranks, False)  # by its rank in the world
        assert torch.equal(tensor, torch.full((4,), float(size - 1)))
        ccl.barrier(ranks, False)


def an_interrupted_wait(rank: int, size: int, directory: str) -> str:
    """Rank 0 waits for a rank that does not come; a signal interrupts the wait."""
    write_pid(directory, rank)
    ccl = module(rank, size, directory, timeout_s=FOREVER_S)
    ccl.barrier()
    if rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            Path(directory, "waits").touch()
            ccl.inference_all_reduce(torch.ones(3), dist.ReduceOp.SUM)
        except KeyboardInterrupt:
            Path(directory, "interrupted").touch()
            return "KeyboardInterrupt"
    wait_until(Path(directory, "waits").exists)
    wait_until_asleep(pid_of(directory, 0))
    os.kill(pid_of(directory, 0), signal.SIGINT)
    wait_until(Path(directory, "interrupted").exists)
    return ""


def _refusals(ccl: CCLCommModule) -> None:
    one = torch.ones(4)
    calls = [
        lambda: ccl.all_reduce(torch.ones(4, 4).t(), dist.ReduceOp.SUM),
        lambda: ccl.all_reduce(torch.ones(2, dtype=torch.complex64), dist.ReduceOp.SUM),
        lambda: ccl.all_reduce(torch.ones(2, device="meta"), dist.ReduceOp.SUM),
        lambda: ccl.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG),
        lambda: ccl.all_reduce(one, dist.ReduceOp.BAND),
        lambda: ccl.all_reduce(one, dist.ReduceOp.SUM, [0, 77]),
        lambda: ccl.all_reduce(one, dist.ReduceOp.SUM, 5),
        lambda: ccl.broadcast(one, 77),
        lambda: ccl.initialize(2, 0, [0] * 256),
        lambda: ccl.initialize(2, 0, [1] * 3),
        lambda: ccl.initialize(2, 2, [1] * 256),
        lambda: ccl.initialize_sub_comm(2, 0, [1] * 256, [0, 0]),
    ]
    for call in calls:
        with pytest.raises(OpArgumentError) as caught:
            call()
        assert caught.value.remedy


def a_rank_dies(rank: int, size: int, directory: str) -> None:
    """Rank 1 calls a collective whose peer is killed in the meantime, times out, and exits."""
    write_pid(directory, rank)
    ccl = module(rank, size, directory)
    called = Path(directory, "called")
    ccl.barrier()
    if rank == 0:
        wait_until(called.exists)
        os.kill(os.getpid(), signal.SIGKILL)
    work = ccl.all_reduce(torch.ones(3), dist.ReduceOp.SUM, 0, True)
    time.sleep(0.5)  # its thread is in oneCCL
    called.touch()
    wait_until(lambda: has_ended(pid_of(directory, 0)))
    ctypes.CDLL(None).printf(b"kept by the C library until the end")
    with pytest.raises(CommunicationError, match="within 2 s") as first:
        work.wait(timeout_s=2)
    with pytest.raises(CommunicationError) as second:
        ccl.barrier()
    assert str(second.value) == str(first.value)  # the communicator is lost


def a_compiled_all_reduce_times_out(rank: int, size: int, directory: str) -> bool:
    """oneCCL may write to the tensor of rank 0 after the timeout, when nothing else refers to it."""
    write_pid(directory, rank)
    ccl = module(rank, size, directory)
    late = Path(directory, "late")
    ccl.barrier()
    assert ccl._world is not None
    ccl._world.timeout_s = 2  # not before: the ranks meet in any time
    if rank == 1:
        wait_until(late.exists)
        ccl.all_reduce(torch.ones(1 << 20), dist.ReduceOp.SUM, 0, True).wait(60)
        return True
    tensor = torch.ones(1 << 20)
    address = tensor.data_ptr()
    compiled = torch.compile(lambda x: ccl.inference_all_reduce(x, dist.ReduceOp.SUM), backend="aot_eager")
    with pytest.raises(RuntimeError, match="did not finish"):
        compiled(tensor)
    del tensor, compiled
    fresh = [torch.zeros(1 << 20) for _ in range(8)]
    late.touch()
    wait_until(lambda: has_ended(pid_of(directory, 1)))
    return all(x.data_ptr() != address and not x.any() for x in fresh)


def a_rank_does_not_come(rank: int, size: int, directory: str) -> None:
    message = r"meeting on rank 0 of 2 did not finish within 3 s(.|\n)*CCL_KVS_IFACE"
    if rank == 0:
        with pytest.raises(CommunicationError, match=message):
            module(rank, size, directory, timeout_s=3)
