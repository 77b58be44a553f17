"""Ops with SYCL kernels on the SYCL CPU device: how soon they are there, and how fast beside torch and the CPU ops.

A load is a fresh process with torch imported before the clock starts; it ends when the op has worked once, so with
its kernel compiled. All contenders of a case take turns in one process; compare the best times. Where torch has no
such function its contender is what one writes with torch instead, eagerly.

    python -m benchmarks.sycl [--quick] [--rounds N] [--json] [--write]
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch

from benchmarks import _measure
from benchmarks._figures import duration
from op_builder import cpu, ops, xpu
from op_builder.ops.optim.fused_op import FusedOp

LOAD_COLUMNS = ("load and one update of FusedAdam", "median", "of which load()", "limit", "verdict")
COLUMNS = ("case", "beside", "accel-ops, SYCL", "the other", "SYCL is faster by", "asked")
LEAST_RATIO = 0.8
COLD_LIMIT_S = 8.0
WARM_LIMIT_S = 1.0

Work = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Case:
    """The same work twice.

    Attributes:
        beside: what ``other`` is.
        is_asked: whether SYCL is asked for LEAST_RATIO of the other's speed.
    """

    name: str
    beside: str
    sycl: Work
    other: Work
    is_asked: bool = True


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The best seconds of a case."""

    case: str
    beside: str
    is_asked: bool
    sycl_s: float
    other_s: float

    @property
    def ratio(self) -> float:
        return self.other_s / self.sycl_s


def optimizer_cases(numel: int) -> Iterator[Case]:
    """The fused optimizers beside those of the CPU. One after another: each needs gigabytes."""
    numbers = (1e-3, 0.9, 0.999, 1e-8, 3, 1, True, 0.01)

    def adam(module: FusedOp, count: int, each: int, dtype: torch.dtype) -> Work:
        lists = [[torch.full((each,), 1e-3, dtype=kind) for _ in range(count)] for kind in (dtype, dtype)]
        states = [[torch.full((each,), 1e-3) for _ in range(count)] for _ in range(2)]
        return partial(module.multi_tensor_adam, 65536, None, [*lists, *states], *numbers)

    def lion(module: FusedOp) -> Work:
        lists = [[torch.full((numel,), 1e-3)] for _ in range(3)]
        return partial(module.multi_tensor_lion, 65536, None, lists, 1e-4, 0.9, 0.99, 0.1)

    ours, theirs = xpu.FusedAdamBuilder().load(), cpu.FusedAdamBuilder().load()
    for title, shape in (
        (f"FusedAdam, {numel >> 20}M fp32", (1, numel, torch.float32)),
        (f"FusedAdam, {numel >> 20}M bf16", (1, numel, torch.bfloat16)),
        (f"FusedAdam, 1,000 x {numel // 1000:,} fp32", (1000, numel // 1000, torch.float32)),
        ("FusedAdam, 10,000 x 1,024 fp32", (10_000, 1024, torch.float32)),
    ):
        asked = shape[0] != 10_000
        yield Case(title, "the CPU op", adam(ours, *shape), adam(theirs, *shape), asked)
    lions = (lion(builder().load()) for builder in (xpu.FusedLionBuilder, cpu.FusedLionBuilder))
    yield Case(f"FusedLion, {numel >> 20}M fp32", "the CPU op", *lions)


def torch_quantize(x: torch.Tensor, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks of 256 to int8 codes, as one writes it with torch."""
    blocks = x.view(-1, 256)
    scales = blocks.abs().amax(1, keepdim=True) / largest
    return (blocks / scales).round().clamp(-largest, largest).to(torch.int8), scales


def torch_quantize_4bit(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same to four bits."""
    codes, scales = torch_quantize(x, 7)
    pairs = codes.view(torch.uint8).view(-1, 2) & 15
    return pairs[:, 0] | (pairs[:, 1] << 4), scales


_WEIGHTS = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8)
_SHIFTS = torch.tensor([7, 6, 5, 4, 3, 2, 1, 0], dtype=torch.uint8)


def torch_packbits(x: torch.Tensor) -> torch.Tensor:
    """Bytes of zeros and ones to bits, as one writes it with torch."""
    return (x.view(-1, 8) * _WEIGHTS).sum(1, dtype=torch.uint8)


def torch_unpackbits(packed: torch.Tensor) -> torch.Tensor:
    """The reverse."""
    return ((packed[:, None] >> _SHIFTS) & 1).view(-1)


def repeated(count: int, work: Work) -> None:
    """What is too short to be timed alone."""
    for _ in range(count):
        work()


def function_cases(numel: int) -> list[Case]:
    """The functions beside torch."""
    size = f"{numel >> 20}M"
    cases = []
    for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16"), (torch.float16, "fp16")):
        x = torch.randn(numel).to(dtype)
        rows, weight = x.view(-1, 4096), torch.ones(4096, dtype=dtype)
        residual = torch.zeros_like(rows)
        norm = torch.nn.functional.rms_norm

        def torch_residual(rows: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.rms_norm(residual.add_(rows), (4096,), weight, 1e-6)

        codes, scales = ops.quantize_blocks(x)
        cases += [
            Case(
                f"rms_norm, {size} {name}, rows of 4,096",
                "torch rms_norm",
                partial(ops.rms_norm, rows, weight),
                partial(norm, rows, (4096,), weight, 1e-6),
            ),
            Case(
                f"rms_norm with residual, {size} {name}",
                "torch add_, rms_norm",
                partial(ops.rms_norm, rows, weight, 1e-6, residual),
                partial(torch_residual, rows, residual.clone(), weight),
            ),
            Case(
                f"quantize_blocks, 8 bits, {size} {name}",
                "torch, five passes",
                partial(ops.quantize_blocks, x),
                partial(torch_quantize, x, 127),
            ),
            Case(
                f"dequantize_blocks, 8 bits, {size} {name}",
                "torch mul",
                partial(ops.dequantize_blocks, codes, scales, x.shape, dtype),
                partial(torch.mul, codes.view(-1, 256), scales[:, None].to(dtype)),
            ),
        ]
    row, weight = torch.randn(1, 4096), torch.ones(4096)
    module = xpu.RMSNormBuilder().load()
    x = torch.randn(numel)
    bits = (torch.rand(numel) > 0.5).to(torch.uint8)
    packed = ops.packbits(bits)
    return [
        *cases,
        Case(
            f"quantize_blocks, 4 bits, {size} fp32",
            "torch, seven passes",
            partial(ops.quantize_blocks, x, 4),
            partial(torch_quantize_4bit, x),
        ),
        Case(f"packbits, {size}", "torch mul, sum", partial(ops.packbits, bits), partial(torch_packbits, bits)),
        Case(
            f"unpackbits, {size}",
            "torch shift, and",
            partial(ops.unpackbits, packed),
            partial(torch_unpackbits, packed),
        ),
        Case(
            "rms_norm, 1,000 calls with one row of 4,096",
            "the loaded module's own",
            partial(repeated, 1000, partial(ops.rms_norm, row, weight)),
            partial(repeated, 1000, partial(module.rms_norm, row, weight)),
        ),
    ]


def seconds_of(work: Work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def run_case(case: Case, rounds: int) -> Outcome:
    works: Mapping[str, Callable[[], float]] = {
        "sycl": partial(seconds_of, case.sycl),
        "other": partial(seconds_of, case.other),
    }
    with _measure.make_progress() as progress:
        task = progress.add_task(case.name, total=2 * (rounds + 1))
        seconds = _measure.interleave(works, rounds, lambda: progress.advance(task))
    return Outcome(case.name, case.beside, case.is_asked, min(seconds["sycl"]), min(seconds["other"]))


def load_seconds(cache: str) -> tuple[float, float]:
    """Seconds of load and one update, and of load alone, in a fresh process with that cache."""
    script = [sys.executable, "-m", "benchmarks.programs.load_sycl"]
    run = subprocess.run(
        script, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "ACCEL_CACHE_DIR": cache}
    )
    found = json.loads(run.stdout)
    return found["load_s"] + found["first_update_s"], found["load_s"]


def measure_loads(cold: int, warm: int) -> dict[str, list[tuple[float, float]]]:
    """Loads into new caches, and from one that has the op and its kernel."""
    loads: dict[str, list[tuple[float, float]]] = {"cold": [], "from the cache": []}
    for _ in range(cold):
        with tempfile.TemporaryDirectory(prefix="accel-ops-benchmark-", ignore_cleanup_errors=True) as directory:
            loads["cold"].append(load_seconds(directory))
            loads["from the cache"] += [load_seconds(directory) for _ in range(warm)]
    return loads


def load_rows(loads: Mapping[str, list[tuple[float, float]]]) -> list[list[str]]:
    rows = []
    for name, limit_s in (("cold", COLD_LIMIT_S), ("from the cache", WARM_LIMIT_S)):
        all_in, load = (statistics.median(taken) for taken in zip(*loads[name], strict=True))
        verdict = "ok" if all_in <= limit_s else "miss"
        rows.append([name, duration(all_in), duration(load), f"<= {duration(limit_s)}", verdict])
    return rows


def rows_of(outcomes: Iterable[Outcome]) -> list[list[str]]:
    rows = []
    for one in outcomes:
        verdict = f"{'ok' if one.ratio >= LEAST_RATIO else 'miss'} (>= {LEAST_RATIO} x)" if one.is_asked else ""
        times = (duration(one.sycl_s), duration(one.other_s))
        rows.append([one.case, one.beside, *times, f"{one.ratio:.2f} x", verdict])
    return rows


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sycl", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="an eighth of the elements, one cold load")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each contender")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/internals")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    machine = _measure.describe_machine()
    loads = measure_loads(1 if arguments.quick else 3, 3)
    numel = 2**23 if arguments.quick else 2**26
    cases = itertools.chain(optimizer_cases(numel), function_cases(numel // 4))
    outcomes = [run_case(case, arguments.rounds) for case in cases]
    tables = [("Loading", LOAD_COLUMNS, load_rows(loads)), ("Work", COLUMNS, rows_of(outcomes))]
    if arguments.json:
        best = [dataclasses.asdict(one) for one in outcomes]
        print(json.dumps({"machine": dataclasses.asdict(machine), "loads_s": loads, "best": best}, indent=2))
    else:
        for title, columns, rows in tables:
            _measure.console.print(_measure.table(title, columns, rows))
        _measure.console.print(str(machine))
    if arguments.write:
        parts = [_measure.markdown(columns, rows) for _, columns, rows in tables]
        _measure.write_results("sycl", "\n".join([f"{machine}\n", *parts]))


if __name__ == "__main__":
    main()
