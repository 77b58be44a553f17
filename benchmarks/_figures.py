"""Times of ours with their limits and the times of peers, as one table."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from benchmarks._measure import Table, duration, verdict


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured time of ours.

    Attributes:
        seconds: one sample for each process.
        limit_s: the largest median allowed; None for no requirement.
        peers: by name, a peer's samples of the same.
        least_ratio: how many times as long each peer's median must be at least; None for no requirement.
    """

    name: str
    seconds: list[float]
    limit_s: float | None = None
    peers: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    least_ratio: float | None = None

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    def ratio(self, peer: str) -> float:
        """How many times as long the peer takes."""
        return statistics.median(self.peers[peer]) / self.median_s

    @property
    def verdict(self) -> str:
        """``ok`` or ``miss``; empty without a requirement."""
        met = []
        if self.limit_s is not None:
            met.append(self.median_s <= self.limit_s)
        if self.least_ratio is not None:
            met += [self.ratio(peer) >= self.least_ratio for peer in self.peers]
        return verdict(all(met)) if met else ""


def figure_table(title: str, figures: Sequence[Figure]) -> Table:
    """One row for each figure, two columns for each peer: its time and its ratio to ours."""
    peers = list(dict.fromkeys(peer for figure in figures for peer in figure.peers))
    rows = []
    for figure in figures:
        required = "" if figure.least_ratio is None else f" (>= {figure.least_ratio:g} x)"
        times = {peer: duration(statistics.median(samples)) for peer, samples in figure.peers.items()}
        ratios = {peer: f"{figure.ratio(peer):,.3g} x{required}" for peer in figure.peers}
        rows.append(
            [
                figure.name,
                figure.verdict,
                duration(figure.median_s),
                "" if figure.limit_s is None else f"<= {duration(figure.limit_s)}",
                *(times.get(peer, "") for peer in peers),
                *(ratios.get(peer, "") for peer in peers),
            ]
        )
    columns = ["figure", "verdict", "accel-ops", "limit", *peers, *(f"{peer} / accel-ops" for peer in peers)]
    return Table(title, columns, rows)
