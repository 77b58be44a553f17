"""All-reduce between ranks of one machine, against gloo, DeepSpeed and oneCCL.

First two ranks, from 4 bytes to 256 MiB; then four ranks; then four for each core, on at
most four cores. A rank is a process with one thread that stays for the whole run. Contenders take
turns; a figure is the median of the turns, and a turn the mean of as many calls as take
a tenth of a second. oneCCL is left out of the second part, because its own threads take
a core for each rank.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import socket
import statistics
import sys
from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path

from benchmarks import _measure, _peers
from benchmarks._measure import IMAGES, ROOT, Requirement, Table, at_least, at_most, duration, requirement_table
from benchmarks._peers import PROGRAMS, PeerProcess
from benchmarks._processes import cold_build_s
from op_builder.cpu import CCLCommBuilder

PEERS = ("gloo", "deepspeed", "oneccl")
OURS, SYMMETRIC = "accel-ops", "accel-ops, symmetric"
RANKS = 2
FOUR_RANKS = 4
CROWD_PER_CORE = 4
CROWD_CORES = 4  # enough to see how ranks share a core; each rank is a process with torch
CROWD_PEERS = ("gloo", "deepspeed")
CROWD_SIZES = [1 << 12, 1 << 22]
CROWD_ROUNDS = 5  # a rank that spins holds a core for whole time slices, so turns are slow
SIZES = [1 << shift for shift in (2, 4, 6, 8, *range(10, 29))]
FOUR_SIZES = [1 << shift for shift in (2, 10, 12, 14, 16, 20, 26)]
QUICK_SIZES = [1 << 10, 1 << 12, 1 << 20, 1 << 26]
TURN_S = 0.1
PICTURE = IMAGES / "all_reduce.png"


class Ranks:
    """The processes of one contender, bound to these cores."""

    def __init__(self, contender: str, python: Path, size: int, cores: Set[int]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": os.pathsep.join(paths)}
        self._leftovers = f"deepspeed_allreduce_buffer_*_127.0.0.1_{port}_*"
        self.contender = contender
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # the processes inherit it
        try:
            self._processes = [
                PeerProcess([python, PROGRAMS / "all_reduce.py", contender, str(rank), str(size)], variables)
                for rank in range(size)
            ]
        finally:
            os.sched_setaffinity(0, before)

    def seconds(self, size_bytes: int, repeats: int) -> float:
        """The slowest rank's mean time of an all-reduce."""
        for process in self._processes:
            process.send(bytes=size_bytes, repeats=repeats)
        return max(float(process.receive()["seconds"]) for process in self._processes) / repeats

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()
        # DeepSpeed's op does not remove its segments, 70 MB for each rank.
        for segment in Path("/dev/shm").glob(self._leftovers):
            segment.unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class Row:
    """All contenders at one size: by name, the seconds of each turn."""

    size_bytes: int
    turns: dict[str, list[float]]

    @property
    def size(self) -> str:
        """``4 KiB``."""
        for shift, unit in ((20, "MiB"), (10, "KiB")):
            if self.size_bytes >= 1 << shift:
                return f"{self.size_bytes >> shift} {unit}"
        return f"{self.size_bytes} B"

    def median_s(self, contender: str) -> float:
        return statistics.median(self.turns[contender])

    def ratio(self, peer: str, ours: str = OURS) -> float:
        """How many times as long the peer takes."""
        return self.median_s(peer) / self.median_s(ours)

    @property
    def best_peer(self) -> str | None:
        peers = [name for name in self.turns if name not in (OURS, SYMMETRIC)]
        return min(peers, key=self.median_s, default=None)


def measure(names: Sequence[str], sizes: Sequence[int], rounds: int, ranks: int, cores: Set[int]) -> list[Row]:
    """A row for each size: all contenders, each with as many ranks, on these cores."""
    contenders: list[Ranks] = []
    rows = []
    try:
        for name in names:
            python = _peers.deepspeed_python() if name == "deepspeed" else Path(sys.executable)
            contenders.append(Ranks(name, python, ranks, cores))
            contenders[-1].seconds(sizes[0], 1)  # has built its op and connected its ranks
        for size_bytes in sizes:
            works = {}
            for one in contenders:
                repeats = max(3, min(20_000, round(TURN_S / one.seconds(size_bytes, 3))))
                works[one.contender] = partial(one.seconds, size_bytes, repeats)
            description = f"{ranks} ranks, {size_bytes:,} bytes"
            rows.append(Row(size_bytes, _measure.interleave(works, rounds, description, warm_ups=0)))
    finally:
        for one in contenders:
            one.close()
    return rows


def table(title: str, rows: Sequence[Row]) -> Table:
    """One row for each size, one column for each contender."""
    cells = []
    for row in rows:
        best = row.best_peer
        ratio = "" if best is None else f"{row.ratio(best):.3g} x {best}"
        cells.append([row.size, *(duration(row.median_s(name)) for name in row.turns), ratio])
    return Table(title, ("size", *rows[0].turns, "best peer / accel-ops"), cells)


def requirements(rows: Sequence[Row], four: Sequence[Row], crowd: Sequence[Row], build_s: float) -> list[Requirement]:
    """The limits of the figures, against the measured peers."""
    results = []
    at = {row.size_bytes: row for row in rows}
    for size_bytes, peer, least, ours in (
        (1 << 12, "deepspeed", 1.0, OURS),
        (1 << 12, "gloo", 100.0, OURS),
        (1 << 26, "deepspeed", 2.0, OURS),
        (1 << 26, "deepspeed", 4.0, SYMMETRIC),
    ):
        row = at[size_bytes]
        if peer in row.turns:
            results.append(at_least(f"{row.size}, {ours}: {peer}'s time", row.ratio(peer, ours), least, "x"))
    parts = ((rows, f"{RANKS} ranks"), (four, f"{FOUR_RANKS} ranks"), (crowd, "more ranks than cores"))
    for part, description in parts:
        compared = [(row.ratio(row.best_peer), row) for row in part if row.best_peer is not None]
        if compared:
            ratio, row = min(compared, key=lambda pair: pair[0])
            what = f"{description}, least ratio of all sizes ({row.size}): {row.best_peer}'s time"
            results.append(at_least(what, ratio, 1.0, "x"))
    return [*results, at_most("cold build", build_s, 4.0, "s")]


def draw(rows: Sequence[Row]) -> None:
    """Draw the time of all contenders over the size, as docs/images/all_reduce.png."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=110, layout="constrained")
    axes = figure.subplots()
    sizes = [row.size_bytes for row in rows]
    for name in rows[0].turns:
        style = "-" if name in (OURS, SYMMETRIC) else "--"
        axes.plot(sizes, [row.median_s(name) * 1e6 for row in rows], style, marker="o", markersize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [row.size for row in rows], rotation=45)
    axes.set(title="All-reduce of float32 between two ranks of one machine", ylabel="µs per all-reduce")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(PICTURE)


def crowd_cores(cores: Set[int]) -> set[int]:
    """The cores for more ranks than cores, of those that this process may use."""
    return set(sorted(cores)[:CROWD_CORES])


def parse_arguments() -> argparse.Namespace:
    return _measure.make_parser("comm", __doc__, "four sizes, three turns", PEERS).parse_args()


def available(peers: Sequence[str]) -> list[str]:
    """The peers that work here. oneCCL needs the extra ``ccl``; the others are installed where they are missing."""
    if "oneccl" not in peers or CCLCommBuilder().is_compatible():
        return list(peers)
    advice = "oneCCL is left out: it is not installed (pip install -e '.[ccl]')."
    _measure.progress_console.print(advice, style="yellow", markup=False)
    return [name for name in peers if name != "oneccl"]


def main() -> None:
    arguments = parse_arguments()
    machine = _measure.describe_machine()
    peers = available(arguments.peers)
    build_s = min(cold_build_s("ShareMemCommBuilder") for _ in range(1 if arguments.quick else 3))
    cores = os.sched_getaffinity(0)
    sizes, rounds = (QUICK_SIZES, 3) if arguments.quick else (SIZES, 9)
    rows = measure((OURS, SYMMETRIC, *peers), sizes, rounds, RANKS, cores)
    common_peers = [name for name in peers if name in CROWD_PEERS]
    four_sizes = [size for size in FOUR_SIZES if size in sizes]
    four = measure((OURS, SYMMETRIC, *common_peers), four_sizes, min(rounds, CROWD_ROUNDS), FOUR_RANKS, cores)
    few = crowd_cores(cores)
    crowd_size = CROWD_PER_CORE * len(few)
    crowd = measure((OURS, SYMMETRIC, *common_peers), CROWD_SIZES, min(rounds, CROWD_ROUNDS), crowd_size, few)
    tables = [
        table(f"All-reduce, {RANKS} ranks", rows),
        table(f"All-reduce, {FOUR_RANKS} ranks", four),
        table(f"All-reduce, {crowd_size} ranks on {len(few)} cores", crowd),
        requirement_table(requirements(rows, four, crowd, build_s)),
    ]
    samples = {"ranks": rows, "four": four, "crowd": crowd, "cold build": build_s}
    _measure.report("comm", arguments, machine, tables, samples)
    if arguments.write:
        draw(rows)


if __name__ == "__main__":
    main()
