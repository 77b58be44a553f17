"""What a call costs that has almost nothing to compute: a step of one small tensor, an all-reduce of one rank.

One thread. The contenders alternate; a figure is the median over the turns of a turn's median call.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from benchmarks import _measure
from benchmarks._figures import Figure, figure_table
from benchmarks._measure import interleave, seconds_of
from op_builder.cpu import ShareMemCommBuilder
from op_builder.ops import CPUAdam

NUMEL = 64
CALLS = 1000
# Share of t.add_(0) that a call of the all-reduce may take.
CALL_SHARE = 0.6


def median_of(call: Callable[[], object], before: Callable[[], object] = lambda: None) -> Callable[[], float]:
    """A function that returns the median seconds of ``call`` over many calls, each after ``before``."""

    def run() -> float:
        seconds = []
        for _ in range(CALLS):
            before()
            seconds.append(seconds_of(call))
        return statistics.median(seconds)

    return run


def step_of(make: Callable[..., torch.optim.Optimizer], *, new_grads: bool, **settings: object) -> Callable[[], float]:
    """The seconds of a step of one tensor."""
    param = torch.nn.Parameter(torch.randn(NUMEL))
    param.grad = torch.randn(NUMEL)

    def make_grad() -> None:
        param.grad = torch.randn(NUMEL)

    optimizer = make([param], **settings)
    return median_of(optimizer.step, make_grad if new_grads else lambda: None)


def main() -> None:
    arguments = _measure.make_parser("calls", __doc__, "five turns").parse_args()
    torch.set_num_threads(1)
    machine = _measure.describe_machine()
    turns = 5 if arguments.quick else 31
    figures = []
    for name, new_grads in (("the same gradient", False), ("new gradients", True)):
        steps = {
            "accel-ops": step_of(CPUAdam, new_grads=new_grads),
            "torch fused": step_of(torch.optim.AdamW, new_grads=new_grads, fused=True),
        }
        samples = interleave(steps, turns, f"step, {name}")
        ours = samples.pop("accel-ops")
        limit_s = statistics.median(samples["torch fused"])
        figures.append(Figure(f"step of CPU Adam, one tensor of {NUMEL}, {name}", ours, limit_s, samples))
    comm = ShareMemCommBuilder().load()
    comm.initialize(1, 0)
    tensor = torch.ones(1024)
    calls = {
        "accel-ops": median_of(lambda: comm.inference_all_reduce_(tensor)),
        "t.add_(0)": median_of(lambda: tensor.add_(0)),
    }
    samples = interleave(calls, turns, "all-reduce")
    ours = samples.pop("accel-ops")
    limit_s = CALL_SHARE * statistics.median(samples["t.add_(0)"])
    figures.append(Figure("all-reduce of 4 KiB on one rank", ours, limit_s, samples))
    _measure.report("calls", arguments, machine, [figure_table("Calls", figures)], figures)


if __name__ == "__main__":
    main()
