"""What ``accel-ops run --compiles`` costs a program that compiles nothing: the start of ``python -c "import torch"``.

In each turn a plain process runs before and after the watched one. Processor times are compared, because wall times
depend more on what else the machine does. The difference between the two plain processes shows the noise.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import _measure
from benchmarks._measure import Table, at_most, duration, interleave, requirement_table
from benchmarks._processes import environment
from op_builder import compiles

LIMIT_PERCENT = 2.0
PROGRAM = ("-c", "import torch")
PLAIN, WATCHED, AGAIN = "plain", "watched", "plain again"


def timed(arguments: Sequence[str], variables: Mapping[str, str]) -> Callable[[], tuple[float, float]]:
    """A function that runs Python once; it returns the seconds and those of the processor."""

    def run() -> tuple[float, float]:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, *arguments], env=variables, check=True, capture_output=True)
        seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return run


def main() -> None:
    """The command line."""
    parser = _measure.make_parser("compiles", __doc__, "fewer pairs")
    arguments = parser.parse_args()
    machine = _measure.describe_machine()
    plain = environment(Path(sys.executable))
    with compiles.watched() as ledger:
        watching = {name: os.environ[name] for name in ("ACCEL_COMPILES", "LD_PRELOAD")}
        contenders = {
            PLAIN: timed(PROGRAM, plain),
            WATCHED: timed(PROGRAM, {**plain, **watching}),
            AGAIN: timed(PROGRAM, plain),
        }
        samples = interleave(contenders, 5 if arguments.quick else 30, "starts")
        assert ledger.compiled() == [], "it compares processes that compile nothing"
    cpu = {name: [cpu_s for _, cpu_s in times] for name, times in samples.items()}
    plain_s = list(map(statistics.mean, zip(cpu[PLAIN], cpu[AGAIN], strict=True)))
    more = {
        name: statistics.median(100 * (one / other - 1) for one, other in zip(cpu[name], base, strict=True))
        for name, base in ((WATCHED, plain_s), (AGAIN, cpu[PLAIN]))
    }
    rows = [
        [name, duration(statistics.median(cpu[name])), duration(statistics.median(seconds for seconds, _ in times))]
        for name, times in samples.items()
    ]
    _measure.report(
        "compiles",
        arguments,
        machine,
        [
            Table('python -c "import torch", medians', ("contender", "processor time", "time"), rows),
            requirement_table([at_most(f"{name}, longer by", more[name], LIMIT_PERCENT, "%") for name in more]),
        ],
        samples,
    )


if __name__ == "__main__":
    main()
