"""Programs of the ranks of test_distributed*.py."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import op_builder.ops.distributed as accel
from op_builder.errors import CommunicationError
from tests.support.waiting import has_ended, pid_of, wait_until, wait_until_asleep, write_pid

REDUCIBLE = (torch.float32, torch.bfloat16, torch.float16, torch.int32)
MOVED = (
    *(torch.int64, torch.float64, torch.uint8, torch.bool, torch.int16, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)
FOR_EVER = timedelta(days=1)  # ranks fail before this timeout in these programs


def start(backend: str, rank: int, size: int, directory: str, timeout: timedelta = FOR_EVER) -> None:
    torch.set_num_threads(1)
    write_pid(directory, rank)
    store = dist.FileStore(str(Path(directory) / "store"), size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def stop() -> None:
    # Models before their groups: if DistributedDataParallel held gloo's group last, it would join gloo's thread with
    # the GIL held, for which that thread may wait. Callers delete the variables that refer to such a model.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def small_integers(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Values whose sums and products every type holds exactly, other ones on each rank."""
    return (torch.arange(numel) % 5 + rank).to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """For types that torch does not compare."""
    return tensor.reshape(-1).view(torch.uint8)


def expected(size: int, numel: int, dtype: torch.dtype, op: str) -> torch.Tensor:
    every = torch.stack([small_integers(rank, numel, torch.float64) for rank in range(size)])
    reductions: dict[str, Callable[..., torch.Tensor]] = {"product": torch.prod, "max": torch.amax, "min": torch.amin}
    reductions |= {"sum": torch.sum, "avg": torch.mean}
    return reductions[op](every, 0).to(dtype)


OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def all_collectives(rank: int, size: int, directory: str) -> dict[str, Any]:
    """Each collective through torch's functions, against what it is to give; and what the group counted."""
    start("accel", rank, size, directory)
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
    # Rounded once: the type can represent 2048 + 1 + 1, but not 2048 + 1.
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
    group = dist.group.WORLD
    assert isinstance(group, accel.AccelProcessGroup)
    result = {**_counts(), "hosts": [list(ranks) for ranks in group.layout.hosts]}
    stop()
    return result


def several(
    rank: int, size: int, directory: str, names: list[str], functions: Mapping[str, Any] = globals()
) -> dict[str, Any]:
    """Functions, by default of this file, one after another, each with a default group of its own."""
    result = {}
    for name in names:
        place = Path(directory, name)
        place.mkdir(exist_ok=True)
        result[name] = functions[name](rank, size, str(place))
    return result


def _counts() -> dict[str, Any]:
    counts = accel.collective_counts()
    return {"ours": dict(counts.ours), "gloo": dict(counts.gloo)}


def method_names(rank: int, size: int, directory: str) -> dict[str, Any]:
    """The methods of the group under every name that torch has had for them, and in every form."""
    start("accel", rank, size, directory)
    group = dist.group.WORLD
    assert group is not None
    mine = small_integers(rank, 4, torch.float32)
    total = expected(size, 4, torch.float32, "sum")
    every = torch.cat([small_integers(other, 4, torch.float32) for other in range(size)])
    flat = [torch.empty(4) for _ in range(size)]
    source = small_integers(rank, 4 * size, torch.float32)
    cut = list(source.view(size, 4).unbind())
    part = expected(size, 4 * size, torch.float32, "sum")[4 * rank : 4 * rank + 4]

    def check(name: str, result: torch.Tensor | list[torch.Tensor], right: torch.Tensor, *arguments: Any) -> None:
        before = sum(accel.collective_counts().ours.values())
        getattr(group, name)(*arguments).wait()
        assert torch.equal(torch.cat(result) if isinstance(result, list) else result, right), name
        assert sum(accel.collective_counts().ours.values()) == before + 1, name

    for form in ([dist.ReduceOp.SUM], [], [dist.AllreduceOptions()]):
        tensor = mine.clone()
        check("allreduce", tensor, total, [tensor], *form)
    single, pair, sent = mine.clone(), [mine.clone(), mine.clone()], mine.clone()
    check("allreduce", single, total, single)
    check("allreduce_coalesced", pair, total.repeat(2), pair)
    check("broadcast", sent, every[:4], sent, 0)
    for name in ("all_gather_single", "_allgather_base"):
        whole = torch.empty(4 * size)
        check(name, whole, every, whole, mine)
    for name in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        wholes = [torch.empty(4 * size), torch.empty(4 * size)]
        check(name, wholes, every.repeat(2), wholes, [mine, mine])
    check("allgather", flat, every, [flat], [mine])
    check("allgather", flat, every, flat, mine)
    for name in ("reduce_scatter_single", "_reduce_scatter_base"):
        out = torch.empty(4)
        check(name, out, part, out, source, dist.ReduceScatterOptions())
    for name in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
        out = torch.empty(4)
        check(name, out, part, [out], [source])
    check("reduce_scatter", out, part, [out], [cut])
    check("barrier", out, part)
    counted = _counts()
    stop()
    return counted


def groups(rank: int, size: int, directory: str) -> int:
    """A subset of the ranks, several groups of the same ranks, and a device mesh; collectives of the subset."""
    start("accel", rank, size, directory)
    counted = 0
    subset = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        tensor = torch.ones(5)
        dist.all_reduce(tensor, group=subset)
        assert torch.equal(tensor, torch.full((5,), 2.0))
        assert dist.get_backend(subset) == "accel"
        counted = sum(accel.collective_counts(subset).ours.values())
    twin = dist.new_group(list(range(size)))
    first, second = torch.ones(4), torch.full((4,), 2.0)
    works = [dist.all_reduce(first, group=twin, async_op=True), dist.all_reduce(second, async_op=True)]
    for work in works:
        work.wait()
    assert torch.equal(first * 2, second)
    dist.barrier(twin)
    dist.destroy_process_group(twin)
    mesh = dist.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("outer", "inner"))
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=mesh.get_group("inner"))
    inner = size // 2
    assert tensor[0].item() == sum(range(rank // inner * inner, (rank // inner + 1) * inner))
    stop()
    return counted


def made_again(rank: int, size: int, directory: str) -> list[list[float]]:
    """The default group is made, destroyed and made again, on one store; the last rank is late."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(directory) / "store"), size)
    result = []
    again = Path(directory, "again")
    for _ in range(2):
        dist.init_process_group("accel", store=store, rank=rank, world_size=size, timeout=FOR_EVER)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        doubles = torch.ones(1, dtype=torch.float64)
        dist.all_reduce(doubles)  # by gloo
        result.append([*tensor.tolist(), *doubles.tolist()])
        stop()
        again.touch() if rank == 0 else wait_until(again.exists)
    return result


def failure_of(function: Callable[[], object]) -> str:
    """The class and text of what a function raises, and the rank that the error names."""
    try:
        function()
    except (RuntimeError, ValueError, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error} [{getattr(error, 'rank', None)}]"
    return ""


def failures(rank: int, size: int, directory: str, function: Callable[[], object]) -> list[str]:
    """The errors of two calls of a function; no rank ends before all have failed."""
    result = [failure_of(function) for _ in range(2)]
    Path(directory, f"failed{rank}").touch()
    for other in range(size):
        wait_until(
            lambda other=other: Path(directory, f"failed{other}").exists() or has_ended(pid_of(directory, other))
        )  # type: ignore[misc]
    dist.destroy_process_group()
    return result


def a_rank_dies(rank: int, size: int, directory: str) -> list[str]:
    """The last rank is killed; the others, who wait for it in different ways, raise."""
    start("accel", rank, size, directory)
    dist.all_reduce(torch.ones(10))
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ways = {
        1: lambda: dist.all_reduce(torch.ones(10), async_op=True).wait(),
        2: lambda: dist.all_reduce(torch.ones(10), async_op=True).get_future().wait(),
    }
    return failures(rank, size, directory, ways.get(rank, lambda: dist.all_reduce(torch.ones(10))))


def one_host_fails(rank: int, size: int, directory: str, how: str) -> list[str]:
    """Ranks 0 and 1 are one host, and fail between themselves; what each rank raises."""
    start("accel", rank, size, directory)
    dist.all_reduce(torch.ones(10))
    if rank == 1 and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGUSR1, signal.default_int_handler)
    Path(directory, f"ready{rank}").touch()
    if rank == 1 and how == "interrupted":
        wait_until(Path(directory, "ready0").exists)
        wait_until_asleep(pid_of(directory, 0))
        os.kill(pid_of(directory, 0), signal.SIGUSR1)
        wait_until(Path(directory, "failed0").exists)
    count = 11 if rank == 1 and how == "mismatch" else 10
    return failures(rank, size, directory, lambda: dist.all_reduce(torch.ones(count)))


def ends_meanwhile(rank: int, size: int, directory: str, destroys: bool) -> str:
    """Rank 0 begins a collective and ends; rank 1 would take part later; returns what it raises."""
    start("accel", rank, size, directory)
    dist.all_reduce(torch.ones(10), async_op=True).wait()
    over = Path(directory, "over")
    if rank == 0:
        (thread,) = (each for each in threading.enumerate() if "process group" in each.name)
        kept = dist.barrier(async_op=True)
        wait_until_asleep(os.getpid(), thread.native_id)
        assert not kept.is_completed()
        if destroys:
            dist.destroy_process_group()
        else:
            atexit._run_exitfuncs()  # as the process's end does first
        assert not thread.is_alive()
        over.touch()
        assert isinstance(kept.exception(), CommunicationError)
        return ""
    wait_until(over.exists)
    return failure_of(dist.barrier) or failure_of(dist.barrier)  # rank 0 has published one phase


def _wait_until_long_asleep(thread: int | None = None) -> None:
    for _ in range(10):  # until gloo has begun
        time.sleep(0.1)
        wait_until_asleep(os.getpid(), thread)


def _interrupt_sleep() -> None:
    _wait_until_long_asleep()
    os.kill(os.getpid(), signal.SIGINT)


def ends_with_gloo_at_work(rank: int, size: int, directory: str, destroys: bool, is_barrier: bool) -> None:
    """gloo runs everything. Rank 0 starts a collective and ends; rank 1 joins just before rank 0's interpreter ends.

    Rank 0 keeps Python's lock from then on. A thread of gloo that waits for the lock, to free a tensor, aborts. Ctrl-C
    ends rank 0's wait in a barrier.
    """
    start("accel", rank, size, directory)
    ending = Path(directory, "ending")
    tensor = torch.ones(1, dtype=torch.float64)  # gloo's
    dist.all_reduce(tensor.clone())
    if rank == 1:
        wait_until(ending.exists)
        with contextlib.suppress(RuntimeError):  # on a busy machine rank 0 may have ended by now
            dist.barrier() if is_barrier else dist.all_reduce(tensor)
        return
    if is_barrier:
        threading.Thread(target=_interrupt_sleep).start()
        with contextlib.suppress(KeyboardInterrupt):
            dist.barrier()
    else:
        dist.all_reduce(tensor, async_op=True)
        del tensor
        (thread,) = (each for each in threading.enumerate() if "process group" in each.name)
        _wait_until_long_asleep(thread.native_id)
    if destroys:
        dist.destroy_process_group()
    atexit._run_exitfuncs()
    atexit.register(ctypes.PyDLL(None).usleep, 2_000_000)  # the last thing that is done
    atexit.register(os.mkdir, ending)


def makes_a_group_meanwhile(rank: int, size: int, _directory: str) -> bool:
    """Rank 0 has collectives to do in its group's thread, and waits in new_group() for rank 1, which does them first.

    They meet by the environment, so on a TCPStore.
    """
    dist.init_process_group("accel", rank=rank, world_size=size, timeout=FOR_EVER)
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
    """The last rank is killed; the error of the other one has its rank in the default group."""
    start("accel", rank, size, directory)
    ranks = [size - 2, size - 1]
    pair = dist.new_group(ranks, timeout=FOR_EVER)
    if rank not in ranks:
        return ""
    dist.barrier(pair)
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return failure_of(lambda: dist.barrier(pair))


def without_the_op(rank: int, size: int, directory: str) -> dict[str, Any]:
    """Shared memory cannot be used on one of the ranks: gloo does all of it."""
    warnings.simplefilter("error")
    start("accel", rank, size, directory)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    dist.barrier()
    assert torch.equal(tensor, torch.full((3,), float(size)))
    result = _counts()
    stop()
    return result


def another_timeout(rank: int, size: int, directory: str) -> list[str]:
    """The errors of rank 0, which waits alone after the timeout of each group was changed in another way."""
    start("accel", rank, size, directory)
    groups = [dist.group.WORLD, dist.new_group(), dist.new_group()]
    short = timedelta(seconds=0.2)
    dist.distributed_c10d._set_pg_timeout(short)
    groups[1].set_timeout(short)
    groups[2]._get_backend(torch.device("cpu"))._set_default_timeout(short)
    calls = [functools.partial(dist.all_reduce, torch.ones(3), group=group) for group in groups]
    errors = [failure_of(call) for call in calls] if rank == 0 else []
    Path(directory, f"done{rank}").touch()
    wait_until(lambda: Path(directory, "done0").exists())
    dist.destroy_process_group()
    return errors


def freed_memory(rank: int, size: int, directory: str) -> list[str]:
    """The error of each call with a tensor whose storage was released; the group stays usable."""
    start("accel", rank, size, directory)
    errors = []
    for dtype in (torch.float32, torch.float64, torch.int64):  # the last two are reduced by gloo
        for step in (1, 2):
            freed = torch.ones(4096 * step, dtype=dtype)[::step]
            freed.untyped_storage().resize_(0)
            parts, whole = [torch.ones(4096, dtype=dtype) for _ in range(size)], torch.ones(4096 * size, dtype=dtype)
            for call in (
                lambda freed=freed: dist.all_reduce(freed),
                lambda freed=freed: dist.broadcast(freed, 0),
                lambda freed=freed, parts=parts: dist.all_gather(parts, freed),
                lambda freed=freed, parts=parts: dist.all_gather([freed] * size, parts[0]),
                lambda freed=freed, whole=whole: dist.all_gather_into_tensor(whole, freed),
                lambda freed=freed, parts=parts: dist.reduce_scatter(parts[0], [freed] * size),
                lambda freed=freed, whole=whole: dist.reduce_scatter_tensor(freed, whole),
                lambda freed=freed: dist.reduce(freed, 0),
                lambda freed=freed, parts=parts: dist.gather(freed, parts if rank == 0 else None),
                lambda freed=freed, parts=parts: dist.all_to_all(parts, [freed] * size),
                lambda freed=freed: dist.all_to_all_single(freed, freed),
            ):
                errors.append(failure_of(call))  # type: ignore[arg-type]
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [size] * 3
    stop()
    return errors


def unsupported_types(rank: int, size: int, directory: str) -> list[str]:
    """The error of each call with a type that gloo lacks, or cannot average; the group stays usable."""
    start("accel", rank, size, directory)
    errors = []
    for dtype in (torch.int16, torch.uint16, torch.uint64, torch.float8_e5m2, torch.bits16):
        whole, part = torch.empty(2 * size, dtype=dtype), torch.empty(2, dtype=dtype)
        for call in (
            lambda whole=whole: dist.all_reduce(whole),
            lambda whole=whole: dist.all_to_all_single(torch.empty_like(whole), whole),
            lambda whole=whole, part=part: dist.reduce_scatter_tensor(part, whole),
            lambda part=part: dist.gather(part, [torch.empty_like(part) for _ in range(size)] if rank == 0 else None),
        ):
            errors.append(failure_of(call))  # type: ignore[arg-type]
    total = torch.ones(3, dtype=torch.int64)
    errors.append(failure_of(lambda: dist.all_reduce(total, dist.ReduceOp.AVG)))
    dist.all_reduce(total)
    assert total.tolist() == [size] * 3
    stop()
    return errors
