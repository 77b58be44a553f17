"""What the ranks of test_distributed*.py run."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import op_builder.ops.distributed as accel
from op_builder.errors import CommunicationError

REDUCIBLE = (torch.float32, torch.bfloat16, torch.float16, torch.int32)
MOVED = (
    *(torch.int64, torch.float64, torch.uint8, torch.bool, torch.int16, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)
TIMEOUT = timedelta(seconds=60)


def start(backend: str, rank: int, size: int, directory: str, timeout: timedelta = TIMEOUT) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(directory) / "store"), size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def require(is_so: Callable[[], bool]) -> None:
    """Return when it is so; fail when it is not for a minute."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def small_integers(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Values whose sums every type holds exactly, other ones on each rank."""
    return (torch.arange(numel) % 7 - 3 + rank).to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """For types that torch does not compare."""
    return tensor.reshape(-1).view(torch.uint8)


def expected(size: int, numel: int, dtype: torch.dtype, op: str) -> torch.Tensor:
    every = torch.stack([small_integers(rank, numel, torch.float64) for rank in range(size)])
    reduced = {"sum": every.sum(0), "avg": every.mean(0), "max": every.amax(0), "min": every.amin(0)}[op]
    return reduced.to(dtype)


OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def all_collectives(rank: int, size: int, directory: str, backend: str = "accel") -> dict[str, Any]:
    """Each collective through torch's functions, against what it is to give; and what the group counted."""
    start(backend, rank, size, directory)
    for dtype in REDUCIBLE:
        for name, op in OPS.items():
            if dtype == torch.int32 and name == "avg":
                continue  # not a whole number
            for numel in (1, 7, 5000):
                tensor = small_integers(rank, numel, dtype)
                dist.all_reduce(tensor, op)
                assert torch.equal(tensor, expected(size, numel, dtype, name)), (dtype, name, numel)
                out = torch.empty(numel, dtype=dtype)
                dist.reduce_scatter_tensor(out, small_integers(rank, numel * size, dtype), op)
                mine = expected(size, numel * size, dtype, name)[rank * numel : (rank + 1) * numel]
                assert torch.equal(out, mine), (dtype, name, numel)
    for dtype in (*REDUCIBLE, *MOVED):
        mine = small_integers(rank, 9, dtype)
        every = torch.stack([small_integers(other, 9, dtype) for other in range(size)])
        whole = torch.empty(size * 9, dtype=dtype)
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(bits(whole), bits(every)), dtype
        listed = [torch.empty(9, dtype=dtype) for _ in range(size)]
        dist.all_gather(listed, mine)
        assert torch.equal(bits(torch.stack(listed)), bits(every)), dtype
        for src in range(size):
            sent = mine.clone()
            dist.broadcast(sent, src)
            assert torch.equal(bits(sent), bits(every[src])), (dtype, src)
    large = torch.full((5,), 40_000.0, dtype=torch.float16)  # two of them are too many for the type
    dist.all_reduce(large, dist.ReduceOp.AVG)
    assert large.tolist() == [40_000.0] * 5
    # Rounded once: 2048 + 1 + 1 is a number of the type, 2048 + 1 is none.
    odd = torch.full((5,), 2048.0 if rank == 0 else 1.0, dtype=torch.float16)
    dist.all_reduce(odd)
    assert torch.equal(odd, torch.full((5,), 2048.0 + size - 1).half())
    listed = list(small_integers(rank, 6 * size, torch.float32).view(size, 6).unbind())
    out = torch.empty(6)
    dist.reduce_scatter(out, listed)
    assert torch.equal(out, expected(size, 6 * size, torch.float32, "sum").view(size, 6)[rank])
    crossed = torch.arange(12.0).view(3, 4).t() + rank  # not contiguous
    dist.all_reduce(crossed)
    assert torch.equal(crossed, torch.arange(12.0).view(3, 4).t() * size + sum(range(size)))
    empty = torch.empty(0)
    dist.all_reduce(empty)
    dist.barrier()
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert [item["rank"] for item in objects] == list(range(size))
    told = _counts(backend)
    group = dist.group.WORLD
    if isinstance(group, accel.AccelProcessGroup):
        told["hosts"] = [list(ranks) for ranks in group.layout.hosts]
    dist.barrier()
    dist.destroy_process_group()
    return told


def several(rank: int, size: int, directory: str, names: list[str]) -> dict[str, Any]:
    """Functions of this file, one after another, each with a default group of its own."""
    told = {}
    for name in names:
        place = Path(directory, name)
        place.mkdir(exist_ok=True)
        told[name] = globals()[name](rank, size, str(place))
    return told


def _counts(backend: str) -> dict[str, Any]:
    if backend != "accel":
        return {}
    counts = accel.collective_counts()
    return {"ours": dict(counts.ours), "gloo": dict(counts.gloo)}


def what_gloo_does(rank: int, size: int, directory: str) -> dict[str, Any]:
    """What is not covered, and comes out right all the same."""
    start("accel", rank, size, directory)
    doubles = torch.full((5,), rank + 1.0, dtype=torch.float64)
    dist.all_reduce(doubles)
    assert torch.equal(doubles, torch.full((5,), size * (size + 1) / 2, dtype=torch.float64))
    product = torch.full((3,), 2.0)
    dist.all_reduce(product, dist.ReduceOp.PRODUCT)
    assert torch.equal(product, torch.full((3,), 2.0**size))
    gathered = [torch.empty(2) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), gathered, dst=0)
    if gathered is not None:
        assert [tensor[0].item() for tensor in gathered] == list(range(size))
    part = torch.empty(2)
    dist.scatter(part, [torch.full((2,), float(other)) for other in range(size)] if rank == 0 else None, src=0)
    assert part[0].item() == rank
    total = torch.ones(4)
    dist.reduce(total, dst=0)
    if rank == 0:
        assert torch.equal(total, torch.full((4,), float(size)))
    swapped = torch.empty(size)
    dist.all_to_all_single(swapped, torch.arange(float(size)) + 10 * rank)
    assert swapped.tolist() == [10.0 * other + rank for other in range(size)]
    if rank == 0:
        dist.send(torch.tensor([3.0]), 1)
    elif rank == 1:
        received = torch.empty(1)
        dist.recv(received, 0)
        assert received.item() == 3
    told = _counts("accel")
    dist.barrier()
    dist.destroy_process_group()
    return told


def method_names(rank: int, size: int, directory: str) -> dict[str, Any]:
    """The methods of the group under every name that torch has had for them, and in every form."""
    start("accel", rank, size, directory)
    group = dist.group.WORLD
    assert group is not None
    mine = small_integers(rank, 4, torch.float32)
    total = expected(size, 4, torch.float32, "sum")
    every = torch.cat([small_integers(other, 4, torch.float32) for other in range(size)])
    calls: list[tuple[str, Callable[[], Any], Callable[[], bool]]] = []

    def add(name: str, call: Callable[[], Any], check: Callable[[], bool]) -> None:
        calls.append((name, call, check))

    for form in ([dist.ReduceOp.SUM], [], [dist.AllreduceOptions()]):
        tensor = mine.clone()
        add("allreduce", lambda t=tensor, f=form: group.allreduce([t], *f), lambda t=tensor: torch.equal(t, total))
    single = mine.clone()
    add("allreduce", lambda: group.allreduce(single), lambda: torch.equal(single, total))
    pair = [mine.clone(), mine.clone()]
    add("allreduce_coalesced", lambda: group.allreduce_coalesced(pair), lambda: torch.equal(pair[1], total))
    sent = mine.clone()
    add("broadcast", lambda: group.broadcast(sent, 0), lambda: torch.equal(sent, every[:4]))
    for name in ("all_gather_single", "_allgather_base"):
        whole = torch.empty(4 * size)
        add(name, lambda n=name, w=whole: getattr(group, n)(w, mine), lambda w=whole: torch.equal(w, every))
    for name in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        wholes = [torch.empty(4 * size), torch.empty(4 * size)]
        add(
            name,
            lambda n=name, w=wholes: getattr(group, n)(w, [mine, mine]),
            lambda w=wholes: torch.equal(w[1], every),
        )
    nested = [[torch.empty(4) for _ in range(size)]]
    add("allgather", lambda: group.allgather(nested, [mine]), lambda: torch.equal(torch.cat(nested[0]), every))
    flat = [torch.empty(4) for _ in range(size)]
    add("allgather", lambda: group.allgather(flat, mine), lambda: torch.equal(torch.cat(flat), every))
    source = small_integers(rank, 4 * size, torch.float32)
    part = expected(size, 4 * size, torch.float32, "sum")[4 * rank : 4 * rank + 4]
    for name in ("reduce_scatter_single", "_reduce_scatter_base"):
        out = torch.empty(4)
        options = dist.ReduceScatterOptions()
        add(
            name,
            lambda n=name, o=out, given=options: getattr(group, n)(o, source, given),
            lambda o=out: torch.equal(o, part),
        )
    for name in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
        outs = [torch.empty(4)]
        add(name, lambda n=name, o=outs: getattr(group, n)(o, [source]), lambda o=outs: torch.equal(o[0], part))
    cut = list(source.view(size, 4).unbind())
    own = torch.empty(4)
    add("reduce_scatter", lambda: group.reduce_scatter([own], [cut]), lambda: torch.equal(own, part))
    add("barrier", lambda: group.barrier(), lambda: True)
    for name, call, check in calls:
        before = sum(accel.collective_counts().ours.values())
        call().wait()
        assert check(), name
        assert sum(accel.collective_counts().ours.values()) == before + 1, name
    told = _counts("accel")
    dist.barrier()
    dist.destroy_process_group()
    return told


def asynchronous(rank: int, size: int, directory: str) -> bool:
    """Works: in order, with futures, polled, and while the other ranks wait for something else."""
    start("accel", rank, size, directory)
    tensors = [torch.full((100,), float(number + rank)) for number in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    sync = torch.ones(3)
    dist.all_reduce(sync)  # behind them
    assert torch.equal(sync, torch.full((3,), float(size)))
    for number, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
        assert work.is_completed()
        assert work.wait()
        assert torch.equal(tensor, torch.full((100,), float(number * size + sum(range(size)))))
    polled = torch.ones(1000)
    work = dist.all_reduce(polled, async_op=True)
    future = work.get_future()
    assert torch.equal(future.wait()[0], torch.full((1000,), float(size)))
    assert work.is_completed()
    assert work.is_success()
    assert torch.equal(work.get_future().then(lambda done: done.value()[0] * 2).wait(), polled * 2)
    # Rank 0 begins a collective and goes on; rank 1 takes part only when it has got what rank 0 sends after that.
    late = torch.ones(10)
    if rank == 0:
        work = dist.all_reduce(late, async_op=True)
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.empty(1), 0)
        work = dist.all_reduce(late, async_op=True)
    work.wait()
    assert torch.equal(late, torch.full((10,), float(size)))
    dist.barrier()
    dist.destroy_process_group()
    return True


def groups(rank: int, size: int, directory: str) -> list[Any]:
    """Subsets of ranks, several groups of the same ranks, a device mesh, and everything once more."""
    told = []
    for attempt in range(2):
        place = Path(directory, str(attempt))
        place.mkdir(exist_ok=True)
        start("accel", rank, size, str(place))
        subset = dist.new_group([0, size - 1])
        if rank in (0, size - 1):
            tensor = torch.ones(5)
            dist.all_reduce(tensor, group=subset)
            assert torch.equal(tensor, torch.full((5,), 2.0))
            assert dist.get_backend(subset) == "accel"
            told.append(sum(accel.collective_counts(subset).ours.values()))
        twin = dist.new_group(list(range(size)))
        first, second = torch.ones(4), torch.full((4,), 2.0)
        works = [dist.all_reduce(first, group=twin, async_op=True), dist.all_reduce(second, async_op=True)]
        for work in works:
            work.wait()
        assert torch.equal(first * 2, second)
        dist.barrier(twin)
        dist.destroy_process_group(twin)
        mesh = dist.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("outer", "inner"))
        line = mesh.get_group("inner")
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=line)
        inner = size // 2
        assert tensor[0].item() == sum(range(rank // inner * inner, (rank // inner + 1) * inner))
        dist.barrier()
        dist.destroy_process_group()
    return told


def made_again(rank: int, size: int, directory: str) -> list[list[float]]:
    """The default group is made, destroyed and made again, on one store; the last rank is late."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(directory) / "store"), size)
    told = []
    for _ in range(2):
        timeout = timedelta(seconds=20)
        dist.init_process_group("accel", store=store, rank=rank, world_size=size, timeout=timeout)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        doubles = torch.ones(1, dtype=torch.float64)
        dist.all_reduce(doubles)  # by gloo
        told.append([*tensor.tolist(), *doubles.tolist()])
        dist.barrier()
        dist.destroy_process_group()
        if rank == size - 1:
            time.sleep(2)
    return told


def a_rank_dies(rank: int, size: int, directory: str, timeout_s: int) -> str:
    """Rank 1 is killed; the others, who wait for it each in another way, say so."""
    start("accel", rank, size, directory, timedelta(seconds=timeout_s))
    dist.all_reduce(torch.ones(10))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        if rank == 2:
            dist.all_reduce(torch.ones(10), async_op=True).wait()
        elif rank == 3:
            dist.all_reduce(torch.ones(10), async_op=True).get_future().wait()
        else:
            dist.all_reduce(torch.ones(10))
    except RuntimeError as error:
        told = f"{type(error).__name__}: {error}"
    else:
        told = "nothing"
    # Shutting down with a dead rank must not hang either.
    dist.destroy_process_group()
    return told


def a_host_dies(rank: int, size: int, directory: str, timeout_s: int) -> list[Any]:
    """The last rank, alone on its host, is killed: all of the other host notice at once, and no more after that."""
    start("accel", rank, size, directory, timedelta(seconds=timeout_s))
    dist.all_reduce(torch.ones(10))
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    told: list[Any] = []
    for _ in range(2):
        began = time.monotonic()
        try:
            dist.all_reduce(torch.ones(10))
        except CommunicationError as error:
            told += [str(error), time.monotonic() - began]
    time.sleep(2)  # nobody is told by this process's end
    return told


def one_host_fails(rank: int, size: int, directory: str, how: str, timeout_s: int) -> list[Any]:
    """Ranks 0 and 1 are one host, and fail between themselves; what each rank is told, and after how many seconds."""
    start("accel", rank, size, directory, timedelta(seconds=timeout_s))
    dist.all_reduce(torch.ones(10))
    if rank == 1 and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and how == "interrupted":
        time.sleep(2)
    if rank == 0 and how == "interrupted":
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.alarm(1)
    told: list[Any] = []
    for _ in range(2):
        began = time.monotonic()
        try:
            dist.all_reduce(torch.ones(11 if rank == 1 and how == "mismatch" else 10))
        except (CommunicationError, KeyboardInterrupt) as error:
            told += [f"{type(error).__name__}: {error}", time.monotonic() - began]
    time.sleep(3)  # nobody is told by this process's end
    dist.destroy_process_group()
    return told


def ends_meanwhile(rank: int, size: int, directory: str, destroys: bool) -> list[Any]:
    """Rank 0 begins a collective and ends; rank 1 would take part later."""
    start("accel", rank, size, directory, timedelta(seconds=120))
    dist.all_reduce(torch.ones(10), async_op=True).wait()
    over = Path(directory, "over")
    if rank == 0:
        group = dist.group.WORLD
        assert isinstance(group, accel.AccelProcessGroup)
        threads = threading.active_count()
        kept = dist.barrier(async_op=True)
        require(lambda: group._queue._is_doing)
        time.sleep(0.5)  # now it waits
        assert not kept.is_completed()
        began = time.monotonic()
        if destroys:
            dist.destroy_process_group()
            del group
        else:
            atexit._run_exitfuncs()  # as the process's end does first
        told = [time.monotonic() - began, threading.active_count() - threads + 1]
        over.touch()
        assert isinstance(kept.exception(), CommunicationError)
        return told
    require(over.exists)
    try:
        for _ in range(2):  # rank 0 has said that it is there, but once
            dist.barrier()
    except CommunicationError as error:
        return [str(error), 0]
    return ["nothing", 0]


def ends_with_gloo_at_work(rank: int, size: int, directory: str, destroys: bool) -> None:
    """Rank 0 begins a collective and ends; rank 1 takes part just before the interpreter of rank 0 is finalized.

    Rank 0 keeps Python's lock from then on. A thread of gloo that waits for the lock, to free a tensor, aborts.
    """
    start("accel", rank, size, directory)
    ending = Path(directory, "ending")
    tensor = torch.ones(1, dtype=torch.float64)  # gloo's
    dist.all_reduce(tensor.clone())
    if rank == 1:
        require(ending.exists)
        dist.all_reduce(tensor)
        return
    dist.all_reduce(tensor, async_op=True)
    del tensor
    if destroys:
        dist.destroy_process_group()
    atexit._run_exitfuncs()
    atexit.register(ctypes.PyDLL(None).usleep, 2_000_000)  # the last thing that is done
    atexit.register(os.mkdir, ending)


def makes_a_group_meanwhile(rank: int, size: int, _directory: str) -> bool:
    """Rank 0 has collectives to do in its group's thread, and waits in new_group() for rank 1, which does them first.

    They meet by the environment, so on a TCPStore.
    """
    dist.init_process_group("accel", rank=rank, world_size=size, timeout=timedelta(seconds=20))
    if rank == 0:
        works = [dist.barrier(async_op=True) for _ in range(2)]
    else:
        time.sleep(2)  # rank 0 waits, and its thread has looked for a note
        works = [dist.barrier(async_op=True) for _ in range(2)]
        for work in works:
            work.wait()
    group = dist.new_group()
    for work in works:
        work.wait()
    dist.barrier(group)
    dist.destroy_process_group()
    return True


def a_rank_of_a_subset_dies(rank: int, size: int, directory: str) -> str:
    """The last rank is killed; the other of its group says so by the rank that the program knows."""
    start("accel", rank, size, directory, timedelta(seconds=20))
    ranks = [size - 2, size - 1]
    pair = dist.new_group(ranks, timeout=timedelta(seconds=20))
    if rank not in ranks:
        return ""
    dist.barrier(pair)
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.barrier(pair)
    except CommunicationError as error:
        return f"{error} [{getattr(error, 'rank', None)}]"
    return "nothing"


def without_the_op(rank: int, size: int, directory: str) -> dict[str, Any]:
    """Shared memory cannot be used on one of the ranks: gloo does all of it."""
    warnings.simplefilter("error")
    start("accel", rank, size, directory)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    dist.barrier()
    assert torch.equal(tensor, torch.full((3,), float(size)))
    told = _counts("accel")
    dist.barrier()
    dist.destroy_process_group()
    return told


def layout_of_hosts(rank: int, size: int, directory: str) -> list[list[int]]:
    """The ranks by hosts, as the group found them."""
    start("accel", rank, size, directory)
    group = dist.group.WORLD
    assert isinstance(group, accel.AccelProcessGroup)
    found = [list(ranks) for ranks in group.layout.hosts]
    dist.barrier()
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    sys.exit("rank_processes.py runs these functions")
