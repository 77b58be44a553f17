"""What the launcher costs, and what binding gains.

The start is the time from the command to the first statement of the last of two ranks, beside plain
torchrun, taking turns. The loop multiplies matrices and all-reduces a million floats over gloo on two ranks,
bound and unbound in turns, with equally many threads; a run's spread is the distance of its fastest from its
slowest twentieth of turns, in medians.

    python -m benchmarks.launch [--quick] [--json] [--write]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import _measure

HERE = Path(__file__).resolve().parent
RANKS = 2
START_LIMIT_S = 0.3
SLOWER_LIMIT = 1.02
COLUMNS = ["figure", "verdict", "accel-launch", "beside", "asked"]
TIMEOUT_S = 600

LAUNCH = [sys.executable, "-m", "accelerator.launch", "--num_accelerators", str(RANKS)]
BOUND = [*LAUNCH, "--bind_cores_to_rank"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(RANKS)]


@dataclasses.dataclass(frozen=True)
class Turns:
    """One run of the loop: the median of its turns in seconds, and their spread in medians."""

    median_s: float
    spread: float


def run(command: Sequence[str], directory: str, **more: str) -> float:
    """Run to the end with ``more`` variables, and return when it was started, in seconds since the epoch.

    Raises:
        RuntimeError: it failed; the message ends with what it wrote last.
    """
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "BENCHMARK_DIRECTORY": directory,
        **more,
    }
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.time()
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        last = "\n".join(done.stderr.splitlines()[-15:])
        raise RuntimeError(f"{' '.join(command)} failed with status {done.returncode}:\n{last}")
    return began


def start_seconds(launcher: Sequence[str]) -> float:
    """From the command to the first statement of the last rank."""
    with tempfile.TemporaryDirectory() as directory:
        began = run([*launcher, str(HERE / "_launch_start.py")], directory)
        return max(float(Path(directory, f"began{rank}").read_text()) for rank in range(RANKS)) - began


def loop(launcher: Sequence[str], turns: int) -> Turns:
    """One run of the loop."""
    with tempfile.TemporaryDirectory() as directory:
        # On CPU ranks; the start is measured as it is, with the search for the accelerator.
        run([*launcher, str(HERE / "_launch_loop.py"), str(turns)], directory, ACCEL_ACCELERATOR="cpu")
        seconds: list[float] = json.loads(Path(directory, "turns.json").read_text())
    cuts = statistics.quantiles(seconds, n=20)
    median = statistics.median(seconds)
    return Turns(median, (cuts[-1] - cuts[0]) / median)


def rows(start: dict[str, list[float]], loops: dict[str, list[Turns]]) -> list[list[str]]:
    """The table's rows."""
    ours, theirs = statistics.median(start["bound"]), statistics.median(start["torchrun"])
    bound, unbound = (statistics.median(run.median_s for run in loops[name]) for name in ("bound", "unbound"))
    spread, loose = (statistics.median(run.spread for run in loops[name]) for name in ("bound", "unbound"))
    return [
        [
            "start of 2 bound workers, beside torchrun",
            verdict(ours <= theirs + START_LIMIT_S),
            f"{ours:.2f} s",
            f"{theirs:.2f} s",
            f"<= + {START_LIMIT_S} s",
        ],
        [
            "a turn of the loop, bound beside unbound",
            verdict(bound <= unbound * SLOWER_LIMIT),
            f"{bound * 1e3:.2f} ms",
            f"{unbound * 1e3:.2f} ms",
            "not slower (2 % is chance)",
        ],
        [
            "its spread, in medians",
            verdict(spread < loose),
            f"{spread:.2f}",
            f"{loose:.2f}",
            "less",
        ],
    ]


def verdict(met: bool) -> str:
    return "ok" if met else "miss"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launch", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    arguments = parser.parse_args()
    machine = _measure.describe_machine()
    starts, runs, turns = (3, 2, 100) if arguments.quick else (15, 9, 600)
    loops: dict[str, list[Turns]] = {"bound": [], "unbound": []}
    with _measure.make_progress() as progress:
        task = progress.add_task("launches", total=2 * (starts + 1) + 2 * runs)

        def advance() -> None:
            progress.advance(task)

        contenders: dict[str, Callable[[], float]] = {
            "bound": lambda: start_seconds(BOUND),
            "torchrun": lambda: start_seconds(TORCHRUN),
        }
        start = _measure.interleave(contenders, starts, advance)
        for _ in range(runs):
            for name, launcher in (("bound", BOUND), ("unbound", LAUNCH)):
                loops[name].append(loop(launcher, turns))
                advance()
    table = rows(start, loops)
    if arguments.json:
        told = {name: [dataclasses.asdict(one) for one in found] for name, found in loops.items()}
        print(json.dumps({"machine": dataclasses.asdict(machine), "start_s": start, "loops": told}, indent=2))
    else:
        _measure.console.print(_measure.table("The launcher", COLUMNS, table))
        _measure.console.print(str(machine))
    if arguments.write:
        _measure.write_results("launch", f"{machine}\n\n{_measure.markdown(COLUMNS, table)}")


if __name__ == "__main__":
    main()
