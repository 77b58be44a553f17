"""``python -m op_builder.tune_aio DIR``: the fastest settings of ``async_io`` for a disk."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from op_builder.command_line import parse_size, run_main
from op_builder.errors import AccelError
from op_builder.system import storage_engines

if TYPE_CHECKING:
    from op_builder.tune_aio.measure import Measurement, Settings
    from op_builder.tune_aio.search import Findings

_COLOURS = ("#c9d6df", "#f2a65a", "#3d7068", "#1f3a5f")
_CACHED = "This file system does not support O_DIRECT: the figures mostly measure memory, not the device."
_DIRECT = "All bytes bypassed the page cache. On a virtual or network disk, the host's cache is in the figures."


def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.tune_aio") -> int:
    """The command line; returns the exit status: 0, or 2 for an error."""
    options = _parser(prog).parse_args(arguments)
    try:
        return _tune(options)
    except AccelError as error:
        print(f"tune_aio: {error}", file=sys.stderr)
        return 2


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Find the fastest async_io settings for a disk: engine, block size, queue depth, threads and "
        "submission modes. Reads and writes a scratch file without the page cache, and removes it.",
        epilog="The settings are for aio_handle(**json.load(file)) and TensorStore(directory, aio=json.load(file)).",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory on the disk to measure")
    parser.add_argument(
        "--size", type=_size, metavar="SIZE", help="size of the scratch file (default: 1G; with --quick: 64M)"
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        metavar="S",
        help="minimum time of each measurement in each direction (default: 0.15; with --quick: 0.05)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer settings, for an estimate within seconds")
    parser.add_argument(
        "--engine",
        action="append",
        metavar="NAME",
        help="only this engine; may be repeated (default: every engine that works)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("aio_settings.json"),
        metavar="FILE",
        help="where to write the settings; the picture gets the same name with .png (default: aio_settings.json)",
    )
    parser.add_argument("--json", action="store_true", help="print all measurements as one JSON object")
    return parser


def _tune(options: argparse.Namespace) -> int:
    # Not at the top: --help and bad options need no torch.
    from op_builder.tune_aio.measure import bench
    from op_builder.tune_aio.search import Grid, search

    engines, refusals = _engines(options.engine)
    grid = Grid(engines)
    if options.quick:
        grid = Grid(
            engines, block_sizes=(256 << 10, 1 << 20), queue_depths=(8, 32), threads=(1, 2), rounds=1, repeats=2
        )
    size_bytes = options.size or (64 << 20 if options.quick else 1 << 30)
    seconds = options.seconds or (0.05 if options.quick else 0.15)
    if not os.path.isdir(options.output.absolute().parent):  # Path.is_dir() raises for a name that is too long
        raise AccelError(f"The directory of {options.output} does not exist.", "Create it, or pass another --output.")
    with _progress(grid.steps()) as on_step, bench(options.directory, size_bytes, seconds) as scratch:
        findings = search(grid, scratch.measure, on_step)
    try:
        options.output.write_text(json.dumps(_portable(findings.best.settings), indent=1) + "\n")
        picture = _draw(options.output.with_suffix(".png"), findings, options.directory)
    except OSError as error:
        raise AccelError(
            f"{error.filename or options.output} cannot be written: {error.strerror}.", "Pass another --output."
        ) from None
    if options.json:
        print(json.dumps(_data(findings, refusals, size_bytes, options.output, picture), indent=1))
    else:
        _print(findings, refusals, options.output, picture)
    return 0


def _engines(requested: list[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """The engines to measure, and why others are not."""
    forced = storage_engines.forced_engine()
    if forced and any(name != forced for name in requested or ()):
        raise AccelError(
            f"ACCEL_AIO_ENGINE={forced} selects one engine, but --engine selects others.", "Unset the variable."
        )
    names = requested or ([forced] if forced else storage_engines.ENGINES)
    engines, refusals = [], {}
    for name in dict.fromkeys(names):
        storage_engines.checked_engine(name)
        reason = storage_engines.refusal(name)
        if reason is None:
            engines.append(name)
        elif requested or forced:
            raise storage_engines.unusable_engine(name, reason)
        else:
            refusals[name] = reason
    return tuple(engines), refusals


def _portable(settings: Settings) -> dict[str, Any]:
    """The settings, without the engine if it is the default here: another machine may have another default."""
    arguments = settings._asdict()
    default = next(engine.name for engine in storage_engines.storage_engines() if engine.refusal is None)
    if settings.engine == default:
        del arguments["engine"]
    return arguments


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[Settings, Measurement | None], None]]:
    columns = (BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("writing the scratch file", total=steps)

        def on_step(settings: Settings, found: Measurement | None) -> None:
            rate = f"{found.both_bytes_per_s / 1e9:.2f} GB/s" if found else "refused"
            progress.update(task, advance=1, description=f"{' '.join(_row(settings))}: {rate}")

        yield on_step


def _row(settings: Settings) -> tuple[str, ...]:
    size = settings.block_size
    block = f"{size >> 20}M" if size % (1 << 20) == 0 else f"{size >> 10}K"
    ways = [name.partition("_")[0] for name in ("single_submit", "overlap_events") if getattr(settings, name)]
    numbers = block, str(settings.queue_depth), str(settings.intra_op_parallelism)
    return settings.engine, *numbers, "+".join(ways) or "-"


def _draw(path: Path, findings: Findings, directory: Path) -> Path | None:
    """Draw median rates by block size as a PNG: a line per queue depth, axes per engine and direction.

    Returns:
        the file; None without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    # What the search measured in all combinations.
    measured = [m for m in findings.medians() if m.settings[3:] == (False, True, 1)]
    engines = sorted({m.settings.engine for m in measured})
    sizes = sorted({m.settings.block_size for m in measured})
    figure = Figure(figsize=(3.6 * len(engines) + 1, 6), dpi=130, layout="constrained")
    axes = figure.subplots(2, len(engines), sharex=True, sharey="row", squeeze=False)
    where = "the page cache" if findings.is_cached else "the disk"
    figure.suptitle(f"async_io on {where} of {directory} (star: the best, measured again)")
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
    return path


def _print(findings: Findings, refusals: dict[str, str], output: Path, picture: Path | None) -> None:
    from op_builder.tune_aio.search import of_engine

    console = Console(soft_wrap=True, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("best", "engine", "block", "depth", "threads", "submission", "read", "write"):
        is_text = heading in ("best", "engine", "submission")
        table.add_column(heading, no_wrap=True, justify="left" if is_text else "right")
    engines = dict.fromkeys(found.settings.engine for found in findings.measured)
    for what, found, style in (
        ("for both", findings.best, "bold green"),
        ("for reading", findings.best_read, None),
        ("for writing", findings.best_write, None),
        *(("of its engine", of_engine(findings.finals, engine), "dim") for engine in engines),
    ):
        if found is not None:
            rates = f"{found.read_bytes_per_s / 1e9:.2f}", f"{found.written_bytes_per_s / 1e9:.2f}"
            table.add_row(what, *_row(found.settings), *rates, style=style, end_section=what == "for writing")
    console.print(table)
    console.print("In GB/s, medians; writing until the device has it (fsync).")
    console.print(_CACHED if findings.is_cached else _DIRECT)
    for engine, reason in refusals.items():
        console.print(f"{engine} was not measured: {reason}.", markup=False)
    if findings.failed:
        settings, reason = findings.failed[0]
        row = " ".join(_row(settings))
        console.print(f"Refused: {len(findings.failed)} settings, such as {row}: {reason}", markup=False)
    console.print(f"Settings: {output}, for aio_handle(**json.load(file)).", markup=False)
    if picture is None:
        console.print("No picture, because matplotlib is not installed: pip install matplotlib", markup=False)
    else:
        console.print(f"Picture: {picture}", markup=False)


def _data(
    findings: Findings, refusals: dict[str, str], size_bytes: int, output: Path, picture: Path | None
) -> dict[str, Any]:
    def entry(found: Measurement) -> dict[str, Any]:
        return {
            "settings": found.settings._asdict(),
            "read_bytes_per_s": round(found.read_bytes_per_s),
            "written_bytes_per_s": round(found.written_bytes_per_s),
            "direct_share": found.direct_share,
        }

    return {
        "best": entry(findings.best),
        "best_read": entry(findings.best_read),
        "best_write": entry(findings.best_write),
        "through_page_cache": findings.is_cached,
        "size_bytes": size_bytes,
        "output": str(output),
        "picture": None if picture is None else str(picture),
        "measured": [entry(found) for found in findings.measured],
        "refused_settings": [{"settings": one._asdict(), "reason": reason} for one, reason in findings.failed],
        "refused_engines": refusals,
    }


def _size(text: str) -> int:
    size_bytes = parse_size(text)
    if size_bytes < 1 << 20:
        raise argparse.ArgumentTypeError(f"{text!r} is less than 1M")
    return size_bytes


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


if __name__ == "__main__":
    run_main(main, "The scratch file is removed, no settings were written.")
