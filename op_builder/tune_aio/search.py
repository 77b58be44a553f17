"""Which settings to measure, and which are best."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

from op_builder.errors import AccelError
from op_builder.tune_aio.measure import Measurement, Settings

OnStep = Callable[[Settings, Measurement | None], object]
"""Called after each measurement, with None where it failed."""

_FINALISTS = 6
# (single_submit, overlap_events); all other measurements use (False, True)
_SUBMISSIONS = ((False, False), (True, True), (True, False))


@dataclass(frozen=True)
class Grid:
    """What is tried.

    Attributes:
        rounds: how often all block sizes and queue depths are measured, one round after the other, so that a slow
            moment of the disk does not hit all measurements of one setting.
        repeats: how often the best are measured again.
    """

    engines: tuple[str, ...]
    block_sizes: tuple[int, ...] = (128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 8 << 20)
    queue_depths: tuple[int, ...] = (8, 32, 128)
    threads: tuple[int, ...] = (1, 2, 4)
    rounds: int = 3
    repeats: int = 5

    def steps(self) -> int:
        """The maximum number of measurements."""
        first = len(self.block_sizes) * len(self.queue_depths) * self.rounds
        around = len(self.threads) - 1 + len(_SUBMISSIONS)
        return len(self.engines) * (first + around) + _FINALISTS * self.repeats


@dataclass
class Findings:
    """All measurements.

    Attributes:
        measured: all of them, in their order, with repetitions.
        failed: settings that the system refused, and why.
        finals: the medians of the best, the best for both directions first.
    """

    measured: list[Measurement] = field(default_factory=list)
    failed: list[tuple[Settings, str]] = field(default_factory=list)
    finals: list[Measurement] = field(default_factory=list)

    @property
    def best(self) -> Measurement:
        """The best for reading and writing the same amount."""
        return self.finals[0]

    @property
    def best_read(self) -> Measurement:
        """Of the finals, the one that reads fastest."""
        return max(self.finals, key=lambda final: final.read_bytes_per_s)

    @property
    def best_write(self) -> Measurement:
        """Of the finals, the one that writes fastest."""
        return max(self.finals, key=lambda final: final.written_bytes_per_s)

    @property
    def is_cached(self) -> bool:
        """Whether bytes went through the page cache, whose speed is then in the figures."""
        return any(found.direct_share < 1 for found in self.measured)

    def medians(self) -> list[Measurement]:
        """For each of the settings the medians of both rates, the best for both directions first."""
        by_settings: dict[Settings, list[Measurement]] = {}
        for found in self.measured:
            by_settings.setdefault(found.settings, []).append(found)
        medians = [
            Measurement(
                settings,
                median(one.read_bytes_per_s for one in found),
                median(one.written_bytes_per_s for one in found),
                min(one.direct_share for one in found),
            )
            for settings, found in by_settings.items()
        ]
        return sorted(medians, key=lambda found: found.both_bytes_per_s, reverse=True)


def of_engine(found: Iterable[Measurement], engine: str) -> Measurement | None:
    """The first one of an engine."""
    return next((one for one in found if one.settings.engine == engine), None)


def search(grid: Grid, measure: Callable[[Settings], Measurement], on_step: OnStep = lambda *_: None) -> Findings:
    """Measure block sizes and queue depths in all combinations, then the rest around each engine's best.

    Raises:
        AccelError: no settings work at all.
    """
    findings = Findings()

    def try_all(candidates: Iterable[Settings]) -> None:
        for settings in candidates:
            found = None
            try:
                found = measure(settings)
                findings.measured.append(found)
            except AccelError as error:  # an engine may refuse a queue of that size
                findings.failed.append((settings, error.message))
            on_step(settings, found)

    for _ in range(grid.rounds):
        for engine in grid.engines:
            try_all(Settings(engine, *sizes) for sizes in itertools.product(grid.block_sizes, grid.queue_depths))
    for engine in grid.engines:
        if (best := of_engine(findings.medians(), engine)) is not None:
            try_all(best.settings._replace(intra_op_parallelism=threads) for threads in grid.threads if threads != 1)
        if (best := of_engine(findings.medians(), engine)) is not None:
            try_all(
                best.settings._replace(single_submit=single_submit, overlap_events=overlap_events)
                for single_submit, overlap_events in _SUBMISSIONS
            )
    if not findings.measured:
        settings, reason = findings.failed[0]
        raise AccelError(
            f"Nothing could be measured. {settings}: {reason}", "See python -m op_builder.report --op async_io."
        )
    finalists = _finalists(findings.medians(), grid.engines)
    for _ in range(grid.repeats):
        try_all(finalists)
    findings.finals = [found for found in findings.medians() if found.settings in finalists]
    return findings


def _finalists(medians: list[Measurement], engines: Iterable[str]) -> list[Settings]:
    """The best of each engine, the best for either direction, and the next best for both."""
    chosen = [
        *filter(None, (of_engine(medians, engine) for engine in engines)),
        max(medians, key=lambda found: found.read_bytes_per_s),
        max(medians, key=lambda found: found.written_bytes_per_s),
        *medians,
    ]
    return list(dict.fromkeys(found.settings for found in chosen))[:_FINALISTS]
