"""Which settings to measure, and which are best."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from op_builder.errors import AccelError
from op_builder.tune_aio.measure import Measurement, Settings

Measure = Callable[[Settings], Measurement]
OnStep = Callable[[Settings, Measurement | None], object]
"""Called after each measurement, with None where it failed."""

_FINALISTS = 6


@dataclass(frozen=True)
class Grid:
    """What is tried.

    Attributes:
        rounds: how often block sizes and queue depths are gone through, one round after the other, so that a slow
            moment of the disk meets not all measurements of one setting.
        repeats: how often the best are measured again.
    """

    engines: tuple[str, ...]
    block_sizes: tuple[int, ...] = (128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 8 << 20)
    queue_depths: tuple[int, ...] = (8, 32, 128)
    threads: tuple[int, ...] = (1, 2, 4)
    rounds: int = 3
    repeats: int = 5

    def steps(self) -> int:
        """Most measurements that there will be."""
        first = len(self.block_sizes) * len(self.queue_depths) * self.rounds
        around = len(self.threads) - 1 + len(_SUBMISSIONS)
        return len(self.engines) * (first + around) + _FINALISTS * self.repeats


@dataclass(frozen=True)
class Findings:
    """All that was measured.

    Attributes:
        measured: everything, in its order, repetitions included.
        failed: settings that the system refused, and why.
        finals: the medians of the best, the best for both directions first.
    """

    measured: list[Measurement] = field(default_factory=list)
    failed: list[tuple[Settings, str]] = field(default_factory=list)
    finals: list[Measurement] = field(default_factory=list)

    @property
    def best(self) -> Measurement:
        """The best for reading and writing as much."""
        return self.finals[0]

    @property
    def best_read(self) -> Measurement:
        """Of the best, the one that reads fastest."""
        return max(self.finals, key=lambda final: final.read_bytes_per_s)

    @property
    def best_write(self) -> Measurement:
        """Of the best, the one that writes fastest."""
        return max(self.finals, key=lambda final: final.written_bytes_per_s)

    def medians(self) -> dict[Settings, Measurement]:
        """For all settings that were measured, the medians of both rates."""
        by_settings: dict[Settings, list[Measurement]] = {}
        for found in self.measured:
            by_settings.setdefault(found.settings, []).append(found)
        return {settings: _median(found) for settings, found in by_settings.items()}

    def best_of(self, engine: str) -> Settings | None:
        """The best settings of an engine so far, for both directions; None where all failed."""
        of_engine = [found for found in self.medians().values() if found.settings.engine == engine]
        return max(of_engine, key=_both).settings if of_engine else None

    def final_of(self, engine: str) -> Measurement | None:
        """The best of an engine's finals."""
        return next((final for final in self.finals if final.settings.engine == engine), None)

    @property
    def is_cached(self) -> bool:
        """Whether bytes went through the page cache, so that its speed is in the figures."""
        return any(found.direct_share < 1 for found in self.measured)


# (single_submit, overlap_events), but for the one that all else is measured with
_SUBMISSIONS = ((False, False), (True, True), (True, False))


def search(grid: Grid, measure: Measure, on_step: OnStep = lambda *_: None) -> Findings:
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
            except AccelError as error:  # an engine may refuse a queue of that size; others work
                findings.failed.append((settings, error.message))
            on_step(settings, found)

    for _ in range(grid.rounds):
        for engine in grid.engines:
            try_all(Settings(engine, *sizes) for sizes in itertools.product(grid.block_sizes, grid.queue_depths))
    for engine in grid.engines:
        for change in (_with_threads, _with_submissions):
            best = findings.best_of(engine)
            if best is not None:
                try_all(change(best, grid))
    if not findings.measured:
        settings, reason = findings.failed[0]
        raise AccelError(
            f"Nothing could be measured. {settings}: {reason}", "See python -m op_builder.report --op async_io."
        )
    finalists = _finalists(findings, grid.engines)
    for _ in range(grid.repeats):
        try_all(finalists)
    medians = findings.medians()
    findings.finals.extend(sorted((medians[settings] for settings in finalists), key=_both, reverse=True))
    return findings


def _with_threads(settings: Settings, grid: Grid) -> list[Settings]:
    return [
        replace(settings, intra_op_parallelism=threads)
        for threads in grid.threads
        if threads != settings.intra_op_parallelism
    ]


def _with_submissions(settings: Settings, _grid: Grid) -> list[Settings]:
    return [
        replace(settings, single_submit=single_submit, overlap_events=overlap_events)
        for single_submit, overlap_events in _SUBMISSIONS
    ]


def _finalists(findings: Findings, engines: Sequence[str]) -> list[Settings]:
    """The best of each engine, the best for either direction, and the next best for both."""
    medians = findings.medians().values()
    of_engines = (findings.best_of(engine) for engine in engines)
    chosen = [
        *(settings for settings in of_engines if settings is not None),
        max(medians, key=lambda found: found.read_bytes_per_s).settings,
        max(medians, key=lambda found: found.written_bytes_per_s).settings,
        *(found.settings for found in sorted(medians, key=_both, reverse=True)),
    ]
    return list(dict.fromkeys(chosen))[:_FINALISTS]


def _both(found: Measurement) -> float:
    return found.both_bytes_per_s


def _median(found: Sequence[Measurement]) -> Measurement:
    return Measurement(
        found[0].settings,
        median(one.read_bytes_per_s for one in found),
        median(one.written_bytes_per_s for one in found),
        min(one.direct_share for one in found),
    )
