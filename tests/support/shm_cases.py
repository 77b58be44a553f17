"""What ranks that share memory do in tests, a process each.

A case waits for files of the other ranks and not for time; its groups' timeouts are longer than any test.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from op_builder.cpu import ShareMemCommBuilder
from op_builder.errors import SharedMemoryCommError, SharedMemorySpaceError
from op_builder.ops.comm.shared_memory_group import SharedMemoryGroup
from op_builder.ops.comm.shm_comm import ShareMemCommModule
from tests.support.rank_processes import run_ranks
from tests.support.threads import in_threads
from tests.support.waiting import pid_of, wait_until, wait_until_asleep, write_pid

DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32)
}
FOREVER_S = 1e6


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

    def group(self, timeout_s: float = FOREVER_S, name: str = "", store: Any = None) -> SharedMemoryGroup:
        return self.comm.new_group(self.size, self.rank, store=store or self.store(), name=name, timeout_s=timeout_s)

    def signal(self, name: str) -> None:
        (self.directory / name).touch()

    def wait(self, name: str) -> None:
        wait_until((self.directory / name).exists)

    def process_of(self, rank: int) -> int:
        return pid_of(self.directory, rank)

    def mappings(self) -> int:
        """How many segments of the op this process has mapped."""
        return Path("/proc/self/maps").read_text().count("accel_shm")


class WatchedStore:
    """A store that calls ``on_publish(text)`` before a rank publishes its address."""

    def __init__(self, store: dist.Store, on_publish: Callable[[str], object]) -> None:
        self._store, self._on_publish = store, on_publish

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self._on_publish(desired)
        return bytes(self._store.compare_set(key, expected, desired))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def failure_of(function: Callable[[], object]) -> str:
    """The class and text of what a function raises; empty where it raises nothing."""
    try:
        function()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return ""


# Results ------------------------------------------------------------------------------------------------------------


def random_input(count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.int32:
        return torch.randint(-(2**31), 2**31 - 1, (count,), generator=generator, dtype=torch.int64).to(dtype)
    return torch.randn(count, generator=generator).to(dtype)


def in_order(inputs: list[torch.Tensor], op: str) -> torch.Tensor:
    """The very bits that are promised: the reduction in the order of the ranks, 16-bit floats in float32."""
    wide = [x.float() if x.is_floating_point() else x for x in inputs]
    total = wide[0].clone()
    for other in wide[1:]:
        total = {"sum": torch.add, "avg": torch.add, "max": torch.maximum, "min": torch.minimum}[op](total, other)
    return (total / len(inputs) if op == "avg" else total).to(inputs[0].dtype)


def reductions(dtype: torch.dtype) -> tuple[str, ...]:
    return ("sum", "max", "min") if dtype == torch.int32 else ("sum", "max", "min", "avg")


def every_collective(
    place: Place, dtype: str, counts: list[int], symmetric: bool = False, isa: str | None = None
) -> None:
    """Each collective of each length."""
    os.environ["ACCEL_CPU_ISA"] = isa or ""
    group = place.group()
    type_ = DTYPES[dtype]
    ops = reductions(type_)
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
        for source in {0, place.size - 1}:
            x = filled(own, offset=3)
            assert group.broadcast(x, source) is x
            assert torch.equal(x, inputs[source])
        group.barrier()
    group.close()


def default_group(place: Place, port: int) -> bool:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(place.rank))
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


def handled(place: Place, closes: bool) -> list[str]:
    """A signal while rank 0 waits for rank 1: its handler uses the group and returns, or closes it and exits."""
    group = place.group()
    seen = []

    def handle(*_: object) -> None:
        seen.append("closes" if closes else failure_of(group.barrier))
        if closes:
            group.close()
        place.signal("handled")
        if closes:
            raise SystemExit(0)

    signal.signal(signal.SIGUSR1, handle)
    group.barrier()
    if place.rank == 1:
        wait_until_asleep(place.process_of(0))
        os.kill(place.process_of(0), signal.SIGUSR1)
        place.wait("handled")
        if closes:
            return []
    assert group.all_reduce(torch.ones(4)).tolist() == [2.0] * 4
    assert group.all_reduce(group.empty_symmetric(2000).fill_(1.0)).unique().tolist() == [2.0]
    assert all("Do not use the group in a signal handler" in message for message in seen)
    return seen


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


def one_is_killed(place: Place, collective: str, count: int, symmetric: bool = False) -> list[Any]:
    """The last rank is killed in the middle of many; each of the others fails, and once more."""
    group = place.group()
    x = group.empty_symmetric(count) if symmetric else None
    call(group, collective, count, x)
    if place.rank == place.size - 1:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
    result = []
    for _ in range(2):
        try:
            while True:
                call(group, collective, count, x)
        except SharedMemoryCommError as error:
            result += [str(error), error.rank, error.operation]
    return result


def killed_while_meeting(place: Place) -> None:
    """The last rank ends after it has published its memory."""
    store: Any = place.store()
    if place.rank == place.size - 1:
        key = f"accel_shm_comm//{place.size}/0/ranks/{place.rank}"
        real = store

        def die(text: str) -> None:
            real.compare_set(key, "", text)
            os.kill(os.getpid(), signal.SIGKILL)

        store = WatchedStore(real, die)
    place.group(store=store)


def one_is_missing(place: Place, how: str) -> None:
    """Rank 1 comes late, when rank 0 has given up, or closes the group, or ends."""
    group = place.group()
    if place.rank == 0:
        if how == "late":
            group.set_timeout(3.0)  # not before: the ranks meet in any time
        try:
            group.all_reduce(torch.ones(5))
        finally:
            place.signal("over")
    elif how == "late":
        place.wait("over")
        group.all_reduce(torch.ones(5))  # all that it needs is there
    elif how == "closes":
        group.close()
        place.wait("over")


def child_of_a_rank(place: Place) -> str:
    """A fork of a rank is not a rank: it cannot use the group, and does not keep a dead rank alive."""
    group = place.group()
    group.barrier()
    if place.rank == 0:
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, failure_of(lambda: group.all_reduce(torch.ones(3))).encode())
            group.close()  # its copy, not the rank's
            os.close(write)
            place.wait("over")
            os._exit(0)
        os.close(write)
        with open(read) as file:
            (place.directory / "child").write_text(file.read())
        group.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()
    message = failure_of(group.barrier)
    place.signal("over")
    return message + "\n" + (place.directory / "child").read_text()


def too_much(place: Place) -> None:
    place.group().empty_symmetric(1 << 50, torch.uint8)


def another_user(place: Place) -> list[Any]:
    """Rank 1 is a process of another user that has read all that the store holds; what it got."""

    def publish(text: str) -> None:
        (place.directory / "facts.new").write_text(text)
        os.replace(place.directory / "facts.new", place.directory / "facts")
        place.wait("tried")

    if place.rank == 0:
        os.chmod(place.directory, 0o777)
        place.signal("ready")
        place.group(timeout_s=3, store=WatchedStore(place.store(), publish))
    place.wait("ready")
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    place.wait("facts")
    facts = json.loads((place.directory / "facts").read_text())
    caught: list[Any] = []
    for path in (f"fd/{facts['descriptor']}", "fd", "map_files"):  # while rank 0 waits, so its process exists
        with contextlib.suppress(PermissionError):
            caught.append(os.open(f"/proc/{place.process_of(0)}/{path}", os.O_RDONLY))
    place.signal("tried")
    return caught


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


# What holds on all ranks ---------------------------------------------------------------------------------------------


def the_small_tensor_may_be_a_part_of_the_large_one(place: Place) -> None:
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


def nan_wins(place: Place) -> None:
    group = place.group()
    nan, inf = float("nan"), float("inf")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        given = {0: [nan, 1.0, inf, -inf, 0.0], 1: [1.0, nan, 1.0, inf, -0.0]}
        x = torch.tensor(given[place.rank] * 9, dtype=dtype)
        assert group.all_reduce(x.clone(), "max")[:3].isnan().tolist() == [True, True, False]
        assert group.all_reduce(x.clone(), "min")[:4].isnan().tolist() == [True, True, False, False]
        assert group.all_reduce(x, "sum")[:4].isnan().tolist() == [True, True, False, True]


def several_groups_live_in_one_process(place: Place) -> None:
    """All four ranks; pairs; one alone: used in turn, closed in another order on each rank."""
    everybody = place.group(name="all")
    name = f"pair {place.rank // 2}"
    pair, again = (
        place.comm.new_group(2, place.rank % 2, store=place.store(), name=name, timeout_s=FOREVER_S) for _ in range(2)
    )
    alone = place.comm.new_group(1, 0)
    pair_sum = 1 if place.rank < 2 else 5
    sums = ((everybody, 6), (pair, pair_sum), (alone, place.rank), (again, pair_sum), (everybody, 6))
    for count in (1, 10_000, 500_000):
        for group, total in sums:
            assert group.all_reduce(torch.full((count,), float(place.rank))).unique().tolist() == [total]
    own, shared = alone.empty_symmetric(3), pair.empty_symmetric(3)
    groups = [everybody, pair, again, alone]
    everybody.barrier()
    groups = groups[place.rank :] + groups[: place.rank]
    for group in groups:
        group.close()
        group.close()
    own += 1
    shared += place.rank
    assert own.tolist() == [1.0] * 3
    assert shared.tolist() == [float(place.rank)] * 3  # the pair's other rank has another one


def ranks_may_be_threads(place: Place) -> None:
    """Two processes of two ranks each, a thread each, which share the process's lock and its op."""
    results: list[Any] = []

    def one(rank: int) -> None:
        group = place.comm.new_group(4, rank, store=place.store(4), timeout_s=FOREVER_S)
        for count in (3, 200_000):
            x = torch.full((count,), float(rank))
            results.append(group.all_reduce(x).unique().tolist())
        if rank == 3:
            time.sleep(0.2)  # the others look whether it lives
        group.barrier()
        group.close()

    in_threads(2, lambda i: one(2 * place.rank + i))
    assert results == [[6.0]] * 4, results


def different_calls_are_an_error_on_all_ranks(place: Place) -> None:
    """Rank 0 calls something else than rank 1; nothing is changed, and the group stays usable."""
    group = place.group()
    x, gathered = torch.ones(6), torch.full((12,), 7.0)
    y = group.empty_symmetric(300_000)
    calls: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (lambda: group.all_reduce(x[:5]), lambda: group.all_reduce(torch.ones(500_000))),
        (lambda: group.all_reduce(x), lambda: group.all_reduce(x, "max")),
        (lambda: group.all_gather(gathered, x), group.barrier),
        (lambda: group.broadcast(x, 1), lambda: group.broadcast(x, 0)),
        (lambda: group.all_reduce(y[1:200_001]), lambda: group.all_reduce(y[:200_000])),
    ]
    texts = [
        "of 5 float32, rank 1 called all_reduce (sum) of 500000 float32",
        "(sum) of 6 float32, rank 1 called all_reduce (max) of 6",
        "all_gather of 24 bytes of Float, rank 1 called barrier",
        "broadcast of 24 bytes of Float from rank 1, rank 1 called broadcast of 24 bytes of Float",
        "float32 in symmetric memory 0 at byte 4, rank 1 called all_reduce (sum) of 200000 float32 in symm",
    ]
    for pair, text in zip(calls, texts, strict=True):
        message = failure_of(pair[place.rank])
        assert message.startswith("SharedMemoryCommError: ")
        assert (text if place.rank == 0 else "rank 1 called") in message
        assert gathered.unique().tolist() == [7.0]
        assert group.all_reduce(torch.ones(3)).tolist() == [place.size] * 3


def ctrl_c_ends_a_wait_and_the_other_rank_hears_of_it(place: Place) -> None:
    group = place.group()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    group.barrier()
    if place.rank == 1:
        wait_until_asleep(place.process_of(0))
        os.kill(place.process_of(0), signal.SIGINT)
        place.wait("interrupted")
        group.all_reduce(torch.ones(4))  # all there is for it
        message = failure_of(group.barrier)
        assert message.startswith("SharedMemoryCommError: ")
        assert "rank 0 gave up when it was interrupted" in message
    else:
        assert failure_of(lambda: group.all_reduce(torch.ones(4))) == "KeyboardInterrupt: "
        place.signal("interrupted")
        assert "a signal ended the wait for rank 1" in failure_of(group.barrier)


def memory_that_one_rank_cannot_map_is_nobodys(place: Place) -> None:
    """Rank 0 has no room for the others' memory, but for its own."""
    group = place.group()
    size_bytes = 64 << 20
    before = resource.getrlimit(resource.RLIMIT_AS)
    if place.rank == 0:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + size_bytes * 3 // 2, before[1]))
    message = failure_of(lambda: group.empty_symmetric(size_bytes, torch.uint8))
    resource.setrlimit(resource.RLIMIT_AS, before)
    if place.rank == 0:
        assert message.startswith("SharedMemorySpaceError: ")
        assert "Cannot allocate memory" in message
    else:
        assert message.startswith("SharedMemoryCommError: Rank 0 cannot map")
    group.barrier()  # the next collective unmaps what all ranks have released
    assert place.mappings() == 2  # the group's own alone
    symmetric = group.empty_symmetric(5000)  # the same one on all ranks
    assert group.all_reduce(symmetric.fill_(1.0)).unique().tolist() == [float(place.size)]


def closing_the_group_ends_the_wait_of_another_thread(place: Place) -> None:
    group = place.group()
    group.barrier()
    if place.rank == 1:
        place.wait("over")
        return
    message: list[str] = []
    thread = threading.Thread(target=lambda: message.append(failure_of(group.barrier)))
    thread.start()
    wait_until_asleep(os.getpid(), thread.native_id)
    group.close()
    thread.join()
    place.signal("over")
    assert message[0].startswith("SharedMemoryCommError: ")
    assert "another thread of this rank closed the group" in message[0]


def memory_that_cannot_be_allocated_is_an_error_on_all_ranks(place: Place) -> None:
    """Rank 0 may not have files of that size, as memory of a group or as symmetric memory."""
    group = place.group()
    if place.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    for needed_bytes, take in ((2101248, place.group), (4 << 20, lambda: group.empty_symmetric(4 << 18))):
        if place.rank == 0:
            with pytest.raises(SharedMemorySpaceError, match="File too large") as caught:
                take()
            assert caught.value.needed_bytes == needed_bytes
        else:
            with pytest.raises(SharedMemoryCommError, match="cannot take part"):
                take()
        group.barrier()  # as usable as before


def memory_is_given_back(place: Place) -> None:
    group = place.group()
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
        assert place.mappings() == 2  # the group's own alone
    descriptors = len(os.listdir("/proc/self/fd"))
    group.close()
    assert place.mappings() == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors - 2


HOLDS: dict[Callable[[Place], None], int] = {
    the_small_tensor_may_be_a_part_of_the_large_one: 3,
    nan_wins: 2,
    several_groups_live_in_one_process: 4,
    ranks_may_be_threads: 2,
    different_calls_are_an_error_on_all_ranks: 2,
    ctrl_c_ends_a_wait_and_the_other_rank_hears_of_it: 2,
    memory_that_one_rank_cannot_map_is_nobodys: 2,
    closing_the_group_ends_the_wait_of_another_thread: 2,
    memory_that_cannot_be_allocated_is_an_error_on_all_ranks: 2,
    memory_is_given_back: 2,
}
"""Cases without a result, and with how many ranks they run."""


# Compiled --------------------------------------------------------------------------------------------------------


def compiled_block(place: Place, backend: str, port: int) -> list[float]:
    """A tensor-parallel block; the largest differences: compiled against eager, and against the whole on one rank."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(place.rank))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place.directory / f"inductor-{place.rank}")
    place.comm.initialize(2, place.rank)
    reductions = (place.comm.inference_all_reduce, place.comm.inference_all_reduce_)  # functional, in place
    torch.manual_seed(0)
    layers = [[torch.randn(shape) / 8 for shape in ((64, 128), (128, 64))] for _ in reductions]
    units = slice(place.rank * 64, (place.rank + 1) * 64)

    def feed_forward(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (64,)) @ up) @ down

    def block(x: torch.Tensor) -> torch.Tensor:
        for (up, down), reduce in zip(layers, reductions, strict=True):
            x = x + reduce(feed_forward(x, up[:, units], down[units]))
        return x

    compiled = torch.compile(block, backend=backend, fullgraph=True, dynamic=True)
    differences = [0.0, 0.0]
    for length in (16, 24):
        x = torch.randn(2, length, 64)
        whole = x
        for layer in layers:
            whole = whole + feed_forward(whole, *layer)
        result = compiled(x)
        differences[0] = max(differences[0], float((result - block(x)).abs().max()))
        differences[1] = max(differences[1], float((result - whole).abs().max()))
    return differences


def run(rank: int, size: int, directory: str, case: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a case; how it ended."""
    torch.set_num_threads(1)
    write_pid(directory, rank)
    end: dict[str, Any] = {"value": None, "error": "", "facts": {}}
    try:
        end["value"] = globals()[case](Place(rank, size, Path(directory)), **arguments)
    except BaseException as error:
        end["error"] = f"{type(error).__name__}: {error}"
        end["facts"] = {name: value for name, value in vars(error).items() if isinstance(value, int | float | str)}
        if isinstance(error, AssertionError):
            end["error"] += traceback.format_exc()
    atexit.register(os._exit, 0)  # freeing all of torch would take longer than most cases
    return end


# In the test's own process -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankEnd:
    """How a rank's part of a case ended.

    Attributes:
        signal: that it was killed by; 0 where it was not.
        value: what it returned, None where it did not.
        error: the name of the exception's class, and its text; empty where there was none.
        facts: further facts in the exception.
    """

    signal: int
    value: Any = None
    error: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


def run_case(case: Callable[..., Any], size: int, **arguments: Any) -> list[RankEnd]:
    """Run a case in as many processes as there are ranks; each one's end."""
    with tempfile.TemporaryDirectory() as directory:
        results = run_ranks("shm_cases", "run", size, Path(directory), arguments=[case.__name__, arguments])
    assert all(result.status <= 0 for result in results), results
    return [RankEnd(-result.status, **(result.value or {})) for result in results]


def values_of_case(case: Callable[..., Any], size: int, **arguments: Any) -> list[Any]:
    """What each rank returned; none may have failed."""
    ends = run_case(case, size, **arguments)
    assert [(end.error, end.signal) for end in ends] == [("", 0)] * size, ends
    return [end.value for end in ends]
