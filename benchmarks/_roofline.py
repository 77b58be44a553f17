"""The roofline picture of CPU Adam (Williams, Waterman & Patterson, 2009): docs/images/adam_roofline.png."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import torch

from benchmarks._measure import DOCS
from op_builder.ops import CPUAdam

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from benchmarks.adam import Result

PICTURE = DOCS / "images" / "adam_roofline.png"
# Of one element, as csrc/kernels/formulas/adam.h has them: 4 multiply-adds of two operations each
# (both moments, the denominator, the parameter), 5 multiplications (grad_scale * g, (1 - beta1) * g,
# (1 - beta2) * g and that times g, decay * param), one square root, one division.
OPERATIONS = 4 * 2 + 5 + 1 + 1
IN_CACHE_NUMEL = 32 * 1024  # for each thread: 512 KiB with moments and gradient
MARKERS = {"accel-ops": "o", "torch": "s", "deepspeed": "^"}


def in_cache_rate() -> float:
    """Operations a second when nothing has to come from memory: the roof of arithmetic.

    What a step costs beside its elements is taken off: so few of them take less than that.
    """
    numel = IN_CACHE_NUMEL * torch.get_num_threads()
    return OPERATIONS * numel / (best_step_s(numel) - best_step_s(1))


def best_step_s(numel: int) -> float:
    """The best of many steps of one float32 parameter."""
    param = torch.nn.Parameter(torch.zeros(numel))
    param.grad = torch.full_like(param, 1e-3)
    optimizer = CPUAdam([param])
    best_s = float("inf")
    for _ in range(2000):
        started = time.perf_counter()
        optimizer.step()
        best_s = min(best_s, time.perf_counter() - started)
    return best_s


def roofs(bytes_per_s: float, compute: float) -> tuple[list[float], list[float]]:
    """Intensities in order, and the operations a second that either roof allows there.

    Args:
        bytes_per_s: the roof of memory.
        compute: the roof of arithmetic, in operations a second.
    """
    intensities = sorted([0.3, compute / bytes_per_s, 3.0])
    return intensities, [min(bytes_per_s * intensity, compute) for intensity in intensities]


def draw(results: Sequence[Result]) -> None:
    """Draw all contenders of all cases under the roofs of memory and arithmetic."""
    bytes_per_s = max(r.case.bytes_per_element * r.case.total / r.limit_s for r in results)
    compute = in_cache_rate()
    figure, axes = plt.subplots(figsize=(9, 6.5), layout="constrained")
    intensities, rates = roofs(bytes_per_s, compute)
    roof = f"memory {bytes_per_s / 1e9:.0f} GB/s (x.mul_(1)), arithmetic {compute / 1e9:.0f} Gop/s (float32 in cache)"
    axes.plot(intensities, [rate / 1e9 for rate in rates], color="black", label=roof)
    cases = list(dict.fromkeys(result.case for result in results))
    for index, case in enumerate(cases):
        alike = [other.bytes_per_element for other in cases[:index]].count(case.bytes_per_element)
        for place, result in enumerate(result for result in results if result.case == case):
            # Cases of one type share an intensity, contenders of one case nearly a speed: a little apart,
            # and hollow, all can be seen.
            x = OPERATIONS / case.bytes_per_element * 1.07**alike * 1.02**place
            y = OPERATIONS * case.total / result.best_s / 1e9
            axes.plot(x, y, MARKERS[result.contender], color=f"C{index}", markersize=8, fillstyle="none")
    axes.set(xscale="log", yscale="log", xlabel="operations per byte of memory traffic", ylabel="10⁹ operations / s")
    axes.set_title("A step of CPU Adam under the roofs of this machine")
    _explain(axes, [case.name for case in cases])
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=120)
    plt.close(figure)


def _explain(axes: Axes, cases: Sequence[str]) -> None:
    """A legend of the roofs, of a colour for each case and a marker for each contender, below the axes."""
    lines, _ = axes.get_legend_handles_labels()
    for index, case in enumerate(cases):
        lines += axes.plot([], [], "-", linewidth=6, color=f"C{index}", label=case)
    for contender, marker in MARKERS.items():
        lines += axes.plot([], [], marker, color="black", fillstyle="none", markersize=8, label=contender)
    axes.legend(handles=lines, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)
