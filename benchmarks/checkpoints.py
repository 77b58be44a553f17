"""CheckpointWriter and CheckpointReader against the storages of torch.distributed.checkpoint.

Two ranks save and load a model of GPT-2's size (124 M parameters in float32) with Adam's moments, all sharded as FSDP2
does: 1.5 GB in 444 tensors. All contenders synchronize what they write (``fsync``). "Not cached" drops the files from
the page cache before each load; "cached" reads them before. The time is the slower rank's, the CPU time that of both
processes. A figure is the median of a contender's turns.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks import _measure
from benchmarks._measure import Table, at_least, duration, interleave, requirement_table
from benchmarks._peers import PROGRAMS, PeerProcess
from benchmarks.tensor_files import drop_from_cache, read_into_cache

RANKS = 2
OURS = "accel-ops"
PEERS = ("FileSystem", "HuggingFace")
COLUMNS = ("action", "contender", "median", "best", "CPU time")


@dataclasses.dataclass(frozen=True)
class Turn:
    """One save or load: the slower rank's seconds, and the CPU seconds of all ranks."""

    seconds: float
    cpu_s: float


@dataclasses.dataclass(frozen=True)
class Result:
    """One action; the turns of each contender, ours first."""

    action: str
    turns: Mapping[str, list[Turn]]

    def median(self, contender: str, field: str = "seconds") -> float:
        return statistics.median(getattr(turn, field) for turn in self.turns[contender])

    def ratio(self, field: str) -> float:
        """The figure of the best other contender, in units of ours."""
        ours, *others = (self.median(contender, field) for contender in self.turns)
        return min(others) / ours

    @property
    def rows(self) -> list[list[str]]:
        return [
            [
                self.action,
                contender,
                duration(self.median(contender)),
                duration(min(turn.seconds for turn in turns)),
                duration(self.median(contender, "cpu_s")),
            ]
            for contender, turns in self.turns.items()
        ]


class Ranks:
    """The processes, which all contenders share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        program = PROGRAMS / "checkpoint_rank.py"
        command = [sys.executable, "-m", f"benchmarks.programs.{program.stem}"]
        self._processes = [PeerProcess([*command, str(rank), str(RANKS), directory / "ranks"]) for rank in range(RANKS)]

    def turn(self, storage: str, action: str, prepare: Callable[[list[Path]], None] | None = None) -> Turn:
        path = self._directory / storage
        if prepare is not None:
            prepare([file for file in path.rglob("*") if file.is_file()])
        for process in self._processes:
            process.send(storage=storage, action=action, path=str(path))
        answers = [process.receive() for process in self._processes]
        return Turn(max(one["seconds"] for one in answers), sum(one["cpu_s"] for one in answers))

    def close(self) -> None:
        for process in self._processes:
            process.close()


def main() -> None:
    parser = _measure.make_parser("checkpoints", __doc__, "two turns", PEERS)
    parser.add_argument(
        "--directory", type=Path, help="where the files go, on the disk to test (default: the temporary directory)"
    )
    arguments = parser.parse_args()
    machine = _measure.describe_machine()
    rounds = 2 if arguments.quick else 7
    contenders = (OURS, *arguments.peers)
    actions = {
        "save": ("save", None),
        "load, not cached": ("load", drop_from_cache),
        "load, cached": ("load", read_into_cache),
    }
    results = []
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        ranks = Ranks(Path(directory))
        try:
            for name, (action, prepare) in actions.items():
                works = {storage: partial(ranks.turn, storage, action, prepare) for storage in contenders}
                results.append(Result(name, interleave(works, rounds, name)))
        finally:
            ranks.close()
    limits = [
        at_least(f"{one.action}: torch's {what}", one.ratio(field), 1.0, "x")
        for one in results
        for what, field in (("time", "seconds"), ("CPU time", "cpu_s"))
        if arguments.peers
    ]
    tables = [
        Table("Checkpoints of two ranks, 1.5 GB", COLUMNS, [row for one in results for row in one.rows]),
        requirement_table(limits),
    ]
    _measure.report("checkpoints", arguments, machine, tables, results)


if __name__ == "__main__":
    main()
