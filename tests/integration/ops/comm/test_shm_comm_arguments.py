"""What shm_comm refuses, and with which words; and its torch ops."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from op_builder import env
from op_builder.cpu import ShareMemCommBuilder
from op_builder.errors import AccelError, IncompatibleOpError, OpArgumentError, SharedMemoryCommError
from op_builder.ops.comm.shared_memory_group import SharedMemoryGroup
from op_builder.ops.comm.shm_comm import ShareMemCommModule, shared_memory_check
from tests.support.files import freed
from tests.support.waiting import open_files


@pytest.fixture(scope="module")
def comm() -> ShareMemCommModule:
    return ShareMemCommBuilder().load()


@pytest.fixture
def group(comm: ShareMemCommModule) -> Iterator[SharedMemoryGroup]:
    made = comm.new_group(1, 0)
    yield made
    made.close()


Call = Callable[[SharedMemoryGroup], Any]


def with_tensor(tensor: Any) -> list[Call]:
    """Each collective of a tensor."""
    return [
        lambda group: group.all_reduce(tensor),
        lambda group: group.reduced(tensor),
        lambda group: group.broadcast(tensor, 0),
        lambda group: group.reduce_scatter(torch.zeros(8), tensor),
        lambda group: group.all_gather(tensor, torch.zeros(8)),
    ]


def with_each(name: str, *arguments: Any) -> list[Call]:
    """A method called with each argument, which may be a tuple of several."""
    given = [argument if isinstance(argument, tuple) else (argument,) for argument in arguments]
    return [lambda group, each=each: getattr(group, name)(*each) for each in given]  # type: ignore[misc]


X = torch.zeros(10)
REFUSED: dict[str, list[Call]] = {
    "is on device meta": with_tensor(torch.zeros(4, device="meta")),
    "not contiguous": with_tensor(torch.zeros(4, 4)[:, ::2]),
    "layout torch.sparse_coo": with_tensor(torch.sparse_coo_tensor(size=(3,), check_invariants=False)),
    "is a list, not a tensor": with_tensor([1.0, 2.0]),
    "reaches to byte 400 of its storage, which has 0": with_each("all_reduce", freed(torch.zeros(100))),
    "lazy view": [
        *with_tensor(torch.zeros(4, dtype=torch.complex64).conj().imag),
        *with_each("broadcast", (torch.zeros(3, dtype=torch.complex64).conj(), 0)),
    ],
    "only float32, bfloat16, float16 and int32 are supported": with_each(
        "all_reduce", *(torch.zeros(4, dtype=dtype) for dtype in (torch.float64, torch.int64, torch.bool))
    ),
    "Pass one of sum, max, min, avg": with_each("all_reduce", (X, "product"), (X, None), (X, ["sum"])),
    "avg does not support int32": with_each("all_reduce", (torch.zeros(3, dtype=torch.int32), "avg")),
    "for 1 ranks": [
        *with_each(
            "reduce_scatter", (torch.zeros(3), torch.zeros(4)), (torch.zeros(4), torch.zeros(4, dtype=torch.bfloat16))
        ),
        *with_each("all_gather", (torch.zeros(3), torch.zeros(4)), (torch.zeros(4), torch.zeros(4, dtype=torch.int32))),
    ],
    "overlap": [*with_each("reduce_scatter", (X[1:5], X[2:6])), *with_each("all_gather", (X[1:5], X[2:6]))],
    "src is": with_each("broadcast", (X, -1), (X, 1), (X, True), (X, 0.0)),
    "shape is": with_each("empty_symmetric", -1, ((2, -3),), ((2.0,),), "x", None, True),
    "dtype is": with_each("empty_symmetric", (3, "float32")),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused_and_the_group_stays_usable(group: SharedMemoryGroup, message: str) -> None:
    for call in REFUSED[message]:
        with pytest.raises(OpArgumentError, match=message):
            call(group)
    assert group.all_reduce(torch.ones(2)).tolist() == [1.0, 1.0]


def test_symmetric_tensors_are_tensors(group: SharedMemoryGroup) -> None:
    x = group.empty_symmetric((3, 5), torch.bfloat16)
    assert (x.shape, x.dtype, x.count_nonzero().item()) == ((3, 5), torch.bfloat16, 0)
    with torch.device("meta"):  # a default device is for the user's own tensors
        empty = group.empty_symmetric((0, 4))
    assert (empty.shape, empty.device.type) == ((0, 4), "cpu")
    assert group.empty_symmetric(()).shape == ()
    group.close()
    assert x.add_(1).sum().item() == 15


@pytest.mark.parametrize(
    ("size", "rank"), [(0, 0), (2, 2), (2, -1), (2.0, 0), (2, "0"), (True, 0), (2, None), (5000, 0)]
)
def test_places(comm: ShareMemCommModule, size: Any, rank: Any) -> None:
    for call in (comm.new_group, comm.initialize):
        with pytest.raises(OpArgumentError, match=r"(size|rank) is"):
            call(size, rank)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), "1"])
def test_timeouts(comm: ShareMemCommModule, timeout_s: Any) -> None:
    with pytest.raises(OpArgumentError, match="timeout_s is"):
        comm.new_group(1, 0, timeout_s=timeout_s)
    with env.scope(ACCEL_COMM_TIMEOUT_S="7"):
        assert comm.new_group(1, 0).timeout_s == 7
    assert comm.new_group(1, 0, timeout_s=0.5).timeout_s == 0.5


def test_descriptors_are_closed_where_the_instruction_set_is_unknown(comm: ShareMemCommModule) -> None:
    def of_the_op() -> int:  # other threads of this process may open and close others
        return sum("accel_shm_comm" in path for path in open_files(os.getpid()))

    before = of_the_op()
    with env.scope(ACCEL_CPU_ISA="abacus"), pytest.raises(AccelError):
        comm.new_group(1, 0)
    assert of_the_op() == before


def test_no_place_to_meet(comm: ShareMemCommModule) -> None:
    with env.scope(MASTER_ADDR=None, MASTER_PORT=None), pytest.raises(OpArgumentError, match="no common store"):
        comm.new_group(2, 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_cannot_be_reached(comm: ShareMemCommModule, rank: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # no listen(): no process answers there, and none can serve there
        port = taken.getsockname()[1]
        fresh = ShareMemCommModule(comm.ops)
        with (
            env.scope(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank)),
            pytest.raises(SharedMemoryCommError, match=f"127.0.0.1:{port}, within 1 s") as caught,
        ):
            fresh.new_group(2, rank, timeout_s=1)
    assert "MASTER_PORT" in caught.value.remedy


def test_a_store_that_fails_meanwhile(comm: ShareMemCommModule) -> None:
    server = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=1), wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, None, False, timedelta(seconds=1), wait_for_workers=False)
    del server
    with pytest.raises(SharedMemoryCommError, match="store failed"):
        comm.new_group(2, 1, store=client, timeout_s=1)


def test_nobody_comes(comm: ShareMemCommModule) -> None:
    with pytest.raises(SharedMemoryCommError, match="rank 1, 2") as caught:
        comm.new_group(3, 0, store=dist.HashStore(), timeout_s=0.3)
    assert (caught.value.rank, caught.value.operation) == (1, "new_group")


def test_a_closed_group(comm: ShareMemCommModule) -> None:
    group = comm.new_group(1, 0)
    group.close()
    group.close()
    for call in (lambda: group.all_reduce(torch.zeros(2)), group.barrier, lambda: group.empty_symmetric(3)):
        with pytest.raises(OpArgumentError, match="closed"):
            call()


def test_the_op_before_it_is_initialised() -> None:
    comm = ShareMemCommModule(ShareMemCommBuilder().load().ops)
    for call in (comm.inference_all_reduce, comm.inference_all_reduce_):
        with pytest.raises(OpArgumentError, match="not initialized"):
            call(torch.zeros(2))


def test_opcheck(comm: ShareMemCommModule) -> None:
    ops = comm.ops
    memory = ops.create_segment(ops.segment_bytes())
    number = ops.open_group(0, [memory], [1], 10**9, 0, "baseline")
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(3, 5, dtype=dtype)
        torch.library.opcheck(ops.all_reduce.default, (x, number, 0))
        torch.library.opcheck(ops.all_reduce_.default, (x, number, 1))
        torch.library.opcheck(ops.reduce_scatter.default, (x.clone(), x, number, 0))
        torch.library.opcheck(ops.all_gather.default, (x.clone(), x, number))
        torch.library.opcheck(ops.broadcast_.default, (x, number, 0))


def test_fake_tensors_and_subclasses(group: SharedMemoryGroup) -> None:
    class Sub(torch.Tensor):
        pass

    with FakeTensorMode():
        fake = torch.empty(3, 4)
        assert group.reduced(fake).shape == (3, 4)
        assert group.all_reduce(fake) is fake
    assert group.all_reduce(torch.ones(3).as_subclass(Sub)).tolist() == [1.0] * 3


def test_gradients_are_not_lost_silently(group: SharedMemoryGroup) -> None:
    x = torch.ones(3, requires_grad=True)
    y = group.reduced(x * 2)
    assert y.tolist() == [2.0] * 3
    with pytest.warns(UserWarning, match="autograd kernel"):
        y.sum().backward()


def test_the_check_of_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "memfd_create(2)" in shared_memory_check()

    def refuse(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.memfd_create", refuse)
    with pytest.raises(IncompatibleOpError, match="refused: Operation not permitted"):
        shared_memory_check()
