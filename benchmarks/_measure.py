"""What all benchmarks share: options, the machine, taking turns, tables, requirements, results."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from rich import table as rich_table
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from op_builder.system.cpu_isa import chosen_isa, cpu_model

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
BUSY_LOAD_PER_CORE = 0.25

T = TypeVar("T")

console = Console(width=None if sys.stdout.isatty() else 120)
"""For results: wide enough for the tables in a file or a pipe."""
progress_console = Console(stderr=True)
"""For progress and warnings."""


# Options ---------------------------------------------------------------------


def make_parser(name: str, description: str | None, quick: str, peers: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The command line that every benchmark has.

    Args:
        name: the benchmark's module.
        description: its docstring.
        quick: what --quick does.
        peers: the names that --peers takes; without any, there is no such option.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help=f"{quick}; too noisy to publish")
    parser.add_argument("--json", action="store_true", help="print the machine, the tables and all samples as JSON")
    parser.add_argument("--write", action="store_true", help=f"write that JSON to benchmarks/results/{name}.json")
    if peers:
        parser.add_argument(
            "--peers",
            type=partial(_peer_names, peers),
            default=list(peers),
            metavar="NAMES",
            help=f"comma-separated peers to compare with; empty for none (default: {','.join(peers)})",
        )
    return parser


def positive(text: str) -> int:
    """The type of an option that takes a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _peer_names(known: Sequence[str], text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown peer {unknown[0]!r} (choose from {', '.join(known)})")
    return names


# The machine -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a reader must know to compare figures.

    Attributes:
        isa: the instruction set of the CPU kernels.
        threads: of torch.
        load_average: of the minute before the run.
    """

    date: str
    cpu: str
    cores: int
    memory_gib: int
    isa: str
    python: str
    torch: str
    threads: int
    load_average: float

    @property
    def is_busy(self) -> bool:
        """Whether other programs use so much of the machine that the figures are noisy."""
        return self.load_average > BUSY_LOAD_PER_CORE * self.cores

    def __str__(self) -> str:
        return (
            f"{self.date}, {self.cpu}, {self.cores} cores, {self.memory_gib} GiB, {self.isa}, "
            f"Python {self.python}, torch {self.torch}, {self.threads} threads, "
            f"load average {self.load_average:.1f}{' (busy)' if self.is_busy else ''}"
        )


def describe_machine() -> Machine:
    """Describe the machine as it is now; print a warning if it is busy."""
    machine = Machine(
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        cpu=cpu_model(),
        cores=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30),
        isa=chosen_isa(),
        python=platform.python_version(),
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        load_average=os.getloadavg()[0],
    )
    if machine.is_busy:
        progress_console.print(
            f"Warning: the machine is busy (load average {machine.load_average:.1f} on {machine.cores} cores), so "
            "times will be too long. Run the benchmark again when the machine is idle.",
            style="yellow",
        )
    return machine


# Measuring -------------------------------------------------------------------


def make_progress() -> Progress:
    """A progress bar with a description, on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=progress_console)


def seconds_of(work: Callable[..., object], *arguments: object) -> float:
    """The seconds of one call."""
    started = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - started


def interleave(
    contenders: Mapping[str, Callable[[], T]], rounds: int, description: str, *, warm_ups: int = 1
) -> dict[str, list[T]]:
    """Alternate the contenders, so that noise hits all of them alike; show a progress bar.

    Args:
        contenders: by name, a function that does the work once and returns its measurement.
        rounds: measured turns of each.
        warm_ups: turns of each before these, which are not kept.

    Returns:
        By name, the measurement of each of the ``rounds`` turns.
    """
    samples: dict[str, list[T]] = {name: [] for name in contenders}
    with make_progress() as progress:
        task = progress.add_task(description, total=(rounds + warm_ups) * len(contenders))
        for turn in range(-warm_ups, rounds):
            for name, run in contenders.items():
                sample = run()
                if turn >= 0:
                    samples[name].append(sample)
                progress.advance(task)
    return samples


# Results ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Table:
    """Figures for people. All columns but the first two are right-aligned."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Requirement:
    """A measured value and the limit that it must keep."""

    what: str
    value: float
    limit: float
    unit: str = ""
    is_minimum: bool = False

    @property
    def verdict(self) -> str:
        """``ok`` or ``miss``."""
        return verdict(self.value >= self.limit if self.is_minimum else self.value <= self.limit)


def at_least(what: str, value: float, limit: float, unit: str = "") -> Requirement:
    """The requirement ``value >= limit``."""
    return Requirement(what, value, limit, unit, is_minimum=True)


def at_most(what: str, value: float, limit: float, unit: str = "") -> Requirement:
    """The requirement ``value <= limit``."""
    return Requirement(what, value, limit, unit)


def requirement_table(requirements: Sequence[Requirement]) -> Table:
    """One row for each requirement."""
    rows = [
        [
            one.what,
            one.verdict,
            f"{one.value:,.3g} {one.unit}".rstrip(),
            f"{'>=' if one.is_minimum else '<='} {one.limit:g} {one.unit}".rstrip(),
        ]
        for one in requirements
    ]
    return Table("Requirements", ("requirement", "verdict", "measured", "limit"), rows)


def verdict(is_met: bool) -> str:
    """``ok`` or ``miss``."""
    return "ok" if is_met else "miss"


def duration(seconds: float) -> str:
    """``5.23 s``, ``7.42 ms`` or ``9.1 µs``; ``< 1 ms`` for a difference that noise made negative."""
    if seconds < 0:
        return "< 1 ms"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} µs"


def report(
    name: str,
    arguments: argparse.Namespace,
    machine: Machine,
    tables: Sequence[Table],
    samples: object,
    file: str | None = None,
) -> None:
    """Print the tables, or everything as JSON; write that JSON to a file if ``--write`` was given.

    Args:
        samples: all measurements; dataclasses in it become objects.
        file: the file's name without extension; None for ``name``.
    """
    record = {
        "benchmark": name,
        "command": f"python -m benchmarks.{name} {' '.join(sys.argv[1:])}".rstrip(),
        "machine": {**dataclasses.asdict(machine), "is_busy": machine.is_busy},
        "tables": [dataclasses.asdict(table) for table in tables],
        "samples": samples,
    }
    text = json.dumps(record, indent=2, default=_jsonable)
    if arguments.json:
        print(text)
    else:
        for table in tables:
            console.print(rendered(table))
        console.print(str(machine))
    if arguments.write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{file or name}.json").write_text(text + "\n", encoding="utf-8")


def _jsonable(value: Any) -> object:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else str(value)


def rendered(table: Table) -> rich_table.Table:
    """The table as rich prints it."""
    rendered = rich_table.Table(title=table.title, title_justify="left")
    for index, column in enumerate(table.columns):
        rendered.add_column(column, justify="left" if index < 2 else "right")
    for row in table.rows:
        rendered.add_row(*row)
    return rendered


def draw_bars(path: Path, title: str, label: str, groups: Mapping[str, Mapping[str, float]], limit: float = 0) -> None:
    """Draw a PNG with one group of horizontal bars for each case and one bar for each contender.

    Args:
        label: the name and the unit of the values.
        groups: by case, each contender's value.
        limit: where to draw a line that marks the machine's limit; 0 for none.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    figure = Figure(figsize=(9, 0.6 + 0.22 * sum(len(group) + 1 for group in groups.values())), layout="constrained")
    axes = figure.subplots()
    row, ticks = 0, []
    for group in groups.values():
        ticks.append(row + (len(group) - 1) / 2)
        for name, value in group.items():
            axes.barh(row, value, color=f"C{names.index(name)}")
            row += 1
        row += 1
    axes.set_yticks(ticks, list(groups))
    axes.invert_yaxis()
    for index, name in enumerate(names):
        axes.barh(0, 0, color=f"C{index}", label=name)
    if limit:
        axes.axvline(limit, color="black", linestyle="dashed", label="limit")
    axes.set(title=title, xlabel=label)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
