"""FusedAdam, FusedLion and FusedLamb on a CUDA device, against the bandwidth of a copy and torch's fused AdamW.

The limit of a case is the time to move the optimizer's bytes at the bandwidth of a copy on the
device, measured in the same run. Times are those of CUDA events around a step, and around a CUDA
graph of a step, which the host does not slow down.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import partial

import torch

from benchmarks import _measure
from benchmarks._measure import Requirement, Table, at_least, requirement_table
from op_builder.ops import FusedAdam, FusedLamb, FusedLion

TORCH = "torch's AdamW"
LEAST_OF_LIMIT = 0.85
# Bytes that an update of float32 moves for each element.
OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], int]] = {
    "FusedAdam": (FusedAdam, 28),  # parameter and two moments read and written, gradient read
    "FusedLion": (FusedLion, 20),  # parameter and one moment read and written, gradient read
    "FusedLamb": (FusedLamb, 40),  # as Adam, then parameter and moments read again when the norms are known
}


@dataclasses.dataclass(frozen=True)
class Case:
    """``count`` float32 tensors of ``numel`` elements each."""

    name: str
    count: int
    numel: int


def make_cases(quick: bool) -> list[Case]:
    """The cases, smaller with ``quick``."""
    large = 2**26 if quick else 2**30
    return [Case(f"1 x {large >> 20}M", 1, large), Case("10,000 x 10,240", 10_000, 10_240)]


def in_a_graph(name: str) -> str:
    """What the tables call the contender ``name`` replayed from a CUDA graph."""
    return f"{name}, graph"


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds of ``work`` on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def in_graph(step: Callable[[], object]) -> Callable[[], object]:
    """A function that replays ``step`` from a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def run_case(case: Case, rounds: int) -> tuple[dict[str, float], float]:
    """The best seconds of each contender, and the bandwidth of a copy in bytes per second."""
    params = [torch.nn.Parameter(torch.zeros(case.numel, device="cuda")) for _ in range(case.count)]
    for param in params:
        param.grad = torch.full_like(param, 1e-3)
    source = torch.zeros(2**28, device="cuda")
    target = torch.empty_like(source)
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        TORCH: partial(torch.optim.AdamW, params, weight_decay=0.01, fused=True, capturable=True),
        **{name: partial(kind, params, weight_decay=0.01) for name, (kind, _) in OPTIMIZERS.items()},
    }
    optimizers = {name: make() for name, make in makers.items()}
    works: dict[str, Callable[[], object]] = {"copy": lambda: target.copy_(source)}
    for name, optimizer in optimizers.items():
        for _ in range(3):
            optimizer.step()
        works[name] = optimizer.step
        works[in_a_graph(name)] = in_graph(optimizer.step)
    contenders = {name: partial(seconds_of, work) for name, work in works.items()}
    best = {name: min(taken) for name, taken in _measure.interleave(contenders, rounds, case.name).items()}
    return best, 2 * source.numel() * source.itemsize / best.pop("copy")


def limit_s(case: Case, optimizer: str, bandwidth: float) -> float:
    """Seconds to move the bytes of an update at ``bandwidth``."""
    bytes_each = OPTIMIZERS["FusedAdam" if optimizer == TORCH else optimizer][1]
    return bytes_each * case.count * case.numel / bandwidth


def result_table(results: dict[Case, tuple[dict[str, float], float]]) -> Table:
    """One row for each contender of each case."""
    rows = []
    for case, (best, bandwidth) in results.items():
        for name in (*OPTIMIZERS, TORCH):
            limit = limit_s(case, name, bandwidth)
            for contender in (name, in_a_graph(name)):
                seconds = best[contender]
                rows.append(
                    [case.name, contender, f"{seconds * 1e3:.3f} ms", f"{limit * 1e3:.3f} ms", f"{limit / seconds:.2f}"]
                )
    return Table("An update on the device", ("case", "contender", "best", "limit", "limit / best"), rows)


def requirements(results: dict[Case, tuple[dict[str, float], float]]) -> list[Requirement]:
    """The limits of our figures: the bandwidth for the large tensor, torch's time for the many."""
    found = []
    for case, (best, bandwidth) in results.items():
        for name in OPTIMIZERS:
            for ours, theirs in ((name, TORCH), (in_a_graph(name), in_a_graph(TORCH))):
                if case.count == 1:
                    ratio = limit_s(case, name, bandwidth) / best[ours]
                    found.append(at_least(f"{case.name}, {ours}: limit / time", ratio, LEAST_OF_LIMIT))
                else:
                    found.append(
                        at_least(f"{case.name}, {ours}: time of {theirs}", best[theirs] / best[ours], 1.0, "x")
                    )
    return found


def main() -> None:
    arguments = _measure.make_parser("fused_adam", __doc__, "64M elements instead of 1G").parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.fused_adam needs a CUDA device and a CUDA build of torch.")
    machine = _measure.describe_machine()
    results = {case: run_case(case, 20) for case in make_cases(arguments.quick)}
    tables = [result_table(results), requirement_table(requirements(results))]
    samples = {
        "device": torch.cuda.get_device_name(),
        "best_s": {case.name: best for case, (best, _) in results.items()},
        "copy_bytes_per_s": {case.name: bandwidth for case, (_, bandwidth) in results.items()},
    }
    _measure.report("fused_adam", arguments, machine, tables, samples)


if __name__ == "__main__":
    main()
