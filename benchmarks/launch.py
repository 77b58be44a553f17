"""The launcher: the time to start two ranks, against torchrun, and what binding to cores gains.

The start is the time from the command to the first statement of the last of two ranks.
The loop multiplies matrices and all-reduces a million floats over gloo on two ranks, with
one thread each. Bound and unbound ranks run for the whole benchmark and alternate, so
that other load on the machine hits both. The spread of a block of turns is the distance
between its 5th and 95th percentile, in medians.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks import _measure, _processes
from benchmarks._figures import Figure, figure_table
from benchmarks._measure import Table, at_most, interleave, requirement_table
from benchmarks._peers import PROGRAMS, failure

RANKS = 2
START_LIMIT_S = 0.3
SLOWER_LIMIT = 1.02  # smaller differences are noise
TIMEOUT_S = 600
POLL_S = 0.01

LAUNCH = [sys.executable, "-m", "accelerator.launch", "--num_accelerators", str(RANKS)]
BOUND = [*LAUNCH, "--bind_cores_to_rank"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(RANKS)]


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of turns: their median in seconds, and their spread in medians."""

    median_s: float
    spread: float


def environment(directory: str) -> dict[str, str]:
    """The environment of a launch."""
    return _processes.environment(
        Path(sys.executable), OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", BENCHMARK_DIRECTORY=directory
    )


def start_seconds(launcher: Sequence[str]) -> float:
    """Seconds from the command to the first statement of the last rank.

    Raises:
        RuntimeError: the launch failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        command = [*launcher, str(PROGRAMS / "launch_start.py")]
        started = time.time()
        done = subprocess.run(
            command, env=environment(directory), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise failure(command, done.returncode, done.stderr)
        return max(float(Path(directory, f"started{rank}").read_text()) for rank in range(RANKS)) - started


class Loop:
    """Ranks that run a block of turns at each request."""

    def __init__(self, launcher: Sequence[str]) -> None:
        self._temporary = tempfile.TemporaryDirectory()
        self._directory = Path(self._temporary.name)
        self._command = [*launcher, str(PROGRAMS / "launch_loop.py")]
        self._requests = 0
        with (self._directory / "log").open("w") as log:
            variables = environment(self._temporary.name)
            self._process = subprocess.Popen(self._command, env=variables, stdout=log, stderr=log)

    def block(self, turns: int) -> Block:
        """Run so many turns, after a tenth as many that are not measured.

        Raises:
            RuntimeError: the ranks failed or took longer than TIMEOUT_S.
        """
        answer = self._directory / f"answer{self._requests}"
        self._request(turns)
        deadline = time.monotonic() + TIMEOUT_S
        while not answer.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise failure(self._command, self._process.poll(), (self._directory / "log").read_text())
            time.sleep(POLL_S)
        seconds: list[float] = json.loads(answer.read_text())
        cuts = statistics.quantiles(seconds, n=20)
        median = statistics.median(seconds)
        return Block(median, (cuts[-1] - cuts[0]) / median)

    def close(self) -> int:
        """End the ranks; return the launcher's exit status."""
        self._request(0)
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._temporary.cleanup()
        return self._process.returncode

    def _request(self, turns: int) -> None:
        (self._directory / "request").write_text(str(turns))
        (self._directory / "request").rename(self._directory / f"request{self._requests}")
        self._requests += 1


def measure_loops(blocks: int, turns: int) -> dict[str, list[Block]]:
    """The blocks of bound and of unbound ranks."""
    with contextlib.ExitStack() as stack:
        loops = {}
        for name, launcher in (("bound", BOUND), ("unbound", LAUNCH)):
            loops[name] = Loop(launcher)
            stack.callback(loops[name].close)
        return interleave({name: partial(loop.block, turns) for name, loop in loops.items()}, blocks, "blocks")


def make_tables(starts: Mapping[str, list[float]], loops: Mapping[str, list[Block]]) -> list[Table]:
    """The start and the loop's turns, and the spread of the turns."""
    turns = {name: [block.median_s for block in blocks] for name, blocks in loops.items()}
    spreads = {name: statistics.median(block.spread for block in blocks) for name, blocks in loops.items()}
    start_limit_s = statistics.median(starts["torchrun"]) + START_LIMIT_S
    turn_limit_s = statistics.median(turns["unbound"]) * SLOWER_LIMIT
    figures = [
        Figure("start of 2 bound ranks", starts["bound"], start_limit_s, {"torchrun": starts["torchrun"]}),
        Figure("a turn of the loop, bound", turns["bound"], turn_limit_s, {"unbound": turns["unbound"]}),
    ]
    spread = at_most("spread of the turns, relative to unbound ranks", spreads["bound"] / spreads["unbound"], 1.0)
    return [figure_table("The launcher", figures), requirement_table([spread])]


def main() -> None:
    arguments = _measure.make_parser("launch", __doc__, "3 starts, 4 blocks of the loop").parse_args()
    machine = _measure.describe_machine()
    start_rounds, blocks, turns = (3, 4, 60) if arguments.quick else (15, 20, 80)
    launches = {"bound": partial(start_seconds, BOUND), "torchrun": partial(start_seconds, TORCHRUN)}
    starts = interleave(launches, start_rounds, "starts")
    loops = measure_loops(blocks, turns)
    _measure.report("launch", arguments, machine, make_tables(starts, loops), {"starts_s": starts, "loops": loops})


if __name__ == "__main__":
    main()
