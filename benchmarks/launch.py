"""What the launcher costs, and what binding gains.

The start is the time from the command to the first statement of the last of two ranks, beside plain
torchrun, taking turns. The loop multiplies matrices and all-reduces a million floats over gloo on two ranks,
with equally many threads; bound and unbound ranks stay, and take turns by blocks of the loop, so that what else goes on
meets both. A block's spread is the distance of its fastest from its slowest twentieth of turns, in medians.

    python -m benchmarks.launch [--quick] [--json] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
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
POLL_S = 0.01

LAUNCH = [sys.executable, "-m", "accelerator.launch", "--num_accelerators", str(RANKS)]
BOUND = [*LAUNCH, "--bind_cores_to_rank"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(RANKS)]


@dataclasses.dataclass(frozen=True)
class Turns:
    """A block of the loop: the median of its turns in seconds, and their spread in medians."""

    median_s: float
    spread: float


def variables(directory: str, **more: str) -> dict[str, str]:
    """The environment of a launch, with ``more``."""
    given = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "BENCHMARK_DIRECTORY": directory,
        **more,
    }
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    return given


def start_seconds(launcher: Sequence[str]) -> float:
    """From the command to the first statement of the last rank.

    Raises:
        RuntimeError: it failed; the message ends with what it wrote last.
    """
    with tempfile.TemporaryDirectory() as directory:
        command = [*launcher, str(HERE / "_launch_start.py")]
        began = time.time()
        done = subprocess.run(
            command, env=variables(directory), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise _failed(command, done.returncode, done.stderr)
        return max(float(Path(directory, f"began{rank}").read_text()) for rank in range(RANKS)) - began


class Loop:
    """Ranks that run a block of the loop whenever they are told to."""

    def __init__(self, launcher: Sequence[str]) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._place = Path(self._directory.name)
        self._command = [*launcher, str(HERE / "_launch_loop.py")]
        self._blocks = 0
        with (self._place / "log").open("w") as log:
            # On CPU ranks; the start is measured as it is, with the search for the accelerator.
            given = variables(self._directory.name, ACCEL_ACCELERATOR="cpu")
            self._process = subprocess.Popen(self._command, env=given, stdout=log, stderr=log)

    def block(self, turns: int) -> Turns:
        """The figures of so many turns, after a tenth more of them.

        Raises:
            RuntimeError: the ranks failed or are late; the message ends with what they wrote last.
        """
        done = self._place / f"done{self._blocks}"
        self._tell(turns)
        deadline = time.monotonic() + TIMEOUT_S
        while not done.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise _failed(self._command, self._process.poll(), (self._place / "log").read_text())
            time.sleep(POLL_S)
        seconds: list[float] = json.loads(done.read_text())
        cuts = statistics.quantiles(seconds, n=20)
        median = statistics.median(seconds)
        return Turns(median, (cuts[-1] - cuts[0]) / median)

    def close(self) -> None:
        """End the ranks."""
        self._tell(0)
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._directory.cleanup()

    def _tell(self, turns: int) -> None:
        (self._place / "told").write_text(str(turns))
        (self._place / "told").rename(self._place / f"go{self._blocks}")
        self._blocks += 1


def _failed(command: Sequence[str], status: int | None, errors: str) -> RuntimeError:
    last = "\n".join(errors.splitlines()[-15:])
    return RuntimeError(f"{' '.join(command)} failed with status {status}:\n{last}")


def measure_loops(blocks: int, turns: int, advance: Callable[[], None]) -> dict[str, list[Turns]]:
    """The blocks of bound and of unbound ranks."""
    found: dict[str, list[Turns]] = {"bound": [], "unbound": []}
    with contextlib.ExitStack() as open_loops:
        loops = {}
        for name, launcher in (("bound", BOUND), ("unbound", LAUNCH)):
            loops[name] = Loop(launcher)
            open_loops.callback(loops[name].close)
            loops[name].block(turns)  # connections and caches warm up
        for _ in range(blocks):
            for name, loop in loops.items():
                found[name].append(loop.block(turns))
                advance()
    return found


def rows(start: dict[str, list[float]], loops: dict[str, list[Turns]]) -> list[list[str]]:
    """The table's rows."""
    ours, theirs = statistics.median(start["bound"]), statistics.median(start["torchrun"])
    bound, unbound = (statistics.median(block.median_s for block in loops[name]) for name in ("bound", "unbound"))
    spread, loose = (statistics.median(block.spread for block in loops[name]) for name in ("bound", "unbound"))
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
            f"{spread:.3f}",
            f"{loose:.3f}",
            "less",
        ],
    ]


def verdict(met: bool) -> str:
    return "ok" if met else "miss"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launch", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="write the table into docs/internals")
    arguments = parser.parse_args()
    machine = _measure.describe_machine()
    starts, blocks, turns = (3, 4, 60) if arguments.quick else (15, 60, 80)
    with _measure.make_progress() as progress:
        task = progress.add_task("launches", total=2 * (starts + 1) + 2 * blocks)

        def advance() -> None:
            progress.advance(task)

        contenders: dict[str, Callable[[], float]] = {
            "bound": lambda: start_seconds(BOUND),
            "torchrun": lambda: start_seconds(TORCHRUN),
        }
        start = _measure.interleave(contenders, starts, advance)
        loops = measure_loops(blocks, turns, advance)
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
