"""How long importing takes, and loading CPU Adam when it must be compiled and when it is built already.

Each measurement is a fresh process with torch imported before the clock starts; a figure is the
median of its processes. Contenders take turns. What an import adds to Python's start is the median
difference of processor time between neighbouring processes with it and without.

    python -m benchmarks.jit [--quick] [--peers deepspeed] [--json] [--write]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _measure

HERE = Path(__file__).resolve().parent
PEERS = ("deepspeed",)
TIMEOUT_S = 900


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way to load CPU Adam: an interpreter, a script that times it, and what names its cache directory."""

    name: str
    python: Path
    script: Path
    cache_variable: str

    def load(self, cache: Path, **environment: str) -> dict[str, float]:
        """The script's times in seconds, in a new process.

        Raises:
            RuntimeError: it failed; the message ends with what it wrote last.
        """
        told = run_python(
            self.python,
            [str(self.script)],
            {self.cache_variable: str(cache), "ACCEL_ACCELERATOR": "cpu", "DS_ACCELERATOR": "cpu", **environment},
        )
        times: dict[str, float] = json.loads(told.stdout.splitlines()[-1])
        return times


def accel_ops() -> Contender:
    return Contender("accel-ops", Path(sys.executable), HERE / "_load_accel_ops.py", "ACCEL_CACHE_DIR")


def peer(name: str, arguments: argparse.Namespace) -> Contender:
    """The contender of a name in PEERS."""
    python = _measure.deepspeed_python(arguments.deepspeed_python)
    return Contender(name, python, HERE / "_load_deepspeed.py", "TORCH_EXTENSIONS_DIR")


def run_python(python: Path, arguments: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run an interpreter as an installed program is: with bytecode files, the environment's tools on PATH.

    Raises:
        RuntimeError: it failed or took too long.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    inherited["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), inherited.get("PYTHONPATH")]))
    inherited["PATH"] = os.pathsep.join([str(python.parent), inherited.get("PATH", os.defpath)])
    command = [str(python), *arguments]
    try:
        told = subprocess.run(
            command, env={**inherited, **environment}, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(command)} did not end within {TIMEOUT_S} s.") from None
    if told.returncode != 0:
        last = "\n".join(told.stderr.splitlines()[-15:])
        raise RuntimeError(f"{' '.join(command)} failed with status {told.returncode}:\n{last}")
    return told


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured quantity of ours, in seconds, beside what is required of it and what peers need.

    Attributes:
        seconds: of each process.
        limit_s: what the median may be at most; None where nothing is required.
        peers: by name, a peer's seconds for the same.
        least_ratio: how many times as long each peer's median must be; None where nothing is required.
    """

    name: str
    seconds: list[float]
    limit_s: float | None = None
    peers: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    least_ratio: float | None = None

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    def ratio(self, name: str) -> float:
        """How many times as long the peer takes."""
        return statistics.median(self.peers[name]) / self.median_s

    @property
    def verdict(self) -> str:
        """``ok`` or ``miss``; empty where nothing is required."""
        met = []
        if self.limit_s is not None:
            met.append(self.median_s <= self.limit_s)
        if self.least_ratio is not None:
            met += [self.ratio(name) >= self.least_ratio for name in self.peers]
        return "" if not met else "ok" if all(met) else "miss"


@dataclasses.dataclass(frozen=True)
class Counts:
    """Processes per figure."""

    cold: int
    warm: int
    warm_peer: int
    start: int


FULL = Counts(cold=3, warm=25, warm_peer=5, start=40)
QUICK = Counts(cold=1, warm=7, warm_peer=2, start=15)


def measure_loads(peers: list[Contender], counts: Counts, directory: Path) -> list[Figure]:
    """Cold and warm loads of all contenders, their caches below ``directory``."""
    ours = accel_ops()
    cold: dict[str, list[float]] = {contender.name: [] for contender in (ours, *peers)}
    caches: dict[str, Path] = {}
    turns = [ours, *peers, *[ours] * (counts.cold - 1)]
    with _measure.make_progress() as progress:
        task = progress.add_task("cold load", total=len(turns))
        for turn, contender in enumerate(turns):
            progress.update(task, description=f"cold load, {contender.name}")
            caches[contender.name] = directory / f"{contender.name}-{turn}"
            cold[contender.name].append(contender.load(caches[contender.name])["load_s"])
            progress.advance(task)

    warm: dict[str, list[dict[str, float]]] = {contender.name: [] for contender in (ours, *peers)}
    bare: list[dict[str, float]] = []
    read_only = make_read_only(caches[ours.name], directory / "read-only")
    before = snapshot(read_only)
    with _measure.make_progress() as progress:
        task = progress.add_task("warm load", total=2 * counts.warm + counts.warm_peer * len(peers))
        for turn in range(counts.warm):
            warm[ours.name].append(ours.load(caches[ours.name]))
            bare.append(ours.load(read_only, PATH="/nonexistent"))
            progress.advance(task, 2)
            for contender in peers if turn < counts.warm_peer else ():
                warm[contender.name].append(contender.load(caches[contender.name]))
                progress.advance(task)
    if snapshot(read_only) != before:
        raise RuntimeError(f"A warm load wrote into its cache directory {read_only}.")

    def warm_figure(name: str, *keys: str, limit_s: float | None = None) -> Figure:
        sums = {of: [sum(times[key] for key in keys) for times in measured] for of, measured in warm.items()}
        return Figure(name, sums.pop(ours.name), limit_s=limit_s, peers=sums)

    peers_cold = {contender.name: cold[contender.name] for contender in peers}
    return [
        Figure("cold load(), empty cache", cold[ours.name], limit_s=5.0, peers=peers_cold, least_ratio=10.0),
        warm_figure("warm load(), new process, builder imported before", "load_s", limit_s=0.010),
        Figure("the same, cache read-only, no tool on PATH", [t["load_s"] for t in bare], limit_s=0.010),
        warm_figure("second load() in one process", "again_s"),
        warm_figure("importing CPUAdamBuilder after torch", "import_s"),
        warm_figure("import of the builder and warm load() together", "import_s", "load_s"),
    ]


def make_read_only(source: Path, target: Path) -> Path:
    """A copy of a cache directory that only root could write."""
    shutil.copytree(source, target)
    for path in (target, *target.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return target


def snapshot(directory: Path) -> dict[str, int]:
    """Every path below a directory with the time of its last change."""
    return {str(path): path.lstat().st_mtime_ns for path in (directory, *directory.rglob("*"))}


def measure_imports(counts: Counts) -> list[Figure]:
    """The processor time that ``import accelerator, op_builder`` adds to Python's start."""
    import resource

    statement = "import accelerator, op_builder"
    python = Path(sys.executable)

    def start(code: str) -> Callable[[], float]:
        def run() -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run_python(python, ["-c", code], {})
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        return run

    contenders = {"pass": start("pass"), "import": start(statement)}
    with _measure.make_progress() as progress:
        task = progress.add_task("import", total=(counts.start + 1) * len(contenders))
        seconds = _measure.interleave(contenders, counts.start, lambda: progress.advance(task))
    added = [with_it - without for with_it, without in zip(seconds["import"], seconds["pass"], strict=True)]
    found = run_python(python, ["-c", f"{statement}, sys; print('torch' in sys.modules)"], {})
    if found.stdout.strip() != "False":
        raise RuntimeError(f"'{statement}' imports torch.")
    timed = run_python(python, ["-X", "importtime", "-c", statement], {})
    return [
        Figure(f"processor time that '{statement}' adds to Python's start", added, limit_s=0.030),
        Figure("the same as python -X importtime sums it up", [importtime_s(timed.stderr)]),
    ]


def importtime_s(report: str) -> float:
    """Seconds of the two packages in the report of ``-X importtime``, all they import included."""
    total_us = 0
    for line in report.splitlines():
        columns = line.removeprefix("import time:").split("|")
        if len(columns) == 3 and columns[2].strip() in ("accelerator", "op_builder"):
            is_outermost = not columns[2].startswith("   ")  # two spaces more per level
            total_us += int(columns[1]) if is_outermost else 0
    return total_us / 1e6


def columns_of(peers: list[str]) -> list[str]:
    """The table's header."""
    return ["figure", "verdict", "accel-ops", "limit", *peers, *(f"{name} / accel-ops" for name in peers)]


def rows_of(figures: list[Figure], peers: list[str]) -> list[list[str]]:
    """The table's rows, one per figure."""
    rows = []
    for figure in figures:
        required = "" if figure.least_ratio is None else f" (>= {figure.least_ratio:g} x)"
        rows.append(
            [
                figure.name,
                figure.verdict,
                duration(figure.median_s),
                "" if figure.limit_s is None else f"<= {duration(figure.limit_s)}",
                *(duration(statistics.median(figure.peers[name])) if name in figure.peers else "" for name in peers),
                *(f"{figure.ratio(name):,.3g} x{required}" if name in figure.peers else "" for name in peers),
            ]
        )
    return rows


def duration(seconds: float) -> str:
    """``5.23 s``, ``7.42 ms`` or ``9.1 µs``; ``< 1 ms`` for a difference that noise made negative."""
    if seconds < 0:
        return "< 1 ms"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} µs"


def as_json(machine: _measure.Machine, figures: list[Figure]) -> str:
    """All figures, for programs."""
    entries: list[dict[str, Any]] = [
        {**dataclasses.asdict(figure), "median_s": figure.median_s, "verdict": figure.verdict} for figure in figures
    ]
    return json.dumps({"machine": dataclasses.asdict(machine), "figures": entries}, indent=2)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jit", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer processes per figure")
    parser.add_argument("--peers", default=",".join(PEERS), help="of deepspeed; empty for none")
    parser.add_argument("--deepspeed-python", help="interpreter that has deepspeed (default: this one, or a made one)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    arguments = parser.parse_args()
    arguments.peers = [name for name in arguments.peers.split(",") if name]
    for name in arguments.peers:
        if name not in PEERS:
            parser.error(f"unknown peer {name!r}; choose from {', '.join(PEERS)}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    counts = QUICK if arguments.quick else FULL
    peers = [peer(name, arguments) for name in arguments.peers]
    machine = _measure.describe_machine()
    with tempfile.TemporaryDirectory(prefix="accel-ops-benchmark-", ignore_cleanup_errors=True) as directory:
        figures = measure_loads(peers, counts, Path(directory))
    figures += measure_imports(counts)
    columns, rows = columns_of(arguments.peers), rows_of(figures, arguments.peers)
    if arguments.json:
        print(as_json(machine, figures))
    else:
        _measure.console.print(_measure.table("Importing and loading", columns, rows))
        _measure.console.print(str(machine))
    if arguments.write:
        _measure.write_results("jit", f"{machine}\n\n{_measure.markdown(columns, rows)}")


if __name__ == "__main__":
    main()
