"""What ranks that share memory do in tests: run as a program, by shm_ranks.py.

Reads {"case", "size", "arguments"} as lines of JSON, runs that case in `size` forked processes, and writes how each
ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from op_builder.cpu import ShareMemCommBuilder
from op_builder.ops.comm.shared_memory_group import SharedMemoryGroup
from op_builder.ops.comm.shm_comm import ShareMemCommModule

DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32)
}
# Half of the distance between 1 and the next number: what one rounding costs.
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SMALLEST = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}


class Place:
    """A rank's place in a case.

    Attributes:
        rank, size: of it.
        directory: empty, the same for all ranks.
        comm: the op.
    """

    def __init__(self, rank: int, size: int, directory: Path) -> None:
        self.rank, self.size, self.directory = rank, size, directory
        self.comm: ShareMemCommModule = ShareMemCommBuilder().load()

    def store(self, size: int | None = None) -> dist.Store:
        return dist.FileStore(str(self.directory / "store"), self.size if size is None else size)

    def group(self, timeout_s: float = 60, name: str = "") -> SharedMemoryGroup:
        return self.comm.new_group(self.size, self.rank, store=self.store(), name=name, timeout_s=timeout_s)

    def signal(self, name: str) -> None:
        (self.directory / name).touch()

    def wait(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while not (self.directory / name).exists():
            assert time.monotonic() < deadline, f"nobody said {name}"
            time.sleep(0.002)


# Right results ------------------------------------------------------------------------------------------------------


def random_input(count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.int32:
        return torch.randint(-(2**31), 2**31 - 1, (count,), generator=generator, dtype=torch.int64).to(dtype)
    return torch.randn(count, generator=generator).to(dtype)


def in_order(inputs: list[torch.Tensor], op: str) -> torch.Tensor:
    """The reduction in the order of the ranks, 16-bit floats in float32: the very bits that are promised."""
    wide = [x.float() if x.is_floating_point() else x for x in inputs]
    total = wide[0].clone()
    for other in wide[1:]:
        total = {"sum": torch.add, "avg": torch.add, "max": torch.maximum, "min": torch.minimum}[op](total, other)
    return (total / len(inputs) if op == "avg" else total).to(inputs[0].dtype)


def require_close(result: torch.Tensor, inputs: list[torch.Tensor], op: str) -> None:
    """Against float64: each of the n - 1 additions rounds in float32, then the division, then the type itself."""
    wide = [x.double() for x in inputs]
    stacked = torch.stack(wide)
    exact = {"sum": stacked.sum(0), "avg": stacked.mean(0), "max": stacked.amax(0), "min": stacked.amin(0)}[op]
    dtype = result.dtype
    if dtype == torch.int32:
        exact = (exact.long() + 2**31) % 2**32 - 2**31 if op == "sum" else exact.long()
        assert torch.equal(result.long(), exact)
        return
    added = 0.0 if op in ("max", "min") else ROUNDING[torch.float32] * len(inputs) * stacked.abs().sum(0)
    bound = added * 1.01 + ROUNDING[dtype] * 1.01 * exact.abs() + SMALLEST[dtype]
    assert bool(((result.double() - exact).abs() <= bound).all()), f"{op} of {dtype} is too far off"


def reductions(dtype: torch.dtype) -> tuple[str, ...]:
    return ("sum", "max", "min") if dtype == torch.int32 else ("sum", "max", "min", "avg")


def bits(*tensors: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(bytes(tensor.contiguous().view(torch.uint8).numpy()))
    return digest.hexdigest()


def every_collective(
    place: Place, dtype: str, counts: list[int], symmetric: bool = False, isa: str | None = None
) -> list[str]:
    """Each collective of each length, checked here; returns the results' bits, which must be the same everywhere."""
    os.environ["ACCEL_CPU_ISA"] = isa or ""
    group = place.group()
    type_ = DTYPES[dtype]
    ops = reductions(type_)
    told = []
    spare = group.empty_symmetric(max(counts) * place.size + 64, type_) if symmetric else None

    def filled(x: torch.Tensor, offset: int = 0) -> torch.Tensor:
        if spare is None:
            return x.clone()
        view = spare[offset : offset + x.numel()]
        return view.copy_(x)

    for count in counts:
        inputs = [random_input(count, type_, 1000 * count + r) for r in range(place.size)]
        own = inputs[place.rank]
        for op in ops:
            x = filled(own, offset=1)
            assert group.all_reduce(x, op) is x
            assert torch.equal(x, in_order(inputs, op)), f"all_reduce {op} of {count}"
            require_close(x, inputs, op)
            told.append(bits(x))
        long = [random_input(count * place.size, type_, 77 * count + r) for r in range(place.size)]
        given = filled(long[place.rank])
        own_part = slice(place.rank * count, (place.rank + 1) * count)
        for op in ops:
            out = torch.empty(count, dtype=type_)
            assert group.reduce_scatter(out, given, op) is out
            assert torch.equal(given, long[place.rank])
            assert torch.equal(out, in_order([x[own_part] for x in long], op)), f"reduce_scatter {op} of {count}"
        gathered = filled(torch.zeros(count * place.size, dtype=type_))
        assert group.all_gather(gathered, own) is gathered
        assert torch.equal(gathered, torch.cat(inputs))
        told.append(bits(gathered))
        for source in {0, place.size - 1}:
            x = filled(own, offset=3)
            assert group.broadcast(x, source) is x
            assert torch.equal(x, inputs[source])
        group.barrier()
    group.close()
    return told


PERIOD = 100_003  # a prime, so that no piece of a tensor that is in the wrong place looks right


def every_collective_of_size(place: Place, dtype: str, sizes_bytes: list[int], symmetric: bool = False) -> list[str]:
    """As :func:`every_collective`, for large tensors: values repeat, so that their float64 reference is soon made.

    A size is that of the largest tensor, the input of a reduce-scatter or the output of an all-gather, but for a part
    of an element for each rank.
    """
    type_ = DTYPES[dtype]
    ops = reductions(type_)
    patterns = [random_input(PERIOD, type_, 5 + r) for r in range(place.size)]
    expected = {}
    for op in ops:
        expected[op] = in_order(patterns, op)
        require_close(expected[op], patterns, op)
    told = [bits(*expected.values())]
    group = place.group(timeout_s=240)
    count = max(sizes_bytes) // type_.itemsize
    x = group.empty_symmetric(count, type_) if symmetric else torch.empty(count, dtype=type_)
    spare = torch.empty(count, dtype=type_)

    def repeats(tensor: torch.Tensor, pattern: torch.Tensor, begin: int = 0) -> bool:
        """Whether a tensor is the pattern again and again, beginning inside it."""
        turned = pattern.roll(-(begin % PERIOD))
        whole = tensor.numel() // PERIOD * PERIOD
        rest = tensor.numel() - whole
        return bool((tensor[:whole].view(-1, PERIOD) == turned).all()) and torch.equal(tensor[whole:], turned[:rest])

    def fill(tensor: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
        whole = tensor.numel() // PERIOD * PERIOD
        tensor[:whole].view(-1, PERIOD).copy_(pattern)
        tensor[whole:].copy_(pattern[: tensor.numel() - whole])
        return tensor

    for size_bytes in sizes_bytes:
        part = size_bytes // type_.itemsize // place.size
        whole = x[: part * place.size]
        own = slice(part * place.rank, part * (place.rank + 1))
        for op in ops:
            group.all_reduce(fill(whole, patterns[place.rank]), op)
            assert repeats(whole, expected[op]), f"all_reduce {op} of {size_bytes} bytes"
        fill(whole, patterns[place.rank])
        for op in ops:
            group.reduce_scatter(spare[:part].zero_(), whole, op)
            assert repeats(spare[:part], expected[op], own.start), f"reduce_scatter {op} of {size_bytes} bytes"
        assert repeats(whole, patterns[place.rank])
        group.barrier()  # the others may be reading what is symmetric
        group.all_gather(whole.zero_(), fill(spare[:part], patterns[place.rank]))
        for rank, pattern in enumerate(patterns):
            theirs = whole[part * rank : part * (rank + 1)]
            assert repeats(theirs, pattern), f"all_gather of {size_bytes} bytes, rank {rank}"
        for source in (0, place.size - 1):
            group.broadcast(fill(whole, patterns[place.rank]), source)
            assert repeats(whole, patterns[source]), f"broadcast of {size_bytes} bytes from {source}"
        group.barrier()
    group.close()
    return told


def in_place_parts(place: Place) -> bool:
    """The small tensor is the rank's own part of the large one."""
    group = place.group()
    for count in (1, 100, 300_000):
        inputs = [random_input(count * place.size, torch.float32, r) for r in range(place.size)]
        part = slice(place.rank * count, (place.rank + 1) * count)
        x = inputs[place.rank].clone()
        group.reduce_scatter(x[part], x, "avg")
        assert torch.equal(x[part], in_order(inputs, "avg")[part])
        y = torch.zeros(count * place.size)
        y[part] = inputs[place.rank][part]
        group.all_gather(y, y[part])
        assert torch.equal(y, torch.cat([inputs[r][r * count : (r + 1) * count] for r in range(place.size)]))
    return True


def bytes_of_any_type(place: Place) -> bool:
    group = place.group()
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float64, torch.complex64, torch.float8_e4m3fn):
        own = (torch.arange(37) * (place.rank + 1) % 5).to(dtype)
        all_of = torch.cat([(torch.arange(37) * (r + 1) % 5).to(dtype) for r in range(place.size)])
        out = torch.empty_like(all_of)
        assert bits(group.all_gather(out, own)) == bits(all_of)
        assert bits(group.broadcast(own, 1)) == bits(all_of[37:74])
    return True


def not_a_number(place: Place) -> bool:
    group = place.group()
    nan, inf = float("nan"), float("inf")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        given = {0: [nan, 1.0, inf, -inf, 0.0], 1: [1.0, nan, 1.0, inf, -0.0]}
        x = torch.tensor(given[place.rank] * 9, dtype=dtype)
        assert group.all_reduce(x.clone(), "max")[:3].isnan().tolist() == [True, True, False]
        assert group.all_reduce(x.clone(), "min")[:4].isnan().tolist() == [True, True, False, False]
        assert group.all_reduce(x, "sum")[:4].isnan().tolist() == [True, True, False, True]
    return True


def default_group(place: Place) -> bool:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(place), RANK=str(place.rank))
    for _ in range(2):
        place.comm.initialize(place.size, place.rank)
    x = torch.full((5, 3), float(place.rank + 1))
    total = float(sum(range(1, place.size + 1)))
    y = place.comm.inference_all_reduce(x)
    assert y is not x
    assert x.unique().tolist() == [place.rank + 1.0]
    assert y.shape == x.shape
    assert y.unique().tolist() == [total]
    large = torch.full((400_001,), 2.0)
    assert place.comm.inference_all_reduce(large).unique().tolist() == [2.0 * place.size]
    assert large.unique().tolist() == [2.0]
    assert place.comm.inference_all_reduce_(x) is x
    assert torch.equal(x, y)
    place.comm.initialize(place.size + 1, place.rank)  # an error
    return False


def free_port(place: Place) -> str:
    file = place.directory / "port"
    if place.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        (place.directory / "port.new").write_text(str(port))
        os.replace(place.directory / "port.new", file)
    place.wait("port")
    return file.read_text()


def by_the_process_groups_store(place: Place) -> bool:
    dist.init_process_group("gloo", store=place.store(), rank=place.rank, world_size=place.size)
    group = place.comm.new_group(place.size, place.rank)
    assert group.all_reduce(torch.ones(3)).tolist() == [place.size] * 3
    dist.barrier()
    dist.destroy_process_group()
    group.barrier()
    return True


def several_groups(place: Place) -> list[float]:
    """All four ranks; pairs; one alone: used in turn, closed in another order on each rank."""
    everybody = place.group(name="all")
    pair = place.comm.new_group(2, place.rank % 2, store=place.store(), name=f"pair {place.rank // 2}", timeout_s=60)
    again = place.comm.new_group(2, place.rank % 2, store=place.store(), name=f"pair {place.rank // 2}", timeout_s=60)
    alone = place.comm.new_group(1, 0)
    told = []
    for count in (1, 10_000, 500_000):
        for group in (everybody, pair, alone, again, everybody):
            x = torch.full((count,), float(place.rank))
            told.append(float(group.all_reduce(x)[-1]))
    own, shared = alone.empty_symmetric(3), pair.empty_symmetric(3)
    groups = [everybody, pair, again, alone]
    everybody.barrier()
    random.Random(place.rank).shuffle(groups)
    for group in groups:
        group.close()
        group.close()
    own += 1
    shared += place.rank
    assert own.tolist() == [1.0] * 3
    return [*told, *shared.tolist()]


def ranks_as_threads(place: Place) -> bool:
    """Two processes of two ranks each."""
    results: list[Any] = []

    # A thread each, which share the process's lock and its op.
    def one(rank: int) -> None:
        try:
            group = place.comm.new_group(4, rank, store=place.store(4), timeout_s=60)
            for count in (3, 200_000):
                x = torch.full((count,), float(rank))
                results.append(group.all_reduce(x).unique().tolist())
            time.sleep(0.7)  # longer than a wait takes to look around
            group.barrier()
            group.close()
        except BaseException as error:
            results.append(error)
            raise

    threads = [threading.Thread(target=one, args=(2 * place.rank + i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[6.0]] * 4, results
    return True


def soak(place: Place, rounds: int, seed: int) -> str:
    """Collectives of every kind, of every type and of random lengths, each element checked.

    Values are small whole numbers, so that a sum of them is exact in any type, and differ by rank and place.
    """
    group = place.group()
    symmetric = group.empty_symmetric(8192 * place.size * 4, torch.uint8)
    chance = random.Random(seed)
    digest = hashlib.sha256()
    ranks = range(place.size)

    def values(rank: int, count: int, base: int, dtype: torch.dtype) -> torch.Tensor:
        return ((torch.arange(count) * 7 + base + 3 * rank) % 16).to(dtype)

    for turn in range(rounds):
        kind = chance.randrange(7)
        count = chance.choice((0, 1, 7, 64, 500, chance.randrange(8192)))
        if turn % 500 == 499:  # several chunks of any type
            count = chance.randrange(1 << 20, 1 << 21)
        dtype = chance.choice((torch.float32, torch.bfloat16, torch.float16, torch.int32))
        base = chance.randrange(100)
        mine = values(place.rank, count, base, dtype)
        if kind in (0, 1, 6):
            is_symmetric = kind == 6 and count < 8192
            x = symmetric.view(dtype)[:count].copy_(mine) if is_symmetric else mine
            op = chance.choice(("sum", "max", "min"))
            group.all_reduce(x, op)
            every = torch.stack([values(rank, count, base, dtype) for rank in ranks])
            expected = every.sum(0, dtype=dtype) if op == "sum" else getattr(every, f"a{op}")(0)
        elif kind == 2:
            source = chance.randrange(place.size)
            group.broadcast(mine, source)
            x, expected = mine, values(source, count, base, dtype)
        elif kind == 3:
            x = torch.empty(count * place.size, dtype=dtype)
            group.all_gather(x, mine)
            expected = torch.cat([values(rank, count, base, dtype) for rank in ranks])
        elif kind == 4:
            x = torch.empty(count, dtype=dtype)
            group.reduce_scatter(x, torch.cat([mine + part for part in ranks]))
            expected = torch.stack([values(rank, count, base, dtype) + place.rank for rank in ranks]).sum(
                0, dtype=dtype
            )
        else:
            group.barrier()
            x = expected = mine
        assert torch.equal(x, expected), (turn, kind, count, dtype)
        if kind not in (4, 5):  # these differ from rank to rank
            digest.update(x.view(torch.uint8).numpy()[:32].tobytes())
    return digest.hexdigest()


def call(group: SharedMemoryGroup, collective: str, count: int, symmetric: torch.Tensor | None = None) -> None:
    x = torch.ones(count) if symmetric is None else symmetric
    if collective == "all_reduce":
        group.all_reduce(x)
    elif collective == "reduce_scatter":
        group.reduce_scatter(torch.empty(count), torch.ones(count * group.size))
    elif collective == "all_gather":
        group.all_gather(torch.empty(count * group.size), x)
    elif collective == "broadcast":
        group.broadcast(x, group.size - 1)
    elif collective == "barrier":
        group.barrier()


def one_is_killed(place: Place, collective: str, count: int, symmetric: bool = False) -> list[float]:
    """The last rank is killed in the middle of many; the others are to notice. Then each tries once more."""
    group = place.group(timeout_s=120)
    x = group.empty_symmetric(count) if symmetric else None
    victim = place.size - 1
    if place.rank == victim:
        threading.Timer(0.25, os.kill, (os.getpid(), signal.SIGKILL)).start()
    elif place.rank == 0:
        fd = os.open(place.directory / "began", os.O_CREAT)
        os.close(fd)
    while True:
        call(group, collective, count, x)


def again_when_broken(place: Place) -> list[Any]:
    group = place.group(timeout_s=120)
    group.barrier()
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    told: list[Any] = []
    for _ in range(2):
        began = time.monotonic()
        try:
            group.all_reduce(torch.ones(3))
        except Exception as error:
            told += [type(error).__name__, str(error), time.monotonic() - began]
    return told


def all_are_killed(place: Place) -> None:
    group = place.group()
    x = group.empty_symmetric(1 << 20)
    group.all_reduce(x)
    if place.rank == 0:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def killed_while_meeting(place: Place) -> None:
    """The last rank ends before it hands out its memory."""
    if place.rank == place.size - 1:
        from op_builder.ops.comm import shared_memory_meeting

        shared_memory_meeting.Meeting._hand_out = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
    place.group(timeout_s=20)


def one_never_comes(place: Place, timeout_s: float) -> None:
    if place.rank != 1:
        place.group(timeout_s=timeout_s)


def one_is_late(place: Place) -> None:
    """Longer than the timeout; what it then tries fails, too."""
    group = place.group(timeout_s=0.5)
    group.barrier()
    if place.rank == 1:
        time.sleep(2)
    group.all_reduce(torch.ones(5))


def one_has_left(place: Place) -> None:
    group = place.group()
    group.barrier()
    if place.rank == 1:
        group.close()
        time.sleep(1)  # alive
        return
    group.all_reduce(torch.ones(5))


def one_ends(place: Place) -> None:
    group = place.group()
    if place.rank == 0:
        group.all_reduce(torch.ones(5))


def different_calls(place: Place, what: str) -> list[str]:
    group = place.group()
    first = place.rank == 0
    x = torch.ones(6)
    told = []
    try:
        if what == "count":
            group.all_reduce(torch.ones(5 if first else 500_000))
        elif what == "type":
            group.all_reduce(x if first else x.bfloat16())
        elif what == "reduction":
            group.all_reduce(x, "sum" if first else "max")
        elif what == "collective":
            group.all_reduce(x) if first else group.barrier()
        elif what == "all_gather":
            y = torch.full((x.numel() * place.size,), 7.0)
            try:
                group.all_gather(y, x) if first else group.barrier()
            finally:
                assert y.unique().tolist() == [7.0]  # nothing was changed
        elif what == "source":
            group.broadcast(x, int(first))
        elif what == "symmetric":
            y = group.empty_symmetric(300_000)
            group.all_reduce(y if first else torch.ones(300_000))
        elif what == "offset":
            y = group.empty_symmetric(300_000)
            group.all_reduce(y[int(first) : 200_000 + int(first)])
    except Exception as error:
        told = [type(error).__name__, str(error)]
    assert group.all_reduce(torch.ones(3)).tolist() == [place.size] * 3  # as usable as before
    return told


def interrupted(place: Place, number: int) -> list[Any]:
    """A signal while rank 0 waits: its handler's exception comes out, and the other rank hears of it."""
    group = place.group(timeout_s=30)
    group.barrier()
    if place.rank == 1:
        place.wait("interrupted")
        group.all_reduce(torch.ones(4))  # all there is for it
        try:
            group.barrier()
        except Exception as error:
            return [type(error).__name__, str(error)]
    signal.signal(signal.SIGALRM, raise_lookup_error)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
    began = time.monotonic()
    told = []
    try:
        group.all_reduce(torch.ones(4))
    except BaseException as error:
        told = [type(error).__name__, str(error), time.monotonic() - began]
    place.signal("interrupted")
    try:
        group.barrier()
    except Exception as error:
        told += [str(error)]
    return told


def closed_by_a_handler(place: Place) -> None:
    """The handler of a signal closes the group in the middle of rank 0's wait, and ends the process."""
    group = place.group(timeout_s=60)
    group.barrier()
    if place.rank == 1:
        place.wait("over")
        return

    def end(*_: object) -> None:
        group.close()
        place.signal("over")
        raise SystemExit(0)

    signal.signal(signal.SIGUSR1, end)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    group.barrier()


def reentered(place: Place) -> list[Any]:
    """The handler of a signal uses the group in the middle of a wait; that fails, and nothing else does."""
    group = place.group(timeout_s=30)
    group.barrier()
    said = []

    def use(*_: object) -> None:
        try:
            group.barrier()
        except Exception as error:
            said.append(str(error))

    signal.signal(signal.SIGUSR1, use)
    if place.rank == 0:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    else:
        time.sleep(0.9)
    assert group.all_reduce(torch.ones(4)).tolist() == [2.0] * 4
    symmetric = group.empty_symmetric(2000)
    assert group.all_reduce(symmetric.fill_(1.0)).unique().tolist() == [2.0]
    return said


def one_cannot_map(place: Place) -> list[Any]:
    """Rank 0 has no room for the others' memory, but for its own."""
    group = place.group()
    size_bytes = 64 << 20
    told: list[Any] = []
    before = resource.getrlimit(resource.RLIMIT_AS)
    if place.rank == 0:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + size_bytes * 3 // 2, before[1]))
    try:
        group.empty_symmetric(size_bytes, torch.uint8)
    except Exception as error:
        told = [type(error).__name__, str(error), error.__dict__.get("rank")]
    resource.setrlimit(resource.RLIMIT_AS, before)
    group.barrier()  # what nobody has any more goes with the next collective
    maps = Path("/proc/self/maps").read_text()
    told.append(len([line for line in maps.splitlines() if "accel_shm" in line]))
    symmetric = group.empty_symmetric(5000)  # the same one on all ranks
    assert group.all_reduce(symmetric.fill_(1.0)).unique().tolist() == [float(place.size)]
    return told


def closed_meanwhile(place: Place) -> list[str]:
    """Rank 0 closes the group in one thread while another one waits for rank 1."""
    group = place.group(timeout_s=60)
    group.barrier()
    if place.rank == 1:
        place.wait("over")
        return []
    said: list[str] = []
    began = threading.Event()

    def wait() -> None:
        began.set()
        try:
            group.barrier()
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=wait)
    thread.start()
    began.wait()
    time.sleep(1.0)  # what it does after that takes microseconds; nothing tells when it waits
    group.close()
    thread.join(20)
    place.signal("over")
    assert not thread.is_alive()
    return said


def raise_lookup_error(*_: object) -> None:
    raise LookupError("from the handler")


def harmless_signal(place: Place) -> int:
    """A handler that returns changes nothing."""
    group = place.group(timeout_s=30)
    group.barrier()
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    if place.rank == 0:
        for i in range(3):
            threading.Timer(0.1 * (i + 1), os.kill, (os.getpid(), signal.SIGUSR1)).start()
    else:
        time.sleep(0.6)
    assert group.all_reduce(torch.ones(4)).tolist() == [2.0] * 4
    return len(seen)


def other_threads_run(place: Place) -> int:
    """While rank 0 waits for rank 1, its other threads go on."""
    group = place.group(timeout_s=30)
    group.barrier()
    if place.rank == 1:
        time.sleep(0.6)
        group.barrier()
        return 1000
    ticks = []
    over = threading.Event()

    def tick() -> None:
        while not over.is_set():
            ticks.append(1)
            time.sleep(0.005)

    thread = threading.Thread(target=tick)
    thread.start()
    group.barrier()
    over.set()
    thread.join()
    return len(ticks)


def child_of_a_rank(place: Place) -> list[str]:
    """A fork of a rank is none, and does not keep it alive when it dies."""
    group = place.group(timeout_s=30)
    group.barrier()
    read, write = os.pipe()
    if place.rank == 0:
        child = os.fork()
        if child == 0:
            try:
                group.all_reduce(torch.ones(3))
            except Exception as error:
                os.write(write, str(error).encode())
            group.close()
            time.sleep(3.0)
            os._exit(0)
        os.close(write)
        with open(read) as file:
            said = file.read(40)
        group.barrier()  # the child has closed its copy, not the rank's
        group.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
        return [said]
    group.barrier()
    group.barrier()
    began = time.monotonic()
    try:
        group.barrier()
    except Exception as error:
        return [str(error), str(time.monotonic() - began < 2.5)]  # while the child lives
    return []


def said_by_the_child(place: Place) -> str:
    group = place.comm.new_group(1, 0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            group.all_reduce(torch.ones(3))
        except Exception as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(read, 1000).decode()


def no_space(place: Place, mib: int) -> list[Any]:
    """Rank 0 may not have files of that size."""
    group = place.group()
    if place.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    told = []
    try:
        group.empty_symmetric(mib << 18)
    except Exception as error:
        told = [type(error).__name__, str(error), getattr(error, "needed_bytes", None)]
    group.barrier()  # as usable as before
    return told


def no_space_for_a_group(place: Place) -> None:
    if place.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    place.group()


def too_much(place: Place) -> None:
    place.group().empty_symmetric(1 << 50, torch.uint8)


def let_a_stranger_know(place: Place) -> None:
    """What this process tells the store next is told to a process of another user, and only after it has tried it."""
    from op_builder.ops.comm import shared_memory_meeting

    told_by = shared_memory_meeting.Meeting._tell

    def tell(meeting: Any, own: Any) -> Any:
        (place.directory / "told.new").write_text(json.dumps(own._asdict()))
        os.chmod(place.directory / "told.new", 0o644)
        os.replace(place.directory / "told.new", place.directory / "told")
        place.wait("tried")
        return told_by(meeting, own)

    shared_memory_meeting.Meeting._tell = tell  # type: ignore[method-assign]
    os.chmod(place.directory, 0o777)
    place.signal("ready")


def become_a_stranger(place: Place) -> dict[str, Any]:
    """Be a process of another user; what rank 0 tells."""
    place.wait("ready")
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    place.wait("told")
    told: dict[str, Any] = json.loads((place.directory / "told").read_text())
    return told


def silent_strangers(place: Place) -> float:
    """Rank 2 is a process of another user that calls rank 0 again and again, first of all, and says nothing."""
    if place.rank == 2:
        facts = become_a_stranger(place)
        calls = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(8)]
        for call in calls:
            call.connect("\0" + facts["address"])
        place.signal("tried")
        place.wait("made")
        return 2.0
    if place.rank == 0:
        let_a_stranger_know(place)
    group = place.comm.new_group(2, place.rank, store=place.store(2), timeout_s=25)
    total = float(group.all_reduce(torch.ones(1)))
    place.signal("made")
    return total


def another_user(place: Place) -> dict[str, Any]:
    """Rank 1 is a process of another user that has read all that the store tells."""
    if place.rank == 0:
        let_a_stranger_know(place)
        place.group(timeout_s=3)
    facts = become_a_stranger(place)
    caught: dict[str, Any] = {}
    rank_0 = int((place.directory / "pid-0").read_text())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(10)
        caller.connect("\0" + facts["address"])
        caller.sendall(bytes.fromhex(facts["secret"]) + (1).to_bytes(4, "big"))
        for directory in ("fd", "map_files"):  # while rank 0 waits, so its process exists
            try:
                os.listdir(f"/proc/{rank_0}/{directory}")
                caught[directory] = "open"
            except PermissionError:
                caught[directory] = "closed"
        place.signal("tried")
        try:
            data, descriptors, _, _ = socket.recv_fds(caller, 1, 1)
            caught |= {"data": data.decode(), "descriptors": len(descriptors)}
        except OSError as error:
            caught |= {"data": "", "descriptors": 0, "said": str(error)}
    return caught


def two_jobs(place: Place, users: bool) -> list[float]:
    """Ranks 0 and 1 are one job, 2 and 3 another one, of another user: the same names, stores of their own."""
    job = place.rank // 2
    if place.rank == 0:
        os.chmod(place.directory, 0o777)
        place.signal("ready")
    place.wait("ready")
    if users and job == 1:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    store = dist.FileStore(str(place.directory / f"store-{job}"), 2)
    group = place.comm.new_group(2, place.rank % 2, store=store, timeout_s=60)
    told = set()
    for count in (1, 1000, 300_000) * 20:
        x = torch.full((count,), float(place.rank))
        told.add(float(group.all_reduce(x).sum()) / count)
    return sorted(told)


def same_name(place: Place) -> None:
    """Two groups of one name on one store; before the first is complete, as the second may follow it in peace."""
    store = place.store()
    while place.rank >= 2 and not store.check(["found out"]):
        time.sleep(0.005)
    try:
        rank, timeout_s = (0, 20) if place.rank < 2 else (1, 3)
        place.comm.new_group(2, rank, store=store, timeout_s=timeout_s)
    except RuntimeError:
        store.set("found out", "")
        raise


def memory_is_given_back(place: Place) -> list[int]:
    group = place.group()
    sizes = []
    for _ in range(3):
        x = group.empty_symmetric(8 << 20)
        group.all_reduce(x.fill_(1.0))
        assert float(x[5]) == place.size
        y = x[7:9]
        del x
        group.barrier()
        assert y.tolist() == [float(place.size)] * 2
        del y
        group.barrier()
        sizes.append(len([line for line in Path("/proc/self/maps").read_text().splitlines() if "accel_shm" in line]))
    descriptors = len(os.listdir("/proc/self/fd"))
    group.close()
    left = [line for line in Path("/proc/self/maps").read_text().splitlines() if "accel_shm" in line]
    return [*sizes, len(left), descriptors - len(os.listdir("/proc/self/fd"))]


# Compiled -------------------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """Attention and a feed-forward layer; with a module, this rank's heads and hidden units alone."""

    def __init__(self, width: int, heads: int, hidden: int, comm: ShareMemCommModule | None, in_place: bool) -> None:
        super().__init__()
        self.heads, self.comm, self.in_place = heads, comm, in_place
        self.head_width = width // 4
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * heads * self.head_width, bias=False)
        self.proj = torch.nn.Linear(heads * self.head_width, width, bias=False)
        self.up = torch.nn.Linear(width, hidden, bias=False)
        self.down = torch.nn.Linear(hidden, width, bias=False)

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        if self.comm is None:
            return x
        return self.comm.inference_all_reduce_(x) if self.in_place else self.comm.inference_all_reduce(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, self.head_width).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.summed(self.proj(mixed.transpose(1, 2).reshape(batch, length, -1)))
        return x + self.summed(self.down(torch.nn.functional.gelu(self.up(self.norm2(x)))))


def sharded(whole: Block, rank: int, comm: ShareMemCommModule, in_place: bool) -> Block:
    """Rank's half of the heads and hidden units."""
    part = Block(whole.proj.out_features, whole.heads // 2, whole.up.out_features // 2, comm, in_place)
    width = part.heads * part.head_width
    rows = slice(rank * width, (rank + 1) * width)
    units = slice(rank * part.up.out_features, (rank + 1) * part.up.out_features)
    with torch.no_grad():
        for part_of, mine in zip(whole.qkv.weight.chunk(3), part.qkv.weight.chunk(3), strict=True):
            mine.copy_(part_of[rows])
        part.proj.weight.copy_(whole.proj.weight[:, rows])
        part.up.weight.copy_(whole.up.weight[units])
        part.down.weight.copy_(whole.down.weight[:, units])
    return part


def compiled_block(place: Place, backend: str, in_place: bool, dynamic: bool) -> list[float]:
    """The largest differences: compiled against eager, and against the whole block on one rank."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(place), RANK=str(place.rank))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place.directory / f"inductor-{place.rank}")
    place.comm.initialize(2, place.rank)
    torch.manual_seed(0)
    whole = Block(64, 4, 128, None, False).eval()
    part = sharded(whole, place.rank, place.comm, in_place).eval()
    compiled = torch.compile(part, backend=backend, fullgraph=True, dynamic=dynamic)
    differences = [0.0, 0.0]
    with torch.no_grad():
        for length in (16, 24) if dynamic else (16,):
            x = torch.randn(2, length, 64)
            result = compiled(x)
            differences[0] = max(differences[0], float((result - part(x)).abs().max()))
            differences[1] = max(differences[1], float((result - whole(x)).abs().max()))
    return differences


# Running cases --------------------------------------------------------------------------------------------------------


def run_rank(case: Callable[..., Any], place_of: tuple[int, int, Path], arguments: dict[str, Any], pipe: int) -> None:
    """In a forked process: run the case, write how it ended, and end."""
    began = time.monotonic()
    end: dict[str, Any] = {"value": None, "error": "", "facts": {}}
    try:
        (place_of[2] / f"pid-{place_of[0]}").write_text(str(os.getpid()))
        end["value"] = case(Place(*place_of), **arguments)
    except BaseException as error:
        end["error"] = f"{type(error).__name__}: {error}"
        end["facts"] = {name: value for name, value in vars(error).items() if isinstance(value, int | float | str)}
        if isinstance(error, AssertionError):
            end["error"] += traceback.format_exc()
    end["seconds"] = time.monotonic() - began
    text = json.dumps(end).encode()
    while text:
        text = text[os.write(pipe, text) :]
    os._exit(0)  # no part of the parent's is to be tidied up here


def run_case(case: str, size: int, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    ends = []
    with tempfile.TemporaryDirectory() as directory:
        started = []
        for rank in range(size):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                run_rank(globals()[case], (rank, size, Path(directory)), arguments, write)
            os.close(write)
            started.append((child, read))
        for child, read in started:
            with open(read, "rb") as file:
                text = file.read()
            _, status = os.waitpid(child, 0)
            end = json.loads(text) if text else {"value": None, "error": "", "facts": {}, "seconds": 0.0}
            end["signal"] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            ends.append(end)
    return ends


def main() -> None:
    torch.set_num_threads(1)
    ShareMemCommBuilder().load()
    if "--compiler" in sys.argv:  # before the forks, once for all
        torch.compile(torch.nn.Linear(2, 2), backend="aot_eager", fullgraph=True)(torch.ones(1, 2))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # gloo writes to standard output in some releases
    for line in sys.stdin:
        answers.write(json.dumps(run_case(**json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    fcntl.fcntl(0, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    main()
