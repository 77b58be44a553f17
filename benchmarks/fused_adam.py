"""FusedAdam on a CUDA device against the memory's copy bandwidth and torch's fused AdamW, in one run.

The limit of a case is the bytes it must move over the bandwidth of a device-to-device copy measured in
the same run. Times are of CUDA events around whole steps, and once more of steps captured into a graph,
which the host does not slow down.

    python -m benchmarks.fused_adam [--quick] [--rounds N] [--json] [--write]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from functools import partial

import torch

from benchmarks import _measure
from op_builder.ops import FusedAdam

OURS, GRAPH, TORCH, TORCH_GRAPH = "accel-ops", "accel-ops, graph", "torch", "torch, graph"
COLUMNS = ("case", "contender", "best ms", "limit ms", "of the copy bandwidth", "accel-ops is faster by", "asked")
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
    """The device's time for ``work``."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """``step`` as a CUDA graph."""
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
    """The best seconds of each contender, and of copying as many bytes."""
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
        GRAPH: captured(ours.step),
        TORCH_GRAPH: captured(theirs.step),
    }
    with _measure.make_progress() as progress:
        task = progress.add_task(case.name, total=(rounds + 1) * len(works))
        seconds = _measure.interleave(
            {name: partial(seconds_of, work) for name, work in works.items()}, rounds, lambda: progress.advance(task)
        )
    best = {name: min(taken) for name, taken in seconds.items()}
    bandwidth = 2 * source.numel() * source.itemsize / best.pop("copy")
    return {"limit": BYTES_PER_ELEMENT * case.count * case.numel / bandwidth, **best}


def rows_of(case: Case, best: dict[str, float]) -> list[list[str]]:
    """The table's rows of a case."""
    rows = []
    for name in (OURS, TORCH, GRAPH, TORCH_GRAPH):
        ours = best[GRAPH if name in (GRAPH, TORCH_GRAPH) else OURS]
        share = best["limit"] / best[name]
        asked, faster = "", ""
        if name in (TORCH, TORCH_GRAPH):
            faster = f"{best[name] / ours:.2f} x"
            asked = f"{'ok' if best[name] >= ours else 'miss'} (>= 1.0 x)"
        else:
            asked = f"{'ok' if share >= LEAST_OF_LIMIT else 'miss'} (>= {LEAST_OF_LIMIT})"
        rows.append(
            [case.name, name, f"{best[name] * 1e3:.3f}", f"{best['limit'] * 1e3:.3f}", f"{share:.2f}", faster, asked]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fused_adam", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="64M elements in place of 1G")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each contender")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="write the table into docs/internals")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.fused_adam needs a CUDA device and a CUDA build of torch; there is none here.")
    machine = f"{torch.cuda.get_device_name()}; {_measure.describe_machine()}"
    figures = {case: run_case(case, arguments.rounds) for case in make_cases(arguments.quick)}
    rows = [row for case, best in figures.items() for row in rows_of(case, best)]
    if arguments.json:
        print(json.dumps({"machine": machine, "best_s": {case.name: best for case, best in figures.items()}}, indent=2))
    else:
        _measure.console.print(_measure.table("FusedAdam, one step", COLUMNS, rows))
        _measure.console.print(machine)
    if arguments.write:
        _measure.write_results("fused_adam", f"{machine}\n\n{_measure.markdown(COLUMNS, rows)}")


if __name__ == "__main__":
    main()
