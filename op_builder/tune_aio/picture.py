"""The findings as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from op_builder.tune_aio.measure import Measurement
from op_builder.tune_aio.search import Findings

_COLOURS = ("#c9d6df", "#f2a65a", "#3d7068", "#1f3a5f")


def draw(path: Path, findings: Findings, title: str) -> None:
    """Median rates by block size, a line for each queue depth, an axis for each engine and direction, as a PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    measured = list(findings.medians().values())
    engines = list(dict.fromkeys(found.settings.engine for found in measured))
    figure = Figure(figsize=(3.6 * len(engines) + 1, 6), dpi=130, layout="constrained")
    axes = figure.subplots(2, len(engines), sharex=True, sharey="row", squeeze=False)
    figure.suptitle(title)
    for row, direction in enumerate(("reading", "writing")):
        for column, engine in enumerate(engines):
            _lines(axes[row][column], [m for m in measured if m.settings.engine == engine], direction)
            best = findings.best
            if best.settings.engine == engine:
                rate = _rate(best, direction) / 1e9
                axes[row][column].plot(
                    [best.settings.block_size], [rate], "*", color="#c0392b", markersize=14, clip_on=False
                )
        axes[row][0].set_ylabel(f"{direction} (GB/s)")
        axes[row][0].set_ylim(bottom=0)
    for column, engine in enumerate(engines):
        axes[0][column].set_title(engine)
        axes[1][column].set_xlabel("block size")
    axes[0][0].legend(frameon=False, title="commands in flight", fontsize=8)
    figure.savefig(path)


def _lines(axis: Any, measured: list[Measurement], direction: str) -> None:
    first = [m for m in measured if m.settings.intra_op_parallelism == 1 and not m.settings.single_submit]
    first = [m for m in first if m.settings.overlap_events]
    for colour, depth in zip(_COLOURS, sorted({m.settings.queue_depth for m in first}), strict=False):
        of_depth = [m for m in first if m.settings.queue_depth == depth]
        points = sorted((m.settings.block_size, _rate(m, direction) / 1e9) for m in of_depth)
        axis.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4, label=str(depth))
    axis.set_xscale("log", base=2)
    sizes = sorted({m.settings.block_size for m in first})
    axis.set_xticks(sizes, [size_text(size) for size in sizes], fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)


def size_text(size_bytes: int) -> str:
    """A size as ``128K`` or ``2M``, where it is one."""
    for unit, shift in (("G", 30), ("M", 20), ("K", 10)):
        if size_bytes >= 1 << shift and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{unit}"
    return str(size_bytes)


def _rate(measurement: Measurement, direction: str) -> float:
    return measurement.read_bytes_per_s if direction == "reading" else measurement.written_bytes_per_s
