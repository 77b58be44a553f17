"""Time from a process's start to its first step with DeepSpeed, and of a step, with this project's ops and its own.

One rank on the CPU, with the optimizer's states in CPU memory (ZeRO stage 2), and
with states and parameters in files (stage 3). The time starts with the process,
so that it includes the imports, and ends with the first step. An empty cache
makes DeepSpeed compile its ops for minutes; the one for files needs libaio-dev.
A step is the median of a process.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks import _measure, _peers
from benchmarks._figures import Figure, figure_table
from benchmarks._measure import interleave
from benchmarks._peers import PROGRAMS
from benchmarks._processes import run_python

PEERS = ("deepspeed",)
OURS, OWN = "accel-ops", *PEERS
OFFLOADS = {"cpu": "CPU offload", "nvme": "NVMe offload"}
LEAST_RATIOS = {"cpu": 8.0, "nvme": 15.0}
"""How many times as long DeepSpeed's own start must take on an empty cache."""
WARM_GAIN_S = 1.5


@dataclasses.dataclass(frozen=True)
class Size:
    """The processes with ops built before and on an empty cache, and the model of each."""

    warm: int
    cold: int
    width: int
    steps: int


@dataclasses.dataclass(frozen=True)
class Run:
    """One process: until its first step has ended, and each step after that."""

    start_s: float
    steps_s: list[float]

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)


def train(contender: str, offload: str, size: Size, cache: Path) -> Run:
    """Train in a new process that builds its ops in ``cache``.

    Raises:
        RuntimeError: the training failed.
    """
    variables = {
        OURS: {"ACCEL_DEEPSPEED": "1", "ACCEL_CACHE_DIR": str(cache)},
        OWN: {"ACCEL_DEEPSPEED": "0", "TORCH_EXTENSIONS_DIR": str(cache), "PYTHONPATH": ""},
    }[contender]
    python = _peers.deepspeed_python()
    with tempfile.TemporaryDirectory() as files:
        work = [offload, str(size.width), str(size.steps), files]
        program = [str(PROGRAMS / "deepspeed_start.py"), str(time.time()), *work]
        output = run_python(program, python, **variables)
    return Run(**json.loads(next(line for line in output.splitlines() if line.startswith("{"))))


def can_build(offload: str) -> bool:
    """Whether DeepSpeed can build its own ops here; prints a warning if it cannot."""
    if offload == "cpu":
        return True
    code = "from deepspeed.ops.op_builder import AsyncIOBuilder; print(AsyncIOBuilder().is_compatible())"
    answer = run_python(["-c", code], _peers.deepspeed_python(), ACCEL_DEEPSPEED="0", PYTHONPATH="").split()[-1]
    if answer != "True":
        _measure.progress_console.print(
            "Warning: DeepSpeed cannot build AsyncIO here. Install libaio-dev.", style="yellow"
        )
    return answer == "True"


def measure(offload: str, size: Size, own_cache: Path | None, peers: list[str], directory: Path) -> list[Figure]:
    """The figures of one kind of offload.

    Args:
        own_cache: where DeepSpeed's own ops were built before; None to measure their build, too.
    """
    caches: dict[str, Path] = {}

    def train_cold(contender: str) -> Run:
        caches[contender] = Path(tempfile.mkdtemp(prefix=f"{contender}-", dir=directory))
        return train(contender, offload, size, caches[contender])

    title = OFFLOADS[offload]
    cold = interleave({OURS: lambda: train_cold(OURS)}, size.cold, f"{title}, empty cache", warm_ups=0)
    if peers and own_cache is None:
        name = f"{title}, empty cache, DeepSpeed's own ops (minutes)"
        cold |= interleave({OWN: lambda: train_cold(OWN)}, 1, name, warm_ups=0)
    elif own_cache is not None:
        caches[OWN] = own_cache
    contenders = {name: partial(train, name, offload, size, caches[name]) for name in (OURS, *peers)}
    warm = interleave(contenders, size.warm, f"{title}, ops built before")

    def figure(name: str, seconds: dict[str, list[float]], least_ratio: float | None = None) -> Figure:
        return Figure(name, seconds.pop(OURS), peers=seconds, least_ratio=least_ratio)

    def starts(runs: dict[str, list[Run]]) -> dict[str, list[float]]:
        return {name: [run.start_s for run in of_one] for name, of_one in runs.items()}

    warm_start = figure(f"start, {title}, ops built before", starts(warm))
    if peers:
        limit_s = statistics.median(warm_start.peers[OWN]) - WARM_GAIN_S
        warm_start = dataclasses.replace(warm_start, limit_s=limit_s)
    steps = {name: [run.step_s for run in runs] for name, runs in warm.items()}
    return [
        figure(f"start, {title}, empty cache", starts(cold), LEAST_RATIOS[offload]),
        warm_start,
        figure(f"step, {title}", steps, 1.0),
    ]


def main() -> None:
    quick = "a tiny model, one process for each figure, DeepSpeed's own ops built before (by the first run)"
    arguments = _measure.make_parser("deepspeed", __doc__, quick, PEERS).parse_args()
    machine = _measure.describe_machine()
    size = Size(warm=1, cold=1, width=64, steps=5) if arguments.quick else Size(warm=10, cold=3, width=1024, steps=20)
    _peers.deepspeed_python()  # installs it now if it is missing
    own_cache = _peers.peer_directory(_peers.DEEPSPEED[0]) / "ops" if arguments.quick else None
    # First, so that warnings come before minutes of work.
    peers = {offload: arguments.peers if arguments.peers and can_build(offload) else [] for offload in OFFLOADS}
    figures = []
    with tempfile.TemporaryDirectory(prefix="accel-ops-benchmark-", ignore_cleanup_errors=True) as name:
        for offload in OFFLOADS:
            figures += measure(offload, size, own_cache, peers[offload], Path(name))
    _measure.report("deepspeed", arguments, machine, [figure_table("DeepSpeed on one CPU rank", figures)], figures)


if __name__ == "__main__":
    main()
