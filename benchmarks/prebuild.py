"""Ops prebuilt in a wheel: time to build it, its size, time to load from it.

pip builds the wheel in isolation from a copy of the sources, with an empty cache, as
`pip install` does; a wheel without ops shows how much of the time is pip's own. A load
is a new process with torch imported before the clock starts and no compiler on PATH.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import zipfile
from pathlib import Path

from benchmarks import _measure, _peers
from benchmarks._figures import Figure, figure_table
from benchmarks._measure import at_most, interleave, requirement_table
from benchmarks._wheels import Installation, copy_sources, only_wheel
from op_builder import cpu
from op_builder.load.prebuilt import DIRECTORY, INDEX

PEERS = ("deepspeed",)
OURS, PLAIN = "accel-ops", "without ops"
BUILD_LIMIT_S, LOAD_LIMIT_S, SIZE_LIMIT_MB = 60.0, 0.005, 5.0
# The libraries that an op needs (oneCCL) are opened before the clock starts.
LOAD = """
import json, sys, time
import torch
from op_builder import cpu
times = {}
for name in sys.argv[1:]:
    builder = getattr(cpu, name)()
    if times:  # the first op's time includes what the first load of a process does once
        builder.open_libraries()
    started = time.perf_counter()
    builder.load()
    times[name] = time.perf_counter() - started
print(json.dumps(times))
"""
LOAD_DEEPSPEED = """
import json, time
import torch
from deepspeed.ops.op_builder import CPUAdamBuilder
started = time.perf_counter()
CPUAdamBuilder().load()
print(json.dumps({"CPUAdamBuilder": time.perf_counter() - started}))
"""
# What DeepSpeed's setup.py and its import need; without build isolation pip does not install it.
DEEPSPEED_NEEDS = ("wheel", "ninja", "py-cpuinfo", "hjson", "einops", "msgpack", "pydantic", "tqdm", "psutil")


def builders_in(wheel: Path) -> list[str]:
    """The builder classes of the ops that a wheel contains, CPUAdamBuilder first."""
    with zipfile.ZipFile(wheel) as files:
        index = json.loads(files.read(f"op_builder/{DIRECTORY}/{INDEX}"))
    ops = {op["op"] for op in index["ops"]}
    classes = [name for name in cpu.__all__ if name.endswith("Builder") and getattr(cpu, name).NAME in ops]
    return sorted(classes, key=lambda name: name != "CPUAdamBuilder")


def printed(output: str) -> dict[str, float]:
    """The JSON in a program's last line; DeepSpeed logs to standard output before it."""
    times: dict[str, float] = json.loads(output.splitlines()[-1])
    return times


def measure(arguments: argparse.Namespace, directory: Path) -> tuple[list[Figure], Path]:
    """Build wheels below ``directory`` and load from them; return the figures and the wheel with all host ops."""
    wheels, loads = (1, 5) if arguments.quick else (2, 25)
    source = copy_sources(directory / "source")
    ours = Installation.make(directory / "ours")
    caches: list[str] = []
    built = directory / "built"

    def build_plain() -> float:
        return ours.pip_wheel(source, directory / "plain")

    def build(cache: str) -> float:
        return ours.pip_wheel(source, built, ACCEL_BUILD_OPS="1", ACCEL_ACCELERATOR="cpu", ACCEL_CACHE_DIR=cache)

    def build_cold() -> float:
        caches.append(tempfile.mkdtemp(prefix="cache-", dir=directory))
        return build(caches[-1])

    seconds = interleave({PLAIN: build_plain, OURS: build_cold}, wheels, "wheels", warm_ups=0)
    seconds |= interleave({"again": lambda: build(caches[0])}, 1, "wheel, ops from the cache", warm_ups=0)
    wheel = only_wheel(built)
    ours.pip_install(wheel, with_dependencies=False)
    first, *others = builders_in(wheel)
    contenders = {OURS: lambda: printed(ours.run(LOAD, directory, first, *others))}
    figures = [
        Figure("pip wheel with all host ops, empty cache", seconds[OURS], BUILD_LIMIT_S, {PLAIN: seconds[PLAIN]}),
        Figure("pip wheel with all host ops, from the cache", seconds["again"], None, {PLAIN: seconds[PLAIN]}),
    ]
    if "deepspeed" in arguments.peers:
        theirs, figure = build_deepspeed(ours, source, directory)
        figures.append(figure)
        contenders["deepspeed"] = lambda: printed(theirs.run(LOAD_DEEPSPEED, directory))
    loaded = interleave(contenders, loads, "loads from the wheel")
    peers = {name: [times[first] for times in samples] for name, samples in loaded.items()}
    slowest = [max(times[name] for name in others) for times in loaded[OURS]]
    return [
        *figures,
        Figure("load() of cpu_adam from the wheel, first of its process", peers.pop(OURS), LOAD_LIMIT_S, peers),
        Figure(f"load() of the slowest of the {len(others)} other ops", slowest, LOAD_LIMIT_S),
    ], wheel


def build_deepspeed(ours: Installation, source: Path, directory: Path) -> tuple[Installation, Figure]:
    """DeepSpeed installed from a wheel with its cpu_adam, and the time of that wheel against one of ours."""
    theirs = Installation.make(directory / "deepspeed")
    theirs.pip_install(*DEEPSPEED_NEEDS)
    # Its build needs torch, which it does not find under build isolation.
    options = ("--no-build-isolation", "--no-cache-dir")
    wheels, cache = directory / "deepspeed-wheel", str(directory / "cache-alone")
    seconds = interleave(
        {
            "deepspeed": lambda: theirs.pip_wheel(_peers.DEEPSPEED[0], wheels, *options, DS_BUILD_CPU_ADAM="1"),
            OURS: lambda: ours.pip_wheel(source, directory / "alone", ACCEL_BUILD_CPU_ADAM="1", ACCEL_CACHE_DIR=cache),
        },
        1,
        "wheels with cpu_adam alone",
        warm_ups=0,
    )
    theirs.pip_install(only_wheel(wheels), with_dependencies=False)
    return theirs, Figure("pip wheel with cpu_adam alone", seconds.pop(OURS), None, seconds, 1.0)


def main() -> None:
    parser = _measure.make_parser("prebuild", __doc__, "one wheel and five loads", PEERS)
    arguments = parser.parse_args()
    machine = _measure.describe_machine()
    with tempfile.TemporaryDirectory(prefix="accel-ops-benchmark-", ignore_cleanup_errors=True) as name:
        figures, wheel = measure(arguments, Path(name))
        size = at_most(f"size of {wheel.name}, without CUDA", wheel.stat().st_size / 1e6, SIZE_LIMIT_MB, "MB")
    tables = [figure_table("Prebuilt ops", figures), requirement_table([size])]
    _measure.report("prebuild", arguments, machine, tables, {"figures": figures, "size": size})


if __name__ == "__main__":
    main()
