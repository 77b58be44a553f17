"""async_io beside fio and DeepSpeed's op, on one file, in one run.

Each contender is first tried three times with every setting of its own; then all take turns, each with its fastest one
or, of several as fast, with the one that takes the least CPU time. A figure is the median of its turns. Everything goes
past the page cache.

    python -m benchmarks.aio [--directory DIR] [--size-mib N] [--rounds N] [--peers fio,deepspeed] [--json] [--write]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import _fio, _measure
from benchmarks._fio import Transfer
from benchmarks._processes import cold_build_s
from op_builder.cpu import AsyncIOBuilder
from op_builder.system import storage_engines

OURS = "accel-ops"
PEERS = ("fio", "deepspeed")
MIB = 1 << 20
SMALL_BLOCK, SMALL_DEPTH = 4096, 128
TRIES = 3
AS_FAST = 1.03  # what lies within this of the shortest time is chance
FIO_BYTES = 32 * MIB  # the most that it has in flight

Run = Callable[[], Transfer]


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a contender works: its engine, bytes of a command, commands in flight, threads."""

    engine: str
    block_bytes: int
    depth: int
    threads: int = 1

    def __str__(self) -> str:
        size = f"{self.block_bytes // MIB} MiB" if self.block_bytes >= MIB else f"{self.block_bytes >> 10} KiB"
        return f"{self.engine}, {size} x {self.depth}" + (f", {self.threads} threads" if self.threads > 1 else "")


@dataclasses.dataclass(frozen=True)
class Result:
    """One contender in one case, with the setting it was measured with."""

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
    def thousand_commands_per_s(self) -> float:
        return self.size_bytes / self.setting.block_bytes / self.seconds / 1e3


def settings(engines: tuple[str, ...]) -> list[Setting]:
    return [Setting(engine, block * MIB, depth) for engine in engines for block, depth in ((1, 8), (1, 32), (4, 8))]


class Bench:
    """One file, a pinned tensor of its size, and the contenders on it."""

    def __init__(self, path: Path, size_bytes: int, rounds: int) -> None:
        self.path, self.size_bytes, self.rounds = path, size_bytes, rounds
        self.module = AsyncIOBuilder().load()
        self.buffer = self.module.aio_handle().new_cpu_locked_tensor(size_bytes, torch.empty(0, dtype=torch.uint8))
        self.pageable = torch.ones(size_bytes, dtype=torch.uint8)
        self.results: list[Result] = []

    def ours(self, direction: str, setting: Setting, *, pinned: bool = True) -> Run:
        handle = self.module.aio_handle(
            setting.block_bytes, setting.depth, False, True, setting.threads, engine=setting.engine
        )
        call = handle.sync_pread if direction == "read" else handle.sync_pwrite
        buffer = self.buffer if pinned else self.pageable

        def run() -> Transfer:
            cpu, started = cpu_seconds(), time.perf_counter()
            call(buffer, self.path)
            return Transfer(time.perf_counter() - started, cpu_seconds() - cpu)

        return run

    def fio(self, direction: str, setting: Setting) -> Run:
        return lambda: _fio.run(
            self.path, self.size_bytes, direction, setting.engine, setting.block_bytes, setting.depth
        )

    def deepspeed(self, peer: _measure.PeerProcess, direction: str, setting: Setting) -> Run:
        def run() -> Transfer:
            answer = peer.ask(
                do=direction,
                path=str(self.path),
                block_bytes=setting.block_bytes,
                depth=setting.depth,
                threads=setting.threads,
            )
            return Transfer(answer["seconds"], answer["cpu_s"])

        return run

    def best(self, runs: dict[Setting, Run]) -> Setting:
        """The fastest setting; of those that are as fast, the one with the least CPU time."""
        tried = self.interleave({str(setting): run for setting, run in runs.items()}, TRIES, "trying settings")
        seconds = {s: statistics.median(transfer.seconds for transfer in tried[str(s)]) for s in runs}
        cpu_s = {s: statistics.median(transfer.cpu_s for transfer in tried[str(s)]) for s in runs}
        as_fast = [setting for setting in runs if seconds[setting] <= min(seconds.values()) * AS_FAST]
        return min(as_fast, key=cpu_s.__getitem__)

    def interleave(self, runs: dict[str, Run], rounds: int, what: str) -> dict[str, list[Transfer]]:
        taken: dict[str, list[Transfer]] = {name: [] for name in runs}

        def timed(name: str) -> Callable[[], float]:
            def run() -> float:
                taken[name].append(runs[name]())
                return taken[name][-1].seconds

            return run

        with _measure.make_progress() as progress:
            task = progress.add_task(what, total=(rounds + 1) * len(runs))
            _measure.interleave({name: timed(name) for name in runs}, rounds, lambda: progress.advance(task))
        return {name: transfers[1:] for name, transfers in taken.items()}

    def measure(self, case: str, contenders: dict[str, tuple[Setting, Run]]) -> None:
        taken = self.interleave({name: run for name, (_, run) in contenders.items()}, self.rounds, case)
        for name, (setting, _) in contenders.items():
            self.results.append(Result(case, name, setting, self.size_bytes, taken[name]))

    def sequential(self, direction: str, with_fio: bool, peer: _measure.PeerProcess | None) -> None:
        """The whole file at the best setting of each; and through fio's libaio, for its CPU time."""
        engines = tuple(engine.name for engine in storage_engines.storage_engines() if engine.refusal is None)
        best = self.best({setting: self.ours(direction, setting) for setting in settings(engines)})
        contenders = {OURS: (best, self.ours(direction, best))}
        contenders[f"{OURS}, pageable"] = (best, self.ours(direction, best, pinned=False))
        if with_fio:
            runs = {setting: self.fio(direction, setting) for setting in settings(("io_uring", "libaio"))}
            best = self.best(runs)
            contenders["fio"] = (best, runs[best])
            if best.engine != "libaio":
                contenders["fio libaio"] = (apart := Setting("libaio", best.block_bytes, best.depth), runs[apart])
        if peer is not None:
            theirs = [*settings(("libaio",)), Setting("libaio", MIB, 32, 2), Setting("libaio", 4 * MIB, 8, 2)]
            runs = {setting: self.deepspeed(peer, direction, setting) for setting in theirs}
            best = self.best(runs)
            contenders["deepspeed"] = (best, runs[best])
        self.measure(f"{direction}, {self.size_bytes // MIB} MiB", contenders)

    def small_blocks(self, with_fio: bool) -> None:
        if storage_engines.refusal("io_uring"):
            return
        setting = Setting("io_uring", SMALL_BLOCK, SMALL_DEPTH)
        contenders = {OURS: (setting, self.ours("read", setting))}
        if with_fio:
            contenders["fio"] = (setting, self.fio("read", setting))
        self.measure(f"read, {self.size_bytes // MIB} MiB in blocks of 4 KiB", contenders)


def cpu_seconds() -> float:
    """Of this process, all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def overlap_cost(bench: Bench, setting: Setting) -> float:
    """How much longer computing and reading take together than the longer of both takes alone, as a share of it.

    The compute is one thread's matrix products, as long as the read takes.
    """
    torch.set_num_threads(1)
    matrix = torch.rand(512, 512)
    handle = bench.module.aio_handle(setting.block_bytes, setting.depth, False, True, engine=setting.engine)

    def compute(times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            torch.mm(matrix, matrix)
        return time.perf_counter() - started

    def read() -> float:
        started = time.perf_counter()
        handle.sync_pread(bench.buffer, bench.path)
        return time.perf_counter() - started

    compute(20)
    times = max(1, int(100 * read() / compute(100)))

    def both() -> float:
        started = time.perf_counter()
        handle.async_pread(bench.buffer, bench.path)
        compute(times)
        handle.wait()
        return time.perf_counter() - started

    with _measure.make_progress() as progress:
        task = progress.add_task("compute and read", total=3 * (bench.rounds + 1))
        contenders = {"compute": lambda: compute(times), "read": read, "both": both}
        taken = _measure.interleave(contenders, bench.rounds, lambda: progress.advance(task))
    median = {name: statistics.median(seconds) for name, seconds in taken.items()}
    return median["both"] / max(median["compute"], median["read"]) - 1


COLUMNS = ("case", "contender", "setting", "GB/s", "best", "1,000 commands/s", "CPU s/GB")
ASKED_COLUMNS = ("what", "asked", "verdict", "figure")


def rows_of(results: list[Result]) -> list[list[str]]:
    return [
        [
            result.case,
            result.contender,
            str(result.setting),
            f"{result.gb_per_s:.2f}",
            f"{result.size_bytes / min(transfer.seconds for transfer in result.transfers) / 1e9:.2f}",
            f"{result.thousand_commands_per_s:.1f}",
            f"{result.cpu_s_per_gb:.3f}",
        ]
        for result in results
    ]


def asked_rows(results: list[Result], overlap: float, build_s: float) -> list[list[str]]:
    """What is asked of our figures and whether it is met, a verdict a row."""
    rows = []

    def ask(what: str, asked: str, figure: float, is_met: bool) -> None:
        rows.append([what, asked, "ok" if is_met else "miss", f"{figure:.2f}"])

    for case in dict.fromkeys(result.case for result in results):
        of_case = {result.contender: result for result in results if result.case == case}
        ours, is_small = of_case[OURS], "blocks" in case
        if "fio" in of_case:
            least = 0.8 if is_small else 1.0
            ratio = of_case["fio"].seconds / ours.seconds
            ask(f"{case}: times fio's best", f">= {least}", ratio, ratio >= least)
        if "deepspeed" in of_case:
            ratio = of_case["deepspeed"].seconds / ours.seconds
            ask(f"{case}: times DeepSpeed's best", ">= 1.1", ratio, ratio >= 1.1)
        libaio = [result for result in of_case.values() if result.contender.startswith("fio") and not is_small]
        libaio = [result for result in libaio if result.setting.engine == "libaio"]
        if libaio:
            ratio = ours.cpu_s_per_gb / libaio[0].cpu_s_per_gb
            ask(f"{case}: CPU time, of fio's libaio", "<= 1.2", ratio, ratio <= 1.2)
    ask("cold build, s", "<= 8", build_s, build_s <= 8)
    ask("compute and read together, above the longer of both", "<= 0.10", overlap, overlap <= 0.10)
    return rows


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aio", description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", type=Path, help="where the file is made (default: the temporary directory)")
    parser.add_argument("--size-mib", type=int, default=1024, help="of the file (default 1024)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender")
    parser.add_argument("--deepspeed-python", help="interpreter that has deepspeed (default: this one, or a made one)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="write the table into docs/internals")
    return _measure.parse_with_peers(parser, PEERS)


def main() -> None:
    arguments = parse_arguments()
    with_fio = "fio" in arguments.peers and _fio.is_there()
    if "fio" in arguments.peers and not with_fio:
        _measure.progress_console.print("fio is left out: it is not installed (Debian: apt-get install fio).")
    if with_fio and not _fio.has_large_pages(FIO_BYTES):
        _measure.progress_console.print(
            "fio's buffers are in small pages, which makes it slower: no large ones are reserved "
            f"(sysctl vm.nr_hugepages={FIO_BYTES // (2 * MIB) + 1})."
        )
    machine = _measure.describe_machine()
    build_s = min(cold_build_s("AsyncIOBuilder") for _ in range(2))
    size_bytes = arguments.size_mib * MIB
    peer = None
    if "deepspeed" in arguments.peers:
        python = _measure.peer_python(*_measure.DEEPSPEED, arguments.deepspeed_python)
        peer = _measure.PeerProcess([python, Path(__file__).parent / "programs" / "deepspeed_aio.py"])
        peer.ask(do="prepare", size_bytes=size_bytes)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        bench = Bench(Path(directory) / "file", size_bytes, arguments.rounds)
        bench.ours("write", Setting("threads", MIB, 8))()
        for direction in ("write", "read"):
            bench.sequential(direction, with_fio, peer)
        if peer is not None:
            peer.close()
        bench.small_blocks(with_fio)
        overlap = overlap_cost(
            bench, next(result.setting for result in bench.results if result.case.startswith("read"))
        )
    report(arguments, machine, bench.results, asked_rows(bench.results, overlap, build_s))


def report(arguments: argparse.Namespace, machine: Any, results: list[Result], asked: list[list[str]]) -> None:
    if arguments.json:
        entries = [{**dataclasses.asdict(result), "gb_per_s": result.gb_per_s} for result in results]
        print(json.dumps({"machine": dataclasses.asdict(machine), "results": entries, "asked": asked}, indent=2))
    else:
        _measure.console.print(_measure.table("Tensors and one file", COLUMNS, rows_of(results)))
        _measure.console.print(_measure.table("What is asked", ASKED_COLUMNS, asked))
        _measure.console.print(str(machine))
    if arguments.write:
        tables = [_measure.markdown(COLUMNS, rows_of(results)), _measure.markdown(ASKED_COLUMNS, asked)]
        _measure.write_results("aio", "\n\n".join([str(machine), *tables]))


if __name__ == "__main__":
    main()
