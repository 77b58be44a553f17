"""Whether two runs differ by rounding only.

Two implementations of AdamW round differently in the last bit, and training multiplies such a
difference. This was measured over 400 steps of this example, in float32: moving the
first parameters by one unit in the last place moves the losses by 5e-7 within 30 steps and by 6e-6
in all. The limits leave room above that and lie below what a wrong optimizer shows: a weight decay
that is one percent off moves the losses by 7e-6 and 2e-3, a doubled epsilon by 4e-6 and 5e-4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def compare(
    losses: Sequence[float],
    reference: Sequence[float],
    validation_losses: tuple[float, float],
    dtype: torch.dtype = torch.float32,
) -> Agreement:
    """How far two runs with models of ``dtype`` are apart. A loss that is not a number agrees with nothing."""
    pairs = [*zip(losses, reference, strict=True), validation_losses]
    *apart, validation = (apart if apart == apart else float("inf") for apart in (abs(a - b) for a, b in pairs))
    return Agreement(max(apart[:EARLY_STEPS]), max(apart), validation, LIMITS[dtype])
