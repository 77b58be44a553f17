"""FusedAdam on a CUDA device, against the bandwidth of a copy and torch's fused AdamW.

The limit of a case is the time to move its bytes at the bandwidth of a copy on the device,
measured in the same run. Times are those of CUDA events around a step, and around a CUDA
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
from op_builder.ops import FusedAdam

OURS, GRAPH, TORCH, TORCH_GRAPH = "accel-ops", "accel-ops, graph", "torch", "torch, graph"
LEAST_OF_LIMIT = 0.85
BYTES_PER_ELEMENT = 28  # parameter and two moments read and written, gradient read; float32


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


def run_case(case: Case, rounds: int) -> dict[str, float]:
    """The best seconds of each contender, and the ``limit``."""
    params = [torch.nn.Parameter(torch.zeros(case.numel, device="cuda")) for _ in range(case.count)]
    for param in params:
        param.grad = torch.full_like(param, 1e-3)
    ours = FusedAdam(params, weight_decay=0.01)
    theirs = torch.optim.AdamW(params, weight_decay=0.01, fused=True, capturable=True)
    for optimizer in (ours, theirs):
        for _ in range(3):
            optimizer.step()
    source = torch.zeros(2**28, device="cuda")
    target = torch.empty_like(source)
    works: dict[str, Callable[[], object]] = {
        "copy": lambda: target.copy_(source),
        OURS: ours.step,
        TORCH: theirs.step,
        GRAPH: in_graph(ours.step),
        TORCH_GRAPH: in_graph(theirs.step),
    }
    contenders = {name: partial(seconds_of, work) for name, work in works.items()}
    seconds = _measure.interleave(contenders, rounds, case.name)
    best = {name: min(taken) for name, taken in seconds.items()}
    bandwidth = 2 * source.numel() * source.itemsize / best.pop("copy")
    return {"limit": BYTES_PER_ELEMENT * case.count * case.numel / bandwidth, **best}


def result_table(best: dict[Case, dict[str, float]]) -> Table:
    """One row for each contender of each case."""
    rows = [
        [
            case.name,
            name,
            f"{seconds[name] * 1e3:.3f} ms",
            f"{seconds['limit'] * 1e3:.3f} ms",
            f"{seconds['limit'] / seconds[name]:.2f}",
        ]
        for case, seconds in best.items()
        for name in (OURS, TORCH, GRAPH, TORCH_GRAPH)
    ]
    return Table("A step of FusedAdam", ("case", "contender", "best", "limit", "limit / best"), rows)


def requirements(best: dict[Case, dict[str, float]]) -> list[Requirement]:
    """What our figures must keep."""
    found = []
    for case, seconds in best.items():
        for ours, theirs in ((OURS, TORCH), (GRAPH, TORCH_GRAPH)):
            found.append(
                at_least(f"{case.name}, {ours}: limit / time", seconds["limit"] / seconds[ours], LEAST_OF_LIMIT)
            )
            found.append(at_least(f"{case.name}, {ours}: {theirs}'s time", seconds[theirs] / seconds[ours], 1.0, "x"))
    return found


def main() -> None:
    arguments = _measure.make_parser("fused_adam", __doc__, "64M elements instead of 1G").parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.fused_adam needs a CUDA device and a CUDA build of torch.")
    machine = _measure.describe_machine()
    best = {case: run_case(case, 20) for case in make_cases(arguments.quick)}
    tables = [result_table(best), requirement_table(requirements(best))]
    samples = {
        "device": torch.cuda.get_device_name(),
        "best_s": {case.name: seconds for case, seconds in best.items()},
    }
    _measure.report("fused_adam", arguments, machine, tables, samples)


if __name__ == "__main__":
    main()
