"""The time to start two ranks, bound to cores, against torchrun: to the first statement of the last of them."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import _measure
from benchmarks._figures import Figure, figure_table
from benchmarks._measure import interleave
from benchmarks._peers import PROGRAMS, failure
from benchmarks._processes import environment

RANKS = 2
START_LIMIT_S = 0.3
TIMEOUT_S = 600

BOUND = [sys.executable, "-m", "accelerator.launch", "--num_accelerators", str(RANKS), "--bind_cores_to_rank"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(RANKS)]


def start_seconds(launcher: Sequence[str]) -> float:
    """Seconds from the command to the first statement of the last rank.

    Raises:
        RuntimeError: the launch failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        command = [*launcher, str(PROGRAMS / "launch_start.py")]
        variables = environment(Path(sys.executable), OMP_NUM_THREADS="1", BENCHMARK_DIRECTORY=directory)
        started = time.time()
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise failure(command, done.returncode, done.stderr)
        return max(float(Path(directory, f"started{rank}").read_text()) for rank in range(RANKS)) - started


def main() -> None:
    arguments = _measure.make_parser("launch", __doc__, "3 starts").parse_args()
    machine = _measure.describe_machine()
    launches = {"bound": partial(start_seconds, BOUND), "torchrun": partial(start_seconds, TORCHRUN)}
    starts = interleave(launches, 3 if arguments.quick else 15, "starts")
    limit_s = statistics.median(starts["torchrun"]) + START_LIMIT_S
    figure = Figure("start of 2 bound ranks", starts["bound"], limit_s, {"torchrun": starts["torchrun"]})
    _measure.report("launch", arguments, machine, [figure_table("The launcher", [figure])], starts)


if __name__ == "__main__":
    main()
