"""A cold load against the compilers' own time, and many processes that load one cold op."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import _measure
from benchmarks._figures import Counts, Figure
from benchmarks._processes import PROGRAMS, TIMEOUT_S, Contender, peer_environment

PROCESSES = 8
# A cold load may take this much longer than the bare commands: a quarter of a long build, else a constant.
LONG_BUILD_S = 3.0
LONG_FACTOR = 1.25
SHORT_OVERHEAD_S = 0.6


def bare_limit_s(bare_s: float) -> float:
    """How long a cold load may take whose compiler commands take ``bare_s`` by hand."""
    return LONG_FACTOR * bare_s if bare_s >= LONG_BUILD_S else bare_s + SHORT_OVERHEAD_S


def measure_builds(counts: Counts, directory: Path) -> list[Figure]:
    """Cold loads of a long and a short build, each beside its bare commands; then many processes at once."""
    from benchmarks.programs import load_text
    from op_builder.cpu import CPUAdamBuilder

    names = {"cpu_adam": CPUAdamBuilder(), "one file on the Stable ABI": load_text.stable_builder("bare")}
    scripts = {
        "cpu_adam": Contender("", Path(sys.executable), PROGRAMS / "load_accel_ops.py", "ACCEL_CACHE_DIR"),
        "one file on the Stable ABI": Contender("", Path(sys.executable), PROGRAMS / "load_text.py", "ACCEL_CACHE_DIR"),
    }
    figures = []
    with _measure.make_progress() as progress:
        task = progress.add_task("cold load beside the bare commands", total=len(names) * 2 * counts.cold)
        for name, builder in names.items():
            arguments = ["stable", "bare"] if scripts[name].script.name == "load_text.py" else []
            ours, bare = [], []
            for turn in range(counts.cold):
                cache = directory / f"bare-{name[:3]}-{turn}"
                ours.append(scripts[name].load(cache, *arguments)["load_s"])
                progress.advance(task)
                bare.append(bare_commands_s(builder))
                progress.advance(task)
            limit_s = bare_limit_s(statistics.median(bare))
            figures.append(Figure(f"cold load(), {name}", ours, limit_s=limit_s, peers={"bare commands": bare}))
        task = progress.add_task(f"{PROCESSES} processes at once", total=2 * counts.cold)
        one, many = [], []
        for turn in range(counts.cold):
            one.append(load_together_s(1, directory / f"one-{turn}"))
            progress.advance(task)
            many.append(load_together_s(PROCESSES, directory / f"many-{turn}"))
            progress.advance(task)
    name = f"{PROCESSES} processes load cold cpu_adam at once"
    figures.append(Figure(name, many, limit_s=1.3 * statistics.median(one), peers={"one process": one}))
    return figures


def bare_commands_s(builder: object) -> float:
    """Seconds that the compiler commands of an op take when they are run by hand, with the same parallelism."""
    from op_builder.builder.base import OpBuilder
    from op_builder.engine.commands import build_commands
    from op_builder.load.resolver import Request
    from op_builder.toolchains.jobs import job_count

    assert isinstance(builder, OpBuilder)
    request = Request.of(builder)
    assert request.toolset is not None
    with tempfile.TemporaryDirectory(prefix="accel-ops-bare-") as name:
        commands = build_commands(request.plan, request.toolset, Path(name))
        for source in request.plan.sources:
            if source.text is not None:
                (Path(name) / source.path).write_text(source.text)

        def run(command: tuple[str, ...]) -> None:
            subprocess.run(command, cwd=name, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        started = time.perf_counter()
        with ThreadPoolExecutor(job_count(request.plan)) as pool:
            list(pool.map(run, [*(step.command for step in commands.compile_steps), *commands.stand_ins.values()]))
        run(commands.link)
        return time.perf_counter() - started


def load_together_s(processes: int, cache: Path) -> float:
    """Seconds from the start signal until the last of ``processes`` has loaded cold CPU Adam.

    Raises:
        RuntimeError: it was compiled more or less often than once.
    """
    python = Path(sys.executable)
    environment = {**peer_environment(python), "ACCEL_CACHE_DIR": str(cache), "ACCEL_ACCELERATOR": "cpu"}
    ranks = [
        subprocess.Popen(
            [str(python), str(PROGRAMS / "load_when_told.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(processes)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            rank.stdout.readline()
        started = time.perf_counter()
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write("load\n")
            rank.stdin.flush()
        told = [json.loads(rank.communicate(timeout=TIMEOUT_S)[0].splitlines()[-1]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    compiles = sum(answer["compiles"] for answer in told)
    if compiles != 1:
        raise RuntimeError(f"{processes} processes compiled the op {compiles} times.")
    shutil.rmtree(cache, ignore_errors=True)
    return max(answer["loaded_at"] for answer in told) - started
