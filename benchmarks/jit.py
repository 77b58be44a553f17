"""Time to import, to build and to load, against limits and peers.

A figure is the median of new processes. torch is imported before the clock starts,
except where the row says otherwise. The contenders alternate.

"bare commands" are the compiler commands of the op, run without the engine with
the same parallelism.
"""

from __future__ import annotations

import dataclasses
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch.utils.cpp_extension import include_paths

from benchmarks import _measure, _peers
from benchmarks._figures import Figure, figure_table
from benchmarks._measure import interleave, seconds_of
from benchmarks._peers import PROGRAMS, failure
from benchmarks._processes import TIMEOUT_S, environment, run_program, run_python
from benchmarks._wheels import Installation, copy_sources, only_wheel
from benchmarks.programs.load_text import stable_builder
from op_builder.builder.base import OpBuilder
from op_builder.cpu import CPUAdamBuilder
from op_builder.engine.commands import build_commands
from op_builder.load.lookup import Lookup
from op_builder.toolchains.jobs import job_count

PEERS = ("deepspeed", "torch", "tvm-ffi")
OURS = "accel-ops"
LOAD_CPU_ADAM, LOAD_TEXT = PROGRAMS / "load_cpu_adam.py", PROGRAMS / "load_text.py"
PROCESSES = 8
# A cold load may take this much longer than the bare commands: a quarter of a long build, else a constant.
LONG_BUILD_S = 3.0
LONG_FACTOR = 1.25
SHORT_OVERHEAD_S = 0.6

SENTENCE = 'from accelerator import get_accelerator; get_accelerator().create_op_builder("CPUAdamBuilder").load()'
FRONT_END = "from op_builder.ops import CPUAdam"
IMPORTS = "import accelerator, op_builder"


@dataclasses.dataclass(frozen=True)
class Counts:
    """Processes for each figure."""

    cold: int
    warm: int


def new_cache(directory: Path) -> str:
    """An empty cache directory below ``directory``."""
    return tempfile.mkdtemp(prefix="cache-", dir=directory)


def read_only_copy(cache: str) -> str:
    """A copy of a cache directory that only root can write."""
    copy = Path(shutil.copytree(cache, f"{cache}-read-only"))
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return str(copy)


# Loads and starts ------------------------------------------------------------


def measure_loads(with_deepspeed: bool, counts: Counts, directory: Path) -> list[Figure]:
    """Cold and warm loads of CPU Adam."""
    caches: list[str] = []

    def load(cache: str, **variables: str) -> dict[str, float]:
        return run_program(LOAD_CPU_ADAM, "op_builder", ACCEL_CACHE_DIR=cache, **variables)

    def load_cold() -> dict[str, float]:
        caches.append(new_cache(directory))
        return load(caches[-1])

    cold = interleave({OURS: load_cold}, counts.cold, "cold load", warm_ups=0)
    read_only = read_only_copy(caches[0])
    contenders = {OURS: lambda: load(caches[0]), "read-only": lambda: load(read_only, PATH="/nonexistent")}
    if with_deepspeed:
        python, theirs = _peers.deepspeed_python(), new_cache(directory)

        def load_deepspeed() -> dict[str, float]:
            return run_program(LOAD_CPU_ADAM, "deepspeed.ops.op_builder", python=python, TORCH_EXTENSIONS_DIR=theirs)

        cold |= interleave({"deepspeed": load_deepspeed}, 1, "cold load, deepspeed", warm_ups=0)
        contenders["deepspeed"] = load_deepspeed
    warm = interleave(contenders, counts.warm, "warm load")

    def figure(name: str, samples: dict[str, list[dict[str, float]]], *keys: str, limit_s: float | None) -> Figure:
        sums = {one: [sum(times[key] for key in keys) for times in of_one] for one, of_one in samples.items()}
        return Figure(name, sums.pop(OURS), limit_s, sums)

    without_tools = [times["load_s"] for times in warm.pop("read-only")]
    return [
        dataclasses.replace(figure("cold load(), empty cache", cold, "load_s", limit_s=5.0), least_ratio=10.0),
        figure("warm load()", warm, "load_s", limit_s=0.005),
        Figure("warm load(), cache read-only, no tool on PATH", without_tools, 0.005),
        figure("second load() in one process", warm, "again_s", limit_s=None),
        figure("import CPUAdamBuilder and warm load()", warm, "import_s", "load_s", limit_s=None),
    ]


def measure_starts(counts: Counts, directory: Path) -> list[Figure]:
    """What a program waits for when it starts: imports, the first load, the report."""
    cache = new_cache(directory)
    installation = install_wheel(directory)

    def timed(statement: str) -> str:
        return f"import torch, time; started = time.perf_counter(); {statement}; print(time.perf_counter() - started)"

    def wall_s(*arguments: str) -> Callable[[], float]:
        return lambda: seconds_of(lambda: run_python(arguments, ACCEL_CACHE_DIR=cache))

    def processor_s(code: str) -> Callable[[], float]:
        def run() -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run_python(["-c", code])
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        return run

    samples = interleave(
        {
            "cache": lambda: float(run_python(["-c", timed(SENTENCE)], ACCEL_CACHE_DIR=cache)),
            "wheel": lambda: float(installation.run(timed(SENTENCE), directory)),
            "front end": lambda: float(run_python(["-c", timed(FRONT_END)], ACCEL_CACHE_DIR=cache)),
            "report": wall_s("-m", "op_builder.report"),
            "torch": wall_s("-c", "import torch"),
            "imports": processor_s(IMPORTS),
            "nothing": processor_s("pass"),
        },
        counts.warm,
        "starts",  # the first turn, which does not count, compiles the op and the report's checks
    )

    def difference(longer: str, shorter: str) -> list[float]:
        return [one - other for one, other in zip(samples[longer], samples[shorter], strict=True)]

    return [
        Figure("import accelerator, find the builder, load(): from the cache", samples["cache"], 0.010),
        Figure("import accelerator, find the builder, load(): from an installed wheel", samples["wheel"], 0.010),
        Figure(FRONT_END, samples["front end"], 0.015),
        Figure("python -m op_builder.report, above import torch", difference("report", "torch"), 0.5),
        Figure(f"{IMPORTS}, without torch: processor time", difference("imports", "nothing"), 0.030),
    ]


def install_wheel(directory: Path) -> Installation:
    """This project from a wheel that contains CPU Adam."""
    with _measure.progress_console.status("Building a wheel with cpu_adam ..."):
        installation = Installation.make(directory / "installation")
        source, wheels = copy_sources(directory / "source"), directory / "wheels"
        variables = {"ACCEL_BUILD_CPU_ADAM": "1", "ACCEL_ACCELERATOR": "cpu", "ACCEL_CACHE_DIR": new_cache(directory)}
        installation.pip_wheel(source, wheels, "--no-build-isolation", **variables)
        installation.pip_install(only_wheel(wheels), with_dependencies=False)
    return installation


# Builds ----------------------------------------------------------------------


def measure_builds(counts: Counts, directory: Path) -> list[Figure]:
    """Cold loads against the bare commands, and many processes that load one op at the same time."""
    ops: dict[str, tuple[OpBuilder, list[str]]] = {
        "cpu_adam": (CPUAdamBuilder(), [str(LOAD_CPU_ADAM), "op_builder"]),
        "one file, Stable ABI": (stable_builder("bare"), [str(LOAD_TEXT), "stable", "bare"]),
    }
    figures = []
    for name, (builder, (script, *arguments)) in ops.items():

        def load(script: str = script, arguments: list[str] = arguments) -> float:
            return run_program(Path(script), *arguments, ACCEL_CACHE_DIR=new_cache(directory))["load_s"]

        def bare(builder: OpBuilder = builder) -> float:
            return bare_commands_s(builder)

        samples = interleave({OURS: load, "bare": bare}, counts.cold, f"cold load, {name}", warm_ups=0)
        bare_s = statistics.median(samples["bare"])
        limit_s = LONG_FACTOR * bare_s if bare_s >= LONG_BUILD_S else bare_s + SHORT_OVERHEAD_S
        figures.append(Figure(f"cold load(), {name}", samples[OURS], limit_s, {"bare commands": samples["bare"]}))
        if name == "cpu_adam":
            compiles = interleave({"header": lambda: torch_header_s(directory)}, counts.cold, "one header", warm_ups=0)
            header = {"g++ -O2, one file with torch/extension.h": compiles["header"]}
            figures.append(Figure(f"cold load(), {name}", samples[OURS], None, header, least_ratio=5.0))
    together = {count: lambda count=count: load_together_s(count, new_cache(directory)) for count in (1, PROCESSES)}
    samples = interleave(
        {str(count): load for count, load in together.items()}, counts.cold, "many processes", warm_ups=0
    )
    one, many = samples["1"], samples[str(PROCESSES)]
    name = f"cold load() of cpu_adam in {PROCESSES} processes at once"
    return [*figures, Figure(name, many, 1.3 * statistics.median(one), {"one process": one})]


def bare_commands_s(builder: OpBuilder) -> float:
    """Seconds of an op's compiler commands, run without the engine, with the same parallelism."""
    plan, _, toolset = Lookup(builder.spec(), builder.cache).to_build()
    with tempfile.TemporaryDirectory() as directory:
        commands = build_commands(plan, toolset, Path(directory))
        for source in plan.sources:
            if source.text is not None:
                (Path(directory) / source.path).write_text(source.text)

        def run(command: tuple[str, ...]) -> None:
            subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        started = time.perf_counter()
        with ThreadPoolExecutor(job_count(plan)) as pool:
            list(pool.map(run, [*(step.command for step in commands.compile_steps), *commands.stand_ins.values()]))
        run(commands.link)
        return time.perf_counter() - started


def torch_header_s(directory: Path) -> float:
    """Seconds of one compiler command with ``-O2``, for a file that includes ``torch/extension.h``."""
    source = directory / "header.cpp"
    source.write_text("#include <torch/extension.h>\nint value() { return 1; }\n")
    includes = [*include_paths(), sysconfig.get_path("include")]
    options = ["-O2", "-std=c++20", "-fPIC", *(f"-I{path}" for path in includes)]
    command = ["g++", *options, "-c", str(source), "-o", str(directory / "header.o")]
    return seconds_of(lambda: subprocess.run(command, check=True))


def load_together_s(count: int, cache: str) -> float:
    """Seconds from the start signal until each of ``count`` processes has loaded cold CPU Adam."""
    command = [sys.executable, str(LOAD_CPU_ADAM), "op_builder", "--wait"]
    variables = environment(Path(sys.executable), ACCEL_CACHE_DIR=cache)
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=variables) for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        started = time.perf_counter()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("load\n")
            process.stdin.flush()
        for process in processes:
            _, errors = process.communicate(timeout=TIMEOUT_S)
            if process.returncode != 0:
                raise failure(command, process.returncode, errors)
        return time.perf_counter() - started
    finally:
        for process in processes:
            process.kill()


# load_inline -----------------------------------------------------------------


def measure_texts(peers: list[str], counts: Counts, directory: Path) -> list[Figure]:
    """Cold and warm loads of a short text: with torch/extension.h against torch, on a stable ABI against tvm-ffi."""
    variables = {"torch": "TORCH_EXTENSIONS_DIR", "tvm-ffi": "TVM_FFI_CACHE_DIR"}
    names = ["stable", "extension", *(name for name in variables if name in peers)]
    pythons = {}
    if "tvm-ffi" in peers:
        names.append("exported")
        pythons = dict.fromkeys(("exported", "tvm-ffi"), _peers.peer_python(*_peers.TVM_FFI))
    caches = {name: new_cache(directory) for name in names}
    made = 0

    def load(name: str, variant: str) -> float:
        variable = {variables.get(name, "ACCEL_CACHE_DIR"): caches[name]}
        return run_program(LOAD_TEXT, name, variant, python=pythons.get(name, Path(sys.executable)), **variable)[
            "load_s"
        ]

    def load_new(name: str) -> Callable[[], float]:
        def run() -> float:
            nonlocal made
            made += 1
            return load(name, f"variant{made}")

        return run

    cold = interleave({name: load_new(name) for name in names}, counts.cold, "cold text", warm_ups=0)
    warm = interleave({name: lambda name=name: load(name, "warm") for name in names}, counts.warm, "warm text")
    run_python(["-m", "op_builder.build", "--precompile"], ACCEL_CACHE_DIR=caches["extension"])
    precompiled = interleave(
        {"extension": load_new("extension")}, counts.cold, "cold text, header precompiled", warm_ups=0
    )

    def of(peer: str, samples: dict[str, list[float]]) -> dict[str, list[float]]:
        return {peer: samples[peer]} if peer in samples else {}

    exported = [
        Figure(f"TVM FFI, {name}", samples["exported"], None, of("tvm-ffi", samples))
        for name, samples in (("cold", cold), ("warm", warm))
        if "exported" in samples
    ]
    return [
        Figure("torch/extension.h, cold", cold["extension"], None, of("torch", cold)),
        Figure("... header precompiled before", precompiled["extension"], None, of("torch", cold), 2.0),
        Figure("torch/extension.h, warm", warm["extension"], 0.040, of("torch", warm)),
        Figure("Stable ABI (ours) and TVM's own, cold", cold["stable"], None, of("tvm-ffi", cold)),
        Figure("Stable ABI (ours) and TVM's own, warm", warm["stable"], None, of("tvm-ffi", warm)),
        *exported,
    ]


def main() -> None:
    parser = _measure.make_parser("jit", __doc__, "one cold and five warm processes for each figure", PEERS)
    arguments = parser.parse_args()
    machine = _measure.describe_machine()
    counts = Counts(cold=1, warm=5) if arguments.quick else Counts(cold=3, warm=25)
    with tempfile.TemporaryDirectory(prefix="accel-ops-benchmark-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        loads = measure_loads("deepspeed" in arguments.peers, counts, directory)
        loads += measure_starts(counts, directory)
        sections = {
            "Importing and loading CPU Adam": loads,
            "Cold loads and the compiler's own time": measure_builds(counts, directory),
            "load_inline": measure_texts(arguments.peers, counts, directory),
        }
    tables = [figure_table(title, figures) for title, figures in sections.items()]
    _measure.report("jit", arguments, machine, tables, sections)


if __name__ == "__main__":
    main()
