"""Whether two runs differ by rounding only, and a picture of it.

Two implementations of AdamW round differently in the last bit, and training multiplies such a
difference. This was measured over 400 steps of this example, in float32: moving the
first parameters by one unit in the last place moves the losses by 5e-7 within 30 steps and by 6e-6
in all. The limits leave room above that and lie below what a wrong optimizer shows: a weight decay
that is one percent off moves the losses by 7e-6 and 2e-3, a doubled epsilon by 4e-6 and 5e-4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

EARLY_STEPS = 30


@dataclass(frozen=True)
class Limits:
    """Largest differences between losses, in nats, that count as rounding: in the first steps, and in all."""

    early: float
    late: float


# Two masters that differ by 2**-24 become bfloat16 numbers that differ by 2**-9 if the middle between
# these is between them.
LIMITS = {torch.float32: Limits(early=3e-6, late=1e-4), torch.bfloat16: Limits(early=5e-3, late=1e-1)}


@dataclass(frozen=True)
class Agreement:
    """How far two runs are apart, in nats per character, and how far they may be."""

    early: float
    late: float
    validation: float
    limits: Limits

    @property
    def ok(self) -> bool:
        """Whether rounding explains the differences."""
        return self.early <= self.limits.early and max(self.late, self.validation) <= self.limits.late

    def sentence(self) -> str:
        """The differences with their limits."""
        return (
            f"the losses differ by at most {self.early:.1e} in the first {EARLY_STEPS} steps "
            f"(limit {self.limits.early:.0e}) and {self.late:.1e} in all (limit {self.limits.late:.0e}), "
            f"the validation losses by {self.validation:.1e} (limit {self.limits.late:.0e})"
        )


def differences(losses: Sequence[float], reference: Sequence[float]) -> list[float]:
    """The absolute difference of each step's losses."""
    return [abs(one - other) for one, other in zip(losses, reference, strict=True)]


def compare(
    losses: Sequence[float],
    reference: Sequence[float],
    validation_losses: tuple[float, float],
    dtype: torch.dtype = torch.float32,
) -> Agreement:
    """How far two runs with models of ``dtype`` are apart. A loss that is not a number agrees with nothing."""
    apart = [value if value == value else float("inf") for value in differences(losses, reference)]
    validation = abs(validation_losses[0] - validation_losses[1])
    return Agreement(
        early=max(apart[:EARLY_STEPS]),
        late=max(apart),
        validation=validation if validation == validation else float("inf"),
        limits=LIMITS[dtype],
    )


def draw(path: Path, curves: Mapping[str, Sequence[float]], limits: Limits) -> None:
    """Both loss curves, and below them their difference, as a PNG.

    Args:
        curves: each step's loss of the two runs, by their names.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    (name, losses), (reference_name, reference) = curves.items()
    steps = range(1, len(losses) + 1)
    figure = Figure(figsize=(9, 6.5), dpi=130, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    figure.suptitle("A character-level transformer on Python's standard library")

    above.plot(steps, losses, color="#f2a65a", linewidth=4, label=name)
    above.plot(steps, reference, color="#1f3a5f", linewidth=1, label=reference_name)
    above.set_ylabel("training loss (nats per character)")
    above.legend(frameon=False)

    floor = 1e-8  # equal losses have no logarithm: they are drawn here
    apart = [max(value, floor) for value in differences(losses, reference)]
    early = min(EARLY_STEPS, len(apart))
    below.semilogy(steps, apart, ".", color="#3d7068", markersize=3, label="difference of the losses")
    below.hlines(limits.early, 1, early, color="#c0392b", linestyles="dashed", label="limit of rounding")
    below.hlines(limits.late, early, len(apart), color="#c0392b", linestyles="dashed")
    below.set_ylim(floor / 2, limits.late * 5)
    ticks = [10.0**exponent for exponent in range(-7, 1) if 10.0**exponent < limits.late * 5]
    below.set_yticks([floor, *ticks], ["equal", *(f"{tick:.0e}" for tick in ticks)])
    below.set_ylabel("absolute difference")
    below.set_xlabel("step")
    below.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)

    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(path)
