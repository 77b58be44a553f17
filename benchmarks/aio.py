"""async_io against fio and DeepSpeed's op: tensors and one file, without the page cache.

Each contender first tries all its settings three times. Then all alternate, each with
its fastest setting or, if several are as fast, with the one of those that takes the least
CPU time. A figure is the median of a contender's turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks import _fio, _measure, _peers
from benchmarks._fio import Transfer
from benchmarks._measure import Requirement, Table, at_least, at_most, interleave, requirement_table, seconds_of
from benchmarks._processes import cold_build_s
from op_builder.cpu import AsyncIOBuilder
from op_builder.system.storage_engines import ENGINES

OURS = "accel-ops"
PEERS = ("fio", "deepspeed")
MIB = 1 << 20
SMALL_BLOCK, SMALL_DEPTH = 4096, 128
TRIES = 3
AS_FAST = 1.03  # smaller differences from the shortest time are noise
FIO_BYTES = 32 * MIB  # the most that it has in flight
PICTURE = _measure.IMAGES / "aio.png"

Run = Callable[[], Transfer]


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a contender works; ``depth`` is its number of commands in flight."""

    engine: str
    block_bytes: int
    depth: int
    threads: int = 1

    def __str__(self) -> str:
        size = f"{self.block_bytes // MIB} MiB" if self.block_bytes >= MIB else f"{self.block_bytes >> 10} KiB"
        return f"{self.engine}, {size} x {self.depth}" + (f", {self.threads} threads" if self.threads > 1 else "")


@dataclasses.dataclass(frozen=True)
class Result:
    """One contender in one case, with its setting."""

    case: str
    contender: str
    setting: Setting
    size_bytes: int
    transfers: list[Transfer]

    @property
    def seconds(self) -> float:
        return statistics.median(transfer.seconds for transfer in self.transfers)

    @property
    def gb_per_s(self) -> float:
        return self.size_bytes / self.seconds / 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        return statistics.median(transfer.cpu_s for transfer in self.transfers) / (self.size_bytes / 1e9)

    @property
    def row(self) -> list[str]:
        return [
            self.case,
            self.contender,
            str(self.setting),
            f"{self.gb_per_s:.2f}",
            f"{self.size_bytes / min(transfer.seconds for transfer in self.transfers) / 1e9:.2f}",
            f"{self.size_bytes / self.setting.block_bytes / self.seconds / 1e3:.1f}",
            f"{self.cpu_s_per_gb:.3f}",
        ]


COLUMNS = ("case", "contender", "setting", "GB/s", "best GB/s", "1,000 commands/s", "CPU s/GB")


def settings(*engines: str) -> list[Setting]:
    """The settings to try."""
    return [Setting(engine, block * MIB, depth) for engine in engines for block, depth in ((1, 8), (1, 32), (4, 8))]


class Bench:
    """One file, a pinned tensor of its size, and the contenders that transfer it.

    Args:
        peer: DeepSpeed's process; None without that peer.
    """

    def __init__(
        self, path: Path, size_bytes: int, rounds: int, with_fio: bool, peer: _peers.PeerProcess | None
    ) -> None:
        self.path, self.size_bytes, self.rounds = path, size_bytes, rounds
        self._with_fio, self._peer = with_fio, peer
        self.module = AsyncIOBuilder().load()
        self.buffer = self.module.aio_handle().new_cpu_locked_tensor(size_bytes, torch.empty(0, dtype=torch.uint8))
        self._pageable = torch.ones(size_bytes, dtype=torch.uint8)
        self.results: list[Result] = []

    def ours(self, direction: str, setting: Setting, *, pinned: bool = True) -> Run:
        """Our transfer."""
        handle = self.module.aio_handle(
            setting.block_bytes, setting.depth, False, True, setting.threads, engine=setting.engine
        )
        call = handle.sync_pread if direction == "read" else handle.sync_pwrite
        buffer = self.buffer if pinned else self._pageable

        def run() -> Transfer:
            cpu, started = time.process_time(), time.perf_counter()
            call(buffer, self.path)
            return Transfer(time.perf_counter() - started, time.process_time() - cpu)

        return run

    def sequential(self, direction: str) -> None:
        """Measure the whole file, each contender at its best setting; fio also with libaio, for its CPU time."""
        engines = [name for name in ENGINES if name not in self.module.rejected_engines()]
        best = self._best({setting: self.ours(direction, setting) for setting in settings(*engines)})
        contenders = {OURS: (best, self.ours(direction, best))}
        contenders[f"{OURS}, pageable"] = (best, self.ours(direction, best, pinned=False))
        if self._with_fio:
            runs = {setting: self._fio(direction, setting) for setting in settings("io_uring", "libaio")}
            best = self._best(runs)
            contenders["fio"] = (best, runs[best])
            libaio = dataclasses.replace(best, engine="libaio")
            contenders["fio libaio"] = (libaio, runs[libaio])
        if self._peer is not None:
            tried = [*settings("libaio"), Setting("libaio", MIB, 32, 2), Setting("libaio", 4 * MIB, 8, 2)]
            runs = {setting: partial(self._deepspeed, direction, setting) for setting in tried}
            best = self._best(runs)
            contenders["deepspeed"] = (best, runs[best])
        self._measure(f"{direction}, {self.size_bytes // MIB} MiB", contenders)

    def small_blocks(self) -> None:
        """Measure reading in blocks of 4 KiB, if io_uring works here."""
        if "io_uring" in self.module.rejected_engines():
            return
        setting = Setting("io_uring", SMALL_BLOCK, SMALL_DEPTH)
        contenders = {OURS: (setting, self.ours("read", setting))}
        if self._with_fio:
            contenders["fio"] = (setting, self._fio("read", setting))
        self._measure(f"read, {self.size_bytes // MIB} MiB in blocks of 4 KiB", contenders)

    def overlap_cost(self, setting: Setting) -> float:
        """How much longer computing while reading takes than the longer of both alone, as a share of that.

        One thread multiplies matrices for as long as the read takes.
        """
        torch.set_num_threads(1)
        matrix = torch.rand(512, 512)
        handle = self.module.aio_handle(setting.block_bytes, setting.depth, False, True, engine=setting.engine)

        def multiply(times: int) -> None:
            for _ in range(times):
                torch.mm(matrix, matrix)

        read = partial(seconds_of, handle.sync_pread, self.buffer, self.path)
        multiply(20)
        times = max(1, int(100 * read() / seconds_of(multiply, 100)))

        def both() -> None:
            handle.async_pread(self.buffer, self.path)
            multiply(times)
            handle.wait()

        contenders = {"compute": partial(seconds_of, multiply, times), "read": read, "both": partial(seconds_of, both)}
        taken = interleave(contenders, self.rounds, "compute and read")
        median = {name: statistics.median(seconds) for name, seconds in taken.items()}
        return median["both"] / max(median["compute"], median["read"]) - 1

    def _fio(self, direction: str, setting: Setting) -> Run:
        return partial(
            _fio.run, self.path, self.size_bytes, direction, setting.engine, setting.block_bytes, setting.depth
        )

    def _deepspeed(self, direction: str, setting: Setting) -> Transfer:
        assert self._peer is not None
        block_bytes, depth, threads = setting.block_bytes, setting.depth, setting.threads
        return Transfer(
            **self._peer.ask(do=direction, path=str(self.path), block_bytes=block_bytes, depth=depth, threads=threads)
        )

    def _best(self, runs: dict[Setting, Run]) -> Setting:
        """The fastest setting; of those as fast, the one with the least CPU time."""
        tried = interleave({str(setting): run for setting, run in runs.items()}, TRIES, "trying settings")
        seconds = {one: statistics.median(transfer.seconds for transfer in tried[str(one)]) for one in runs}
        cpu_s = {one: statistics.median(transfer.cpu_s for transfer in tried[str(one)]) for one in runs}
        as_fast = [setting for setting in runs if seconds[setting] <= min(seconds.values()) * AS_FAST]
        return min(as_fast, key=cpu_s.__getitem__)

    def _measure(self, case: str, contenders: dict[str, tuple[Setting, Run]]) -> None:
        taken = interleave({name: run for name, (_, run) in contenders.items()}, self.rounds, case)
        for name, (setting, _) in contenders.items():
            self.results.append(Result(case, name, setting, self.size_bytes, taken[name]))


def requirements(results: Sequence[Result], overlap: float, build_s: float) -> list[Requirement]:
    """The limits of our figures."""
    found = []
    for case in dict.fromkeys(result.case for result in results):
        by_name = {result.contender: result for result in results if result.case == case}
        ours = by_name[OURS]
        if "fio" in by_name:
            least = 0.8 if "blocks" in case else 1.0
            found.append(at_least(f"{case}: fio's time", by_name["fio"].seconds / ours.seconds, least, "x"))
        if "deepspeed" in by_name:
            ratio = by_name["deepspeed"].seconds / ours.seconds
            found.append(at_least(f"{case}: deepspeed's time", ratio, 1.1, "x"))
        if "fio libaio" in by_name:
            ratio = ours.cpu_s_per_gb / by_name["fio libaio"].cpu_s_per_gb
            found.append(at_most(f"{case}: CPU time / fio libaio's", ratio, 1.2))
    found.append(at_most("computing while reading, above the longer of both", overlap, 0.10))
    return [*found, at_most("cold build", build_s, 8.0, "s")]


def can_use_fio(arguments: argparse.Namespace) -> bool:
    """Whether fio takes part; print a warning if it is missing or handicapped."""
    if "fio" not in arguments.peers:
        return False
    warn = partial(_measure.progress_console.print, style="yellow")
    if not _fio.is_installed():
        warn("Warning: fio is not installed, so there is no comparison with it. On Debian: apt-get install fio")
        return False
    if not _fio.has_large_pages(FIO_BYTES):
        warn(
            "Warning: fio is slower than it could be, because too few large pages are reserved for its buffers. "
            f"Run sysctl vm.nr_hugepages={FIO_BYTES // (2 * MIB) + 1} as root."
        )
    return True


def main() -> None:
    parser = _measure.make_parser("aio", __doc__, "a file of 128 MiB, three turns", PEERS)
    parser.add_argument(
        "--directory", type=Path, help="directory of the file, on the disk to test (default: the temporary directory)"
    )
    parser.add_argument("--size-mib", type=_measure.positive, metavar="N", help="size of the file (default: 1024)")
    arguments = parser.parse_args()
    size_bytes = (arguments.size_mib or (128 if arguments.quick else 1024)) * MIB
    with_fio = can_use_fio(arguments)
    machine = _measure.describe_machine()
    build_s = min(cold_build_s("AsyncIOBuilder") for _ in range(1 if arguments.quick else 2))
    peer = None
    if "deepspeed" in arguments.peers:
        peer = _peers.PeerProcess([_peers.deepspeed_python(), _peers.PROGRAMS / "deepspeed_aio.py"])
        peer.ask(do="prepare", size_bytes=size_bytes)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        bench = Bench(Path(directory) / "file", size_bytes, 3 if arguments.quick else 7, with_fio, peer)
        bench.ours("write", Setting("threads", MIB, 8))()
        bench.sequential("write")
        bench.sequential("read")
        if peer is not None:
            peer.close()
        bench.small_blocks()
        overlap = bench.overlap_cost(next(one.setting for one in bench.results if one.case.startswith("read")))
    tables = [
        Table("Tensors and one file", COLUMNS, [result.row for result in bench.results]),
        requirement_table(requirements(bench.results, overlap, build_s)),
    ]
    _measure.report("aio", arguments, machine, tables, bench.results)
    if arguments.write:
        groups: dict[str, dict[str, float]] = {}
        for result in bench.results:
            groups.setdefault(result.case, {})[result.contender] = result.gb_per_s
        _measure.draw_bars(PICTURE, "Tensors and one file, without the page cache", "GB/s", groups)


if __name__ == "__main__":
    main()
