"""Figures: what was measured, beside what is required and what peers need."""

from __future__ import annotations

import dataclasses
import statistics


@dataclasses.dataclass(frozen=True)
class Counts:
    """Processes per figure."""

    cold: int
    warm: int
    warm_peer: int
    start: int


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured quantity of ours, in seconds, beside what is required of it and what peers need.

    Attributes:
        seconds: of each process.
        limit_s: what the median may be at most; None where nothing is required.
        peers: by name, a peer's seconds for the same.
        least_ratio: how many times as long each peer's median must be; None where nothing is required.
    """

    name: str
    seconds: list[float]
    limit_s: float | None = None
    peers: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    least_ratio: float | None = None

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def ratios(self) -> dict[str, float]:
        return {name: self.ratio(name) for name in self.peers}

    def ratio(self, name: str) -> float:
        """How many times as long the peer takes."""
        return statistics.median(self.peers[name]) / self.median_s

    @property
    def verdict(self) -> str:
        """``ok`` or ``miss``; empty where nothing is required."""
        met = []
        if self.limit_s is not None:
            met.append(self.median_s <= self.limit_s)
        if self.least_ratio is not None:
            met += [self.ratio(name) >= self.least_ratio for name in self.peers]
        return "" if not met else "ok" if all(met) else "miss"


def columns_of(peers: list[str]) -> list[str]:
    """The table's header."""
    return ["figure", "verdict", "accel-ops", "limit", *peers, *(f"{name} / accel-ops" for name in peers)]


def rows_of(figures: list[Figure], peers: list[str]) -> list[list[str]]:
    """The table's rows, one per figure."""
    rows = []
    for figure in figures:
        required = "" if figure.least_ratio is None else f" (>= {figure.least_ratio:g} x)"
        rows.append(
            [
                figure.name,
                figure.verdict,
                duration(figure.median_s),
                "" if figure.limit_s is None else f"<= {duration(figure.limit_s)}",
                *(duration(statistics.median(figure.peers[name])) if name in figure.peers else "" for name in peers),
                *(f"{figure.ratio(name):,.3g} x{required}" if name in figure.peers else "" for name in peers),
            ]
        )
    return rows


def duration(seconds: float) -> str:
    """``5.23 s``, ``7.42 ms`` or ``9.1 µs``; ``< 1 ms`` for a difference that noise made negative."""
    if seconds < 0:
        return "< 1 ms"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} µs"


@dataclasses.dataclass(frozen=True)
class Section:
    """One table: figures that have the same peers."""

    title: str
    peers: list[str]
    figures: list[Figure]

    @property
    def columns(self) -> list[str]:
        return columns_of(self.peers)

    @property
    def rows(self) -> list[list[str]]:
        return rows_of(self.figures, self.peers)
