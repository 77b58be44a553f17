"""CPU Adam, loaded cold and warm; and what importing the packages costs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import _measure
from benchmarks._figures import Counts, Figure
from benchmarks._processes import PROGRAMS, Contender, make_read_only, run_python, snapshot


def accel_ops() -> Contender:
    return Contender("accel-ops", Path(sys.executable), PROGRAMS / "load_accel_ops.py", "ACCEL_CACHE_DIR")


def deepspeed(python: Path) -> Contender:
    return Contender("deepspeed", python, PROGRAMS / "load_deepspeed.py", "TORCH_EXTENSIONS_DIR")


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
        warm_figure("warm load(), new process, builder imported before", "load_s", limit_s=0.005),
        Figure("the same, cache read-only, no tool on PATH", [t["load_s"] for t in bare], limit_s=0.005),
        warm_figure("second load() in one process", "again_s"),
        warm_figure("importing CPUAdamBuilder after torch", "import_s"),
        warm_figure("import of the builder and warm load() together", "import_s", "load_s"),
    ]


_SENTENCE = 'from accelerator import get_accelerator; get_accelerator().create_op_builder("CPUAdamBuilder").load()'
_FRONT_END = "from op_builder.ops import CPUAdam"


def measure_starts(counts: Counts, cache: Path) -> list[Figure]:
    """What a program waits for at its start, in new processes; ``cache`` may be empty."""
    python = Path(sys.executable)
    variables = {"ACCEL_CACHE_DIR": str(cache), "ACCEL_ACCELERATOR": "cpu"}

    def timed(statement: str) -> Callable[[], float]:
        code = f"import torch, time; began = time.perf_counter(); {statement}; print(time.perf_counter() - began)"
        return lambda: float(run_python(python, ["-c", code], variables).stdout)

    def whole(*arguments: str) -> Callable[[], float]:
        def run() -> float:
            began = time.perf_counter()
            run_python(python, list(arguments), variables)
            return time.perf_counter() - began

        return run

    contenders = {
        "sentence": timed(_SENTENCE),
        "front end": timed(_FRONT_END),
        "report": whole("-m", "op_builder.report"),
        "torch": whole("-c", "import torch"),
    }
    contenders["sentence"]()  # compiles it, if need be
    contenders["report"]()  # compiles the small programs of its checks
    with _measure.make_progress() as progress:
        task = progress.add_task("start", total=(counts.warm + 1) * len(contenders))
        seconds = _measure.interleave(contenders, counts.warm, lambda: progress.advance(task))
    added = [report - torch for report, torch in zip(seconds["report"], seconds["torch"], strict=True)]
    return [
        Figure("get_accelerator().create_op_builder(...).load(), warm", seconds["sentence"], limit_s=0.010),
        Figure(f"'{_FRONT_END}', after torch", seconds["front end"], limit_s=0.015),
        Figure("'python -m op_builder.report' beyond 'import torch'", added, limit_s=0.5),
    ]


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
