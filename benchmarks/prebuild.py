"""Ops built into a wheel: how long that takes, how large it is, how fast they load, in one run.

A wheel is made by ``pip wheel`` with build isolation, from a copy of the sources and an empty cache, as
``pip install`` would; what pip itself needs for a wheel without ops is told beside it. Loads are fresh
processes with torch imported before the clock starts, without a compiler on PATH.

    python -m benchmarks.prebuild [--quick] [--peers deepspeed] [--json] [--write]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import _measure
from benchmarks._figures import Figure, columns_of, rows_of
from op_builder import cpu
from op_builder.load.prebuilt import DIRECTORY, INDEX

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
PEERS = ("deepspeed",)
LEAST_WHEELS, WHEELS, LOADS = 1, 2, 25
TIMEOUT_S = 1800
BUILD_LIMIT_S, SIZE_LIMIT_BYTES, LOAD_LIMIT_S = 60.0, 5_000_000, 5e-3
HOST_OPS = {"ACCEL_BUILD_OPS": "1", "ACCEL_ACCELERATOR": "cpu"}

FOREIGN = "libraries of others that prebuilt ops need (oneCCL's for ccl_comm)"
# Its arguments are the classes; what the first op of a process takes upon itself is the first one's.
LOAD = f"""
import json, sys, time
import torch
from op_builder import cpu
times = {{}}
foreign_s = 0.0
for number, name in enumerate(sys.argv[1:]):
    builder = getattr(cpu, name)
    if number > 0:
        started = time.perf_counter()
        builder().open_libraries()
        foreign_s += time.perf_counter() - started
    started = time.perf_counter()
    builder().load()
    times[name] = time.perf_counter() - started
print(json.dumps({{**times, {FOREIGN!r}: foreign_s}}))
"""


@dataclasses.dataclass(frozen=True)
class Environment:
    """A virtual environment that sees the running one's packages, but none of its editable installs."""

    directory: Path

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @staticmethod
    def make(directory: Path) -> Environment:
        import torch

        run([sys.executable, "-m", "venv", str(directory)], {})
        made = Environment(directory)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        place = directory / "lib" / f"python{version}" / "site-packages" / "running.pth"
        place.write_text(f"{Path(torch.__file__).resolve().parents[1]}\n")
        return made

    def wheel_s(self, source: str | Path, directory: Path, variables: Mapping[str, str], *options: str) -> float:
        """Seconds that ``pip wheel`` takes for ``source``; the wheel lies in ``directory``."""
        started = time.perf_counter()
        run(
            [str(self.python), "-m", "pip", "wheel", "--no-deps", *options, "-w", str(directory), str(source)],
            variables,
        )
        return time.perf_counter() - started

    def install(self, wheel: Path) -> None:
        run([str(self.python), "-m", "pip", "install", "--no-deps", "--force-reinstall", str(wheel)], {})

    def load_s(self, program: str, directory: Path, *arguments: str) -> dict[str, float]:
        """What ``program`` prints, run where no compiler is and nothing is cached."""
        variables = {"PATH": str(directory), "ACCEL_CACHE_DIR": str(directory / "none"), "ACCEL_ACCELERATOR": "cpu"}
        told = run([str(self.python), "-c", program, *arguments], variables, directory)
        times: dict[str, float] = json.loads(told.splitlines()[-1])
        return times


def run(command: list[str], variables: Mapping[str, str], directory: Path | None = None) -> str:
    """Run a program that sees nothing of this checkout; what it printed.

    Raises:
        RuntimeError: it failed; the message ends with what it wrote last.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ACCEL_"))}
    environment.update(PIP_DISABLE_PIP_VERSION_CHECK="1", **variables)
    done = subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise RuntimeError(f"{' '.join(command[:6])} ... failed with status {done.returncode}:\n{last}")
    return done.stdout


def copy_of_sources(directory: Path) -> Path:
    """What an sdist holds of this project, so that nothing is left in the checkout."""
    for name in ("accelerator", "op_builder", "csrc", "kernels_sycl", "build_tools"):
        ignored = shutil.ignore_patterns("__pycache__", "_prebuilt")
        shutil.copytree(ROOT / name, directory / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, directory)
    return directory


def only_wheel(directory: Path) -> Path:
    (found,) = directory.glob("*.whl")
    return found


def builders_in(wheel: Path) -> list[str]:
    """The classes of the ops that a wheel holds, CPUAdamBuilder first."""
    with zipfile.ZipFile(wheel) as files:
        index = json.loads(files.read(f"op_builder/{DIRECTORY}/{INDEX}"))
    ops = {op["op"] for op in index["ops"]}
    classes = [name for name in cpu.__all__ if name.endswith("Builder") and getattr(cpu, name).NAME in ops]
    return sorted(classes, key=lambda name: name != "CPUAdamBuilder")


@dataclasses.dataclass(frozen=True)
class Results:
    """All figures: seconds, and the wheel's size in bytes."""

    figures: list[Figure]
    wheel: str
    size_bytes: int
    peers: list[str]

    @property
    def size_verdict(self) -> str:
        return "ok" if self.size_bytes < SIZE_LIMIT_BYTES else "miss"

    @property
    def size_line(self) -> str:
        return (
            f"The wheel, {self.wheel}: {self.size_bytes / 1e6:.2f} MB, {self.size_verdict} "
            f"(asked: < {SIZE_LIMIT_BYTES / 1e6:g} MB without CUDA)."
        )


def measure(arguments: argparse.Namespace, directory: Path) -> Results:
    """Make the wheels and load from them; ``directory`` takes everything."""
    wheels, loads = (LEAST_WHEELS, LOADS // 3) if arguments.quick else (WHEELS, LOADS)
    with_peer = "deepspeed" in arguments.peers
    turns = 2 * wheels + 2 + loads + (2 + loads if with_peer else 0)
    with _measure.make_progress() as progress:
        task = progress.add_task("environments", total=turns)

        def step(what: str) -> None:
            progress.update(task, advance=1, description=what)

        source = copy_of_sources(directory / "source")
        ours = Environment.make(directory / "ours")
        plain, built = [], []
        for turn in range(wheels):
            step("wheel without ops")
            plain.append(ours.wheel_s(source, directory / f"plain-{turn}", {}))
            step("wheel with all host ops")
            cache = {"ACCEL_CACHE_DIR": str(directory / f"cache-{turn}")}
            built.append(ours.wheel_s(source, directory / f"built-{turn}", {**HOST_OPS, **cache}))
        step("the same again, from the cache")
        again = ours.wheel_s(source, directory / "again", {**HOST_OPS, **cache})
        wheel = only_wheel(directory / "built-0")
        builders = builders_in(wheel)
        ours.install(wheel)
        one: list[float] = []
        foreign: list[float] = []
        alone: dict[str, list[float]] = {}
        if with_peer:
            peer, peer_s, our_s = measure_deepspeed(ours, source, directory, step)
        for _ in range(loads):
            step("loading from the wheel")
            times = ours.load_s(LOAD, directory, *builders)
            foreign.append(times.pop(FOREIGN))
            for name, seconds in times.items():
                alone.setdefault(name, []).append(seconds)
            if with_peer:
                step("loading from the peer's wheel")
                one.append(peer.load_s(_LOAD_DEEPSPEED, directory)["load_s"])
    first, *others = builders
    slowest = [max(alone[name][turn] for name in others) for turn in range(loads)]
    figures = [
        Figure("pip wheel with all host ops, nothing cached", built, BUILD_LIMIT_S, {"without ops": plain}),
        Figure("the same again: ops from the cache", [again], None, {"without ops": plain}),
    ]
    if with_peer:
        figures.append(Figure("pip wheel with cpu_adam alone", [our_s], None, {"deepspeed": [peer_s]}, 1.0))
    loaded_peers = {"deepspeed": one} if with_peer else {}
    figures += [
        Figure("load of prebuilt cpu_adam, the first op of a process", alone[first], LOAD_LIMIT_S, loaded_peers),
        Figure(f"load of the slowest of the {len(others)} other prebuilt ops", slowest, LOAD_LIMIT_S),
        Figure(f"opened before: {FOREIGN}", foreign),
    ]
    return Results(figures, wheel.name, wheel.stat().st_size, ["without ops", *arguments.peers])


_LOAD_DEEPSPEED = """
import json, time
import torch
from deepspeed.ops.op_builder import CPUAdamBuilder
started = time.perf_counter()
CPUAdamBuilder().load()
print(json.dumps({"load_s": time.perf_counter() - started}))
"""


def measure_deepspeed(
    ours: Environment, source: Path, directory: Path, step: Callable[[str], None]
) -> tuple[Environment, float, float]:
    """DeepSpeed with cpu_adam built into its wheel: its environment, and the seconds of both projects' wheels."""
    peer = Environment.make(directory / "deepspeed")
    requirement = _measure.DEEPSPEED[0]
    tools = ["setuptools", "wheel", "ninja", "py-cpuinfo", "hjson", "einops", "msgpack", "pydantic", "tqdm", "psutil"]
    run([str(peer.python), "-m", "pip", "install", *tools], {})
    step("the peer's wheel with cpu_adam")
    # Its build needs torch and sees none under isolation.
    peer_s = peer.wheel_s(
        requirement, directory / "deepspeed-wheel", {"DS_BUILD_CPU_ADAM": "1"}, "--no-build-isolation", "--no-cache-dir"
    )
    step("a wheel with cpu_adam")
    variables = {"ACCEL_BUILD_CPU_ADAM": "1", "ACCEL_CACHE_DIR": str(directory / "cache-alone")}
    our_s = ours.wheel_s(source, directory / "alone", variables)
    peer.install(only_wheel(directory / "deepspeed-wheel"))
    return peer, peer_s, our_s


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prebuild", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer wheels and processes")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="write the table into docs/internals")
    return _measure.parse_with_peers(parser, PEERS)


def main() -> None:
    arguments = parse_arguments()
    machine = _measure.describe_machine()
    with tempfile.TemporaryDirectory(prefix="accel-ops-benchmark-", ignore_cleanup_errors=True) as name:
        results = measure(arguments, Path(name))
    columns, rows = columns_of(results.peers), rows_of(results.figures, results.peers)
    if arguments.json:
        figures = [
            {
                **dataclasses.asdict(figure),
                "median_s": figure.median_s,
                "ratios": figure.ratios,
                "verdict": figure.verdict,
            }
            for figure in results.figures
        ]
        size = {"wheel": results.wheel, "size_bytes": results.size_bytes, "size_verdict": results.size_verdict}
        print(json.dumps({"machine": dataclasses.asdict(machine), "figures": figures, **size}, indent=2))
    else:
        _measure.console.print(_measure.table("Prebuilt wheels", columns, rows))
        _measure.console.print(results.size_line)
        _measure.console.print(str(machine))
    if arguments.write:
        _measure.write_results("prebuild", f"{machine}\n\n{_measure.markdown(columns, rows)}\n{results.size_line}")


if __name__ == "__main__":
    main()
