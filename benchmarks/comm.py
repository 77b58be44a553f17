"""All-reduce between two ranks of this machine, from 1 KiB to 256 MiB, against peers, in one run; then between more
ranks than cores.

Each contender is a process with one thread for each rank, which stay for the whole run; the contenders take turns at
each size. A figure is the median of the turns, a turn the mean of as many calls as take a tenth of a second. The crowd
is four ranks for each core, on four cores at most, to which they are bound. oneCCL has no part in it: its own threads
take a core for each rank.

    python -m benchmarks.comm [--quick] [--peers gloo,deepspeed,oneccl] [--json] [--write]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import statistics
import sys
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from benchmarks import _measure
from benchmarks._figures import duration
from benchmarks._processes import PROGRAMS, ROOT, cold_build_s

PEERS = ("gloo", "deepspeed", "oneccl")
OURS, SYMMETRIC = "accel-ops", "accel-ops, symmetric"
RANKS = 2
CROWD_PER_CORE = 4
CROWD_CORES = 4  # at most: what is asked is how ranks share a core, and each rank is a process with torch in it
CROWD_PEERS = ("gloo", "deepspeed")
CROWD_SIZES = [1 << 12, 1 << 22]
CROWD_ROUNDS = 5  # at most: a rank that spins keeps the one it waits for from its core, for whole slices of time
SIZES = [1 << shift for shift in range(10, 29)]
QUICK_SIZES = [1 << 10, 1 << 12, 1 << 20, 1 << 26]
TURN_S = 0.1
PICTURE = ROOT / "docs" / "images" / "all_reduce.png"


class Ranks:
    """The processes of one contender, on these cores."""

    def __init__(self, contender: str, python: Path, size: int, cores: Set[int]) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self._left_behind = f"deepspeed_allreduce_buffer_*_127.0.0.1_{port}_*"
        inherited = os.environ.get("PYTHONPATH")
        variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])
        command = [str(python), str(PROGRAMS / "all_reduce.py"), contender]
        self.contender = contender
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # theirs from their first moment: they inherit it
        try:
            commands = [[*command, str(rank), str(size)] for rank in range(size)]
            self._processes = [_measure.PeerProcess(one, variables) for one in commands]
        finally:
            os.sched_setaffinity(0, before)

    def seconds(self, size_bytes: int, repeats: int) -> float:
        """Of one all-reduce, in the mean: the slowest rank's."""
        for process in self._processes:
            process.send(bytes=size_bytes, repeats=repeats)
        return max(float(process.receive()["seconds"]) for process in self._processes) / repeats

    def close(self) -> None:
        for process in self._processes:
            process.close()
        # DeepSpeed's op does not take its segments away, 70 MB for each rank.
        for segment in Path("/dev/shm").glob(self._left_behind):
            segment.unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class Row:
    """All contenders at one size: by name, the seconds of each turn."""

    size_bytes: int
    turns: dict[str, list[float]]

    def median_s(self, contender: str) -> float:
        return statistics.median(self.turns[contender])

    def ratio(self, peer: str, ours: str = OURS) -> float:
        """How many times as long the peer takes."""
        return self.median_s(peer) / self.median_s(ours)

    @property
    def best_peer(self) -> str | None:
        peers = [name for name in self.turns if name not in (OURS, SYMMETRIC)]
        return min(peers, key=self.median_s, default=None)


def measure(contenders: Sequence[Ranks], sizes: Sequence[int], rounds: int) -> list[Row]:
    rows = []
    with _measure.make_progress() as progress:
        task = progress.add_task("all-reduce", total=len(sizes) * (rounds + 1) * len(contenders))
        for size_bytes in sizes:
            progress.update(task, description=f"all-reduce, {size_text(size_bytes)}")
            # The first turn of each only tells how many calls make a turn.
            repeats = {}
            for ranks in contenders:
                once_s = ranks.seconds(size_bytes, 3)
                repeats[ranks.contender] = max(3, min(20_000, round(TURN_S / once_s)))
                progress.advance(task)
            turns: dict[str, list[float]] = {ranks.contender: [] for ranks in contenders}
            for _ in range(rounds):
                for ranks in contenders:
                    turns[ranks.contender].append(ranks.seconds(size_bytes, repeats[ranks.contender]))
                    progress.advance(task)
            rows.append(Row(size_bytes, turns))
    return rows


def size_text(size_bytes: int) -> str:
    """``4 KiB``."""
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"


def table_rows(rows: Sequence[Row]) -> list[list[str]]:
    table = []
    for row in rows:
        best = row.best_peer
        ratio = "" if best is None else f"{row.ratio(best):.3g} x {best}"
        table.append([size_text(row.size_bytes), *(duration(row.median_s(name)) for name in row.turns), ratio])
    return table


def asked_rows(rows: Sequence[Row], crowd: Sequence[Row], build_s: float) -> list[list[str]]:
    """What is asked of our figures and whether it is met, a verdict a row."""
    asked = []

    def ask(what: str, least: float, ratio: float) -> None:
        asked.append([what, f">= {least:g} x", "ok" if ratio >= least else "miss", f"{ratio:.3g} x"])

    at = {row.size_bytes: row for row in rows}
    for size_bytes, peer, least, ours in (
        (1 << 12, "deepspeed", 1.0, OURS),
        (1 << 12, "gloo", 100.0, OURS),
        (1 << 26, "deepspeed", 2.0, OURS),
        (1 << 26, "deepspeed", 4.0, SYMMETRIC),
    ):
        if size_bytes in at and peer in at[size_bytes].turns:
            ask(f"{size_text(size_bytes)}, {ours} against {peer}", least, at[size_bytes].ratio(peer, ours))
    ratios = [(row.ratio(row.best_peer), row) for row in rows if row.best_peer is not None]
    if ratios:
        worst, row = min(ratios, key=lambda pair: pair[0])
        ask(f"the best peer at every size here (least at {size_text(row.size_bytes)}, {row.best_peer})", 1.0, worst)
    for row in crowd:
        if row.best_peer is not None:
            what = f"{size_text(row.size_bytes)}, more ranks than cores, against {row.best_peer}"
            ask(what, 1.0, row.ratio(row.best_peer))
    asked.append(["cold build", "<= 4 s", "ok" if build_s <= 4 else "miss", duration(build_s)])
    return asked


def draw(rows: Sequence[Row]) -> None:
    """The picture of all contenders over the size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for name in rows[0].turns:
        style = "-" if name in (OURS, SYMMETRIC) else "--"
        seconds = [row.median_s(name) * 1e6 for row in rows]
        axes.plot([row.size_bytes for row in rows], seconds, style, marker="o", markersize=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([row.size_bytes for row in rows], [size_text(row.size_bytes) for row in rows], rotation=45)
    axes.set_ylabel("µs per all-reduce")
    axes.set_title("All-reduce of float32 between two ranks of one machine")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


ASKED_COLUMNS = ("what", "asked", "verdict", "figure")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comm", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="four sizes, three turns")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contender at each size (default 9)")
    parser.add_argument("--deepspeed-python", help="interpreter that has deepspeed (default: this one, or a made one)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="put table and picture into the repository")
    return _measure.parse_with_peers(parser, PEERS)


def contend(
    arguments: argparse.Namespace, names: Sequence[str], sizes: Sequence[int], ranks: int, cores: Set[int]
) -> list[Row]:
    """A row for each size, of all contenders with as many ranks on these cores."""
    contenders: list[Ranks] = []
    rounds = 3 if arguments.quick else arguments.rounds
    try:
        for name in names:
            python = Path(sys.executable)
            if name == "deepspeed":
                python = _measure.peer_python(*_measure.DEEPSPEED, arguments.deepspeed_python)
            contenders.append(Ranks(name, python, ranks, cores))
            contenders[-1].seconds(sizes[0], 1)  # built and met before the next one starts
        return measure(contenders, sizes, rounds if ranks == RANKS else min(rounds, CROWD_ROUNDS))
    finally:
        for processes in contenders:
            processes.close()


def crowd_cores(cores: Set[int]) -> set[int]:
    """Which of the cores that this process may use the crowd gets."""
    return set(sorted(cores)[:CROWD_CORES])


def main() -> None:
    arguments = parse_arguments()
    machine = _measure.describe_machine()
    build_s = min(cold_build_s("ShareMemCommBuilder") for _ in range(1 if arguments.quick else 3))
    cores = os.sched_getaffinity(0)
    sizes = QUICK_SIZES if arguments.quick else SIZES
    rows = contend(arguments, (OURS, SYMMETRIC, *arguments.peers), sizes, RANKS, cores)
    peers = [name for name in arguments.peers if name in CROWD_PEERS]
    few = crowd_cores(cores)
    crowd = contend(arguments, (OURS, SYMMETRIC, *peers), CROWD_SIZES, CROWD_PER_CORE * len(few), few)
    tables = {f"{RANKS} ranks": rows, f"{CROWD_PER_CORE * len(few)} ranks on {len(few)} cores": crowd}
    report(arguments, machine, tables, asked_rows(rows, crowd, build_s))


def report(arguments: argparse.Namespace, machine: Any, rows: Mapping[str, list[Row]], asked: list[list[str]]) -> None:
    """``rows``: by how many ranks they are of; the first is the picture's."""
    if arguments.json:
        results = {ranks: [dataclasses.asdict(row) for row in listed] for ranks, listed in rows.items()}
        print(json.dumps({"machine": dataclasses.asdict(machine), "results": results, "asked": asked}, indent=2))
    else:
        _measure.console.print(str(machine))
        for ranks, listed in rows.items():
            _measure.console.print(_measure.table(f"All-reduce, {ranks}", columns(listed), table_rows(listed)))
        _measure.console.print(_measure.table("Asked", ASKED_COLUMNS, asked))
    if arguments.write:
        draw(next(iter(rows.values())))
        tables = [
            f"{ranks}:\n\n{_measure.markdown(columns(listed), table_rows(listed))}" for ranks, listed in rows.items()
        ]
        _measure.write_results("comm", "\n".join([f"{machine}\n", *tables, _measure.markdown(ASKED_COLUMNS, asked)]))


def columns(rows: Sequence[Row]) -> tuple[str, ...]:
    return ("size", *rows[0].turns, "best peer / accel-ops")


if __name__ == "__main__":
    main()
