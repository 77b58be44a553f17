"""The findings as a picture."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure  # optional: who imports this module handles its absence

from op_builder.tune_aio.search import Findings

_COLOURS = ("#c9d6df", "#f2a65a", "#3d7068", "#1f3a5f")


def draw(path: Path, findings: Findings, title: str) -> None:
    """Draw median rates by block size as a PNG: a line per queue depth, axes per engine and direction."""
    # What the search measured in all combinations.
    measured = [m for m in findings.medians() if m.settings[3:] == (False, True, 1)]
    engines = sorted({m.settings.engine for m in measured})
    sizes = sorted({m.settings.block_size for m in measured})
    figure = Figure(figsize=(3.6 * len(engines) + 1, 6), dpi=130, layout="constrained")
    axes = figure.subplots(2, len(engines), sharex=True, sharey="row", squeeze=False)
    figure.suptitle(title)
    for row, (direction, rate) in enumerate((("reading", "read_bytes_per_s"), ("writing", "written_bytes_per_s"))):
        for column, engine in enumerate(engines):
            axis = axes[row][column]
            for colour, depth in zip(_COLOURS, sorted({m.settings.queue_depth for m in measured}), strict=False):
                line = [m for m in measured if (m.settings.engine, m.settings.queue_depth) == (engine, depth)]
                points = sorted((m.settings.block_size, getattr(m, rate) / 1e9) for m in line)
                sizes_and_rates = zip(*points, strict=True) if points else ([], [])
                axis.plot(*sizes_and_rates, "o-", color=colour, markersize=4, label=str(depth))
            if engine == findings.best.settings.engine:
                best = [findings.best.settings.block_size], [getattr(findings.best, rate) / 1e9]
                axis.plot(*best, "*", color="#c0392b", markersize=14, clip_on=False)
            axis.set_xscale("log", base=2)
            axis.set_xticks(
                sizes, [f"{size >> 10}K" if size < 1 << 20 else f"{size >> 20}M" for size in sizes], fontsize=8
            )
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(alpha=0.25)
            axes[0][column].set_title(engine)
            axes[1][column].set_xlabel("block size")
        axes[row][0].set_ylabel(f"{direction} (GB/s)")
        axes[row][0].set_ylim(bottom=0)
    axes[0][0].legend(frameon=False, title="commands in flight", fontsize=8)
    figure.savefig(path)
