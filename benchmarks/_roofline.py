"""The roofline picture of CPU Adam (Williams, Waterman & Patterson, 2009): docs/images/adam_roofline.png."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import torch

from benchmarks._measure import RESULTS
from op_builder.ops import CPUAdam

if TYPE_CHECKING:
    from benchmarks.adam import Result

PICTURE = RESULTS.parents[1] / "docs" / "images" / "adam_roofline.png"
# Of one element: 3 multiply-adds and 5 multiplications, one square root, one division.
OPERATIONS = 13
IN_CACHE_NUMEL = 16 * 1024
MARKERS = {"accel-ops": "o", "torch": "s", "deepspeed": "^"}


def in_cache_rate() -> float:
    """Operations a second when nothing has to come from memory: the roof of arithmetic."""
    params = [torch.nn.Parameter(torch.zeros(IN_CACHE_NUMEL * torch.get_num_threads()))]
    params[0].grad = torch.full_like(params[0], 1e-3)
    optimizer = CPUAdam(params)
    for _ in range(50):
        optimizer.step()
    best_s = float("inf")
    for _ in range(200):
        started = time.perf_counter()
        optimizer.step()
        best_s = min(best_s, time.perf_counter() - started)
    return OPERATIONS * params[0].numel() / best_s


def draw(results: Sequence[Result]) -> None:
    """Draw all contenders of all cases under the roofs of memory and arithmetic."""
    bytes_per_s = max(r.case.bytes_per_element * r.case.total / r.limit_s for r in results)
    compute = in_cache_rate()
    figure, axes = plt.subplots(figsize=(8, 5))
    intensities = [0.3, compute / bytes_per_s, 3.0]
    axes.plot(intensities, [min(bytes_per_s * x, compute) / 1e9 for x in sorted(intensities)], color="black")
    axes.annotate(f"x.add_(1): {bytes_per_s / 1e9:.0f} GB/s", (0.32, bytes_per_s * 0.34 / 1e9), rotation=30)
    axes.annotate(f"in cache: {compute / 1e9:.0f} Gop/s", (1.6, compute * 1.04 / 1e9))
    cases = list(dict.fromkeys(result.case for result in results))
    for index, case in enumerate(cases):
        for result in results:
            if result.case is not case:
                continue
            # Cases of one type share an intensity; a little apart they can be told.
            x = OPERATIONS / case.bytes_per_element * (1 + 0.03 * index)
            y = OPERATIONS * case.total / result.best_s / 1e9
            axes.plot(x, y, MARKERS[result.contender], color=f"C{index}", label=f"{case.name}: {result.contender}")
    axes.set(xscale="log", yscale="log", xlabel="operations per byte of memory traffic", ylabel="10⁹ operations / s")
    axes.set_title("A step of CPU Adam under the roofs of this machine")
    axes.legend(fontsize=6, loc="lower right")
    figure.tight_layout()
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=120)
    plt.close(figure)
