"""Ops prebuilt in a wheel: time to build it, its size, time to load from it.

pip builds the wheel in isolation from a copy of the sources, with an empty cache, as
`pip install` does; a wheel without ops shows how much of the time is pip's own. A load
is a new process with torch imported before the clock starts and no compiler on PATH.

Wheels for other platforms are compiled by the package ziglang with empty caches, its own included; the cold load
with ziglang finds its C++ library built, because it is built once on a machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import zipfile
from pathlib import Path

from benchmarks import _measure, _peers
from benchmarks._figures import Figure, figure_table
from benchmarks._measure import Requirement, at_most, interleave, requirement_table
from benchmarks._wheels import Installation, copy_sources, only_wheel
from op_builder import cpu
from op_builder.load.prebuilt import DIRECTORY, INDEX

PEERS = ("deepspeed",)
OURS, PLAIN = "accel-ops", "without ops"
BUILD_LIMIT_S, LOAD_LIMIT_S, SIZE_LIMIT_MB = 60.0, 0.005, 5.0
TARGETS = ("linux_x86_64", "linux_aarch64", "macosx_arm64")
TARGETS_LIMIT_S, TARGET_LIMIT_MB, ZIG_LIMIT, STEP_LIMIT = 900.0, 3.0, 2.5, 1.03
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
# The shortest of many steps of one thread: the least disturbed.
STEP = """
import json, time
import torch
from op_builder.ops import CPUAdam
torch.set_num_threads(1)
least = {}
for numel in (1 << 20, 1 << 25):
    parameter = torch.ones(numel, requires_grad=True)
    parameter.grad = torch.ones(numel)
    optimizer = CPUAdam([parameter])
    times = []
    for _ in range(max(5, (1 << 27) // numel)):
        started = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - started)
    least[numel] = min(times)
print(json.dumps(least))
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


def measure(arguments: argparse.Namespace, directory: Path) -> tuple[list[Figure], list[Requirement]]:
    """Build wheels below ``directory`` and load from them."""
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
    figures += [
        Figure("load() of cpu_adam from the wheel, first of its process", peers.pop(OURS), LOAD_LIMIT_S, peers),
        Figure(f"load() of the slowest of the {len(others)} other ops", slowest, LOAD_LIMIT_S),
    ]
    size = at_most(f"size of {wheel.name}, without CUDA", wheel.stat().st_size / 1e6, SIZE_LIMIT_MB, "MB")
    return figures, [size, *measure_targets(ours, source, directory, 1 if arguments.quick else 5)]


def measure_targets(native: Installation, source: Path, directory: Path, rounds: int) -> list[Requirement]:
    """Build the wheels for other platforms, and compare ziglang with the compiler on PATH.

    Args:
        native: has the wheel with the host's ops, by the compiler on PATH.
        directory: where ``plain`` has a wheel without ops.
    """
    crossed = Installation.make(directory / "crossed")
    crossed.pip_install("ziglang")
    seconds, found = [], []
    for target in TARGETS:
        variables = {
            "ACCEL_CACHE_DIR": directory / f"cache-{target}",
            "ZIG_GLOBAL_CACHE_DIR": directory / f"zig-{target}",
        }
        options = {"ACCEL_BUILD_TARGET": target, **{name: str(path) for name, path in variables.items()}}
        seconds.append(crossed.pip_wheel(source, directory / target, "--no-build-isolation", **options))
        wheel = only_wheel(directory / target)
        found.append(at_most(f"size of {wheel.name}", wheel.stat().st_size / 1e6, TARGET_LIMIT_MB, "MB"))
    found.append(at_most(f"pip wheel for {', '.join(TARGETS)}, one after another", sum(seconds), TARGETS_LIMIT_S, "s"))

    crossed.pip_install(only_wheel(directory / "plain"), with_dependencies=False)

    def load_cold(**variables: str) -> float:
        cache = tempfile.mkdtemp(prefix="cold-", dir=directory)
        output = crossed.run(LOAD, directory, "CPUAdamBuilder", ACCEL_CACHE_DIR=cache, **variables)
        return printed(output)["CPUAdamBuilder"]

    paths = {"zig": str(Path(sys.executable).parent), "c++": os.environ["PATH"]}  # the first has ninja and no compiler
    loads = {name: lambda path=path: load_cold(PATH=path) for name, path in paths.items()}
    cold = interleave(loads, rounds, "cold loads")
    ratio = statistics.median(cold["zig"]) / statistics.median(cold["c++"])
    found.append(at_most("cold load of cpu_adam by ziglang, by the compiler on PATH", ratio, ZIG_LIMIT, "x"))

    crossed.pip_install(only_wheel(directory / TARGETS[0]), with_dependencies=False)
    contenders = {"zig": crossed, "c++": native}
    steps = interleave(
        {name: lambda place=place: printed(place.run(STEP, directory)) for name, place in contenders.items()},
        rounds,
        "steps of CPUAdam",
    )
    for numel in steps["zig"][0]:
        zig, cxx = (min(times[numel] for times in steps[name]) for name in contenders)
        found.append(
            at_most(f"CPUAdam.step() of {TARGETS[0]}, by the native wheel, {int(numel):,}", zig / cxx, STEP_LIMIT, "x")
        )
    return found


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
        figures, requirements = measure(arguments, Path(name))
    tables = [figure_table("Prebuilt ops", figures), requirement_table(requirements)]
    _measure.report("prebuild", arguments, machine, tables, {"figures": figures, "requirements": requirements})


if __name__ == "__main__":
    main()
