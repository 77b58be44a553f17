"""What ``accel-ops run --compiles`` costs a program that compiles nothing: starts of Python, and of torch in it.

In each turn a plain process runs before and after the watched one. Processor times are compared, because wall times
depend more on what else the machine does. The difference between the two plain processes shows the noise. Where
valgrind is installed, it counts the instructions of one start each, which are almost equal in each run.
"""

from __future__ import annotations

import os
import resource
import shutil
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
PROGRAM = "import torch"
PLAIN, WATCHED, AGAIN = "plain", "watched", "plain again"


def timed(arguments: Sequence[str], variables: Mapping[str, str]) -> Callable[[], tuple[float, float]]:
    """A function that runs Python once; it returns the seconds and those of the processor."""

    def run() -> tuple[float, float]:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, *arguments], env=variables, check=True, capture_output=True)
        seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return run


def instructions(code: str, variables: Mapping[str, str]) -> float:
    """The number that Python executes for ``code``, as valgrind counts them."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", sys.executable]
    fixed = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "-c", code], env={**variables, **fixed}, check=True, capture_output=True, text=True
    )
    return float(done.stderr.partition("refs:")[2].split()[0].replace(",", ""))


def compare(
    code: str, plain: Mapping[str, str], watched: Mapping[str, str], turns: int
) -> tuple[Table, dict[str, float], dict[str, list[tuple[float, float]]]]:
    """The medians of ``python -c code``, the processor time that is added in percent, and all samples."""
    variables = {PLAIN: plain, WATCHED: watched, AGAIN: plain}
    samples = interleave({name: timed(["-c", code], variables[name]) for name in variables}, turns, code)
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
    return Table(f'python -c "{code}", medians', ("contender", "processor time", "time"), rows), more, samples


def main() -> None:
    """The command line."""
    parser = _measure.make_parser("compiles", __doc__, "fewer pairs")
    arguments = parser.parse_args()
    machine = _measure.describe_machine()
    plain = environment(Path(sys.executable))
    turns = 5 if arguments.quick else 20
    with compiles.watched() as ledger:
        watched = {**plain, **{name: os.environ[name] for name in ("ACCEL_COMPILES", "LD_PRELOAD")}}
        first, _, first_samples = compare("pass", plain, watched, turns)
        second, more, second_samples = compare(PROGRAM, plain, watched, turns)
        if shutil.which("valgrind") is not None and not arguments.quick:
            more[f"{WATCHED}, instructions"] = 100 * (instructions(PROGRAM, watched) / instructions(PROGRAM, plain) - 1)
        assert ledger.compiled() == [], "it compares processes that compile nothing"
    requirements = [at_most(f"{name}, more by", more[name], LIMIT_PERCENT, "%") for name in more]
    samples = {"pass": first_samples, PROGRAM: second_samples}
    _measure.report("compiles", arguments, machine, [first, second, requirement_table(requirements)], samples)


if __name__ == "__main__":
    main()
