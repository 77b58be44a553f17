"""``accel-ops tune-aio DIR``: the fastest settings of ``async_io`` for a disk."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from op_builder import env
from op_builder.command_line import number, parse_size, reports_errors, run_main
from op_builder.errors import AccelError
from op_builder.messages import size_text
from op_builder.system import storage_engines

_CACHED = "This file system does not support O_DIRECT: the figures mostly measure memory, not the device."
_DIRECT = "All bytes bypassed the page cache. On a virtual or network disk, the host's cache is in the figures."
_PIECE_BYTES = 128 << 20  # of one request; the queue runs empty between two
_SPARE_BYTES = 64 << 20  # left to other programs on the disk
_ROUNDS, _FINALISTS, _REPEATS = 2, 5, 4

Choices = Sequence[Mapping[str, Any]]
"""Values of some settings by their names, of which one is the fastest."""


class Settings(NamedTuple):
    """The arguments of :meth:`AsyncIOModule.aio_handle`, by their names."""

    engine: str
    block_size: int = 1 << 20
    queue_depth: int = 32
    single_submit: bool = False
    overlap_events: bool = True
    intra_op_parallelism: int = 1


class Measurement(NamedTuple):
    """Bytes per second; writing includes the ``fsync``. ``direct_share`` of the bytes bypassed the page cache."""

    settings: Settings
    read_bytes_per_s: float
    written_bytes_per_s: float
    direct_share: float

    @property
    def both_bytes_per_s(self) -> float:
        """The rate at which bytes are written once and read once."""
        return 2 / (1 / self.read_bytes_per_s + 1 / self.written_bytes_per_s)


def _products(**values: Sequence[Any]) -> Choices:
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


_SUBMISSIONS = _products(single_submit=(False, True), overlap_events=(True, False))
COORDINATES = (
    _products(block_size=[size << 10 for size in (128, 256, 512, 1024, 2048, 8192)], queue_depth=(8, 32, 128)),
    _products(intra_op_parallelism=(1, 2, 4)),
    _SUBMISSIONS,
)
"""What is tried for each engine, one after the other, each around the best so far."""
_QUICK = (
    _products(block_size=(256 << 10, 1 << 20), queue_depth=(8, 32)),
    _products(intra_op_parallelism=(1, 2)),
    _SUBMISSIONS,
)


@reports_errors
def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.tune_aio") -> int:
    """The command line; returns the exit status: 0, or 2 for an error."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Find the fastest async_io settings for a disk: engine, block size, queue depth, threads and "
        "submission modes. Reads and writes a scratch file without the page cache, and removes it.",
        epilog=f"Example: '{prog} /mnt/disk --quick'. The settings are for aio_handle(**json.load(file)) and "
        "TensorStore(directory, aio=json.load(file)).",
    )
    add = parser.add_argument
    add("directory", type=Path, metavar="DIR", help="directory on the disk to measure")
    add("--size", type=parse_size, metavar="SIZE",
        help="size of the scratch file, at least 1M (default: 1G; with --quick: 64M)")  # fmt: skip
    add("--seconds", type=number("0.001 to 3600 seconds", 1e-3, 3600, float), metavar="S",
        help="minimum time of each measurement in each direction (default: 0.15; with --quick: 0.05)")  # fmt: skip
    add("--quick", action="store_true", help="fewer settings, for an estimate within seconds")
    add("--engine", action="append", choices=storage_engines.ENGINES,
        help="only this engine; may be repeated (default: every engine that works)")  # fmt: skip
    add("--output", type=Path, default=Path("aio_settings.json"), metavar="FILE",
        help="where to write the settings (default: aio_settings.json)")  # fmt: skip
    add("--json", action="store_true", help="print all measurements as one JSON object")
    options = parser.parse_args(arguments)
    size_bytes = options.size or (64 << 20 if options.quick else 1 << 30)
    if size_bytes < 1 << 20:
        parser.error("--size must be at least 1M")
    _require_places(options.directory, options.output, size_bytes)
    rejected = _async_io().rejected_engines()  # compiles the op at its first use
    refused = {name: reason for name, reason in rejected.items() if name in (options.engine or rejected)}
    engines = _engines(options.engine, rejected)
    seconds = options.seconds or (0.05 if options.quick else 0.15)
    with Console(stderr=True).status("measuring"), bench(options.directory, size_bytes, seconds) as measure:
        found, failed = search(engines, _QUICK if options.quick else COORDINATES, measure)
    best = found[0].settings._asdict()
    # Without the default engine: another machine may have another one.
    is_default = best["engine"] == next(name for name in storage_engines.ENGINES if name not in rejected)
    portable = {name: value for name, value in best.items() if name != "engine" or not is_default}
    try:
        options.output.write_text(json.dumps(portable, indent=1) + "\n")
    except OSError as error:
        raise AccelError(f"{options.output} cannot be written: {error.strerror}.", "Pass another --output.") from None
    if options.json:
        measured = [{**one._asdict(), "settings": one.settings._asdict()} for one in found]
        data = {"best": measured[0], "measured": measured, "size_bytes": size_bytes, "output": str(options.output)}
        print(json.dumps({**data, "refused_engines": refused, "refused_settings": failed}, indent=1))
    else:
        _print(found, {**refused, **failed}, options.output)
    return 0


def _require_places(directory: Path, output: Path, size_bytes: int) -> None:
    # Path.is_dir() raises for a name that is too long.
    if not os.path.isdir(output.absolute().parent):
        raise AccelError(f"The directory of {output} does not exist.", "Create it, or pass another --output.")
    if not os.path.isdir(directory):
        what = "not a directory" if os.path.exists(directory) else "missing"
        raise AccelError(f"{directory} is {what}.", "Pass a directory on the disk to measure.")
    free = shutil.disk_usage(directory).free
    if free < size_bytes + _SPARE_BYTES:
        raise AccelError(
            f"{directory} has {size_text(free)} free; {size_text(size_bytes + _SPARE_BYTES)} are needed.",
            f"Delete files there, or pass a --size below {max(0, free - _SPARE_BYTES) >> 20}M.",
        )


def _async_io() -> Any:
    from op_builder.ops.declare import load_host
    from op_builder.ops.io.async_io import OP

    return load_host(OP)


def _engines(requested: list[str] | None, rejected: Mapping[str, str]) -> list[str]:
    """The engines to measure."""
    forced = env.ACCEL_AIO_ENGINE.get()
    names = list(dict.fromkeys(requested or ([forced] if forced else ())))
    if forced and names != [forced]:
        raise AccelError(
            f"ACCEL_AIO_ENGINE={forced} selects one engine, but --engine selects others.", "Unset the variable."
        )
    for name in names:
        if name in rejected:
            raise storage_engines.unusable_engine(name, rejected[name])
    return names or [name for name in storage_engines.ENGINES if name not in rejected]


def search(
    engines: Sequence[str], coordinates: Sequence[Choices], measure: Callable[[Settings], Measurement]
) -> tuple[list[Measurement], dict[str, str]]:
    """Measure the choices of one coordinate after the other, around each engine's best; then the best of all in turns.

    Returns:
        The medians of all settings, the best for both directions first; and the settings that the system refused.

    Raises:
        AccelError: no settings work at all.
    """
    measured: dict[Settings, list[Measurement]] = {}
    failed: dict[str, str] = {}

    def try_all(candidates: Iterable[Settings]) -> None:
        for settings in candidates:
            try:
                measured.setdefault(settings, []).append(measure(settings))
            except AccelError as error:  # an engine may refuse a queue of that size
                del measured[settings]
                failed[" ".join(_row(settings))] = error.message

    def ranked() -> list[Measurement]:
        rates = [Measurement(settings, *map(median, list(zip(*runs))[1:])) for settings, runs in measured.items()]  # noqa: B905
        return sorted(rates, key=lambda one: one.both_bytes_per_s, reverse=True)

    best = {engine: Settings(engine) for engine in engines}
    for engine in engines:
        for choices in coordinates:
            for _ in range(_ROUNDS):
                try_all(best[engine]._replace(**choice) for choice in choices)
            best[engine] = next((one.settings for one in ranked() if one.settings.engine == engine), best[engine])
    if not measured:
        settings, reason = next(iter(failed.items()))
        raise AccelError(f"Nothing could be measured. {settings}: {reason}", "See `accel-ops report async_io`.")
    finalists = dict.fromkeys([*filter(measured.__contains__, best.values()), *(one.settings for one in ranked())])
    chosen = list(finalists)[:_FINALISTS]
    for _ in range(_REPEATS):
        try_all(chosen)
    return sorted(ranked(), key=lambda one: one.settings not in chosen), failed


@contextmanager
def bench(directory: Path, size_bytes: int, seconds: float) -> Iterator[Callable[[Settings], Measurement]]:
    """A function that measures settings on a scratch file. The file has no name, so it ends with this process.

    Raises:
        AccelError: the directory cannot be written.
    """
    import torch  # --help and bad options do not need it

    try:
        file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
    except OSError as error:
        raise AccelError(
            f"A file cannot be created in {directory}: {error.strerror}.", "Pass a directory that this user can write."
        ) from None
    with file:
        module, descriptor = _async_io(), file.fileno()
        first = module.aio_handle()
        buffer = first.new_cpu_locked_tensor(min(_PIECE_BYTES, size_bytes), torch.empty(0, dtype=torch.uint8))
        buffer.random_()  # devices may store zeros without writing them
        offsets = range(0, size_bytes, buffer.nbytes)
        pieces = [(buffer[: size_bytes - offset], descriptor, offset) for offset in offsets]
        for piece in pieces:
            first.sync_pwrite(*piece)
        os.fsync(descriptor)

        def rate(transfer: Callable[..., int], finish: Callable[[], object]) -> float:
            done, started = 0, time.perf_counter()
            for piece in itertools.cycle(pieces):
                transfer(*piece)
                done += piece[0].nbytes
                if time.perf_counter() - started >= seconds:
                    break
            finish()
            return done / (time.perf_counter() - started)

        def measure(settings: Settings) -> Measurement:
            handle = module.aio_handle(**settings._asdict())
            handle.sync_pread(buffer[: 1 << 20], descriptor, 0)  # starts the threads
            before = handle.counters()
            written = rate(handle.sync_pwrite, lambda: os.fsync(descriptor))
            if hasattr(os, "posix_fadvise"):  # read nothing from the page cache
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            read = rate(handle.sync_pread, lambda: None)
            after = handle.counters()
            direct = after.direct_bytes - before.direct_bytes
            return Measurement(settings, read, written, direct / (direct + after.cached_bytes - before.cached_bytes))

        yield measure


def _row(settings: Settings) -> tuple[str, ...]:
    ways = [name.partition("_")[0] for name in ("single_submit", "overlap_events") if getattr(settings, name)]
    numbers = size_text(settings.block_size), str(settings.queue_depth), str(settings.intra_op_parallelism)
    return settings.engine, *numbers, "+".join(ways) or "-"


def _print(found: list[Measurement], not_measured: dict[str, str], output: Path) -> None:
    console = Console(soft_wrap=True, highlight=False)
    table = Table("best", "engine", "block", "depth", "threads", "submission", "read", "write", box=box.SIMPLE_HEAD)
    rows = {
        "for both": found[0],
        "for reading": max(found, key=lambda one: one.read_bytes_per_s),
        "for writing": max(found, key=lambda one: one.written_bytes_per_s),
    } | {f"of {one.settings.engine}": one for one in reversed(found)}
    for what, one in rows.items():
        rates = (f"{rate / 1e9:.2f}" for rate in (one.read_bytes_per_s, one.written_bytes_per_s))
        table.add_row(what, *_row(one.settings), *rates, style="bold green" if what == "for both" else None)
    console.print(table)
    console.print("In GB/s, medians; writing until the device has it (fsync).")
    console.print(_CACHED if any(one.direct_share < 1 for one in found) else _DIRECT)
    for name, reason in not_measured.items():
        console.print(f"Not measured: {name}: {reason}", markup=False)
    console.print(f"Settings: {output}, for aio_handle(**json.load(file)).", markup=False)


if __name__ == "__main__":
    run_main(main, "The scratch file is removed, no settings were written.")
