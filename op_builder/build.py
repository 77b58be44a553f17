"""``python -m op_builder.build``: compile ops ahead of time, into the cache."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from op_builder.errors import AccelError, UnknownOpError

if TYPE_CHECKING:
    from op_builder.base import OpBuilder

Report = Callable[[str, int, int, str], None]
"""Called with (op, steps done, steps in all, what was just done)."""


@dataclass(frozen=True)
class Outcome:
    """What became of one op: ``built``, ``cached`` (it was there), ``skipped`` (not possible here) or ``failed``."""

    op: str
    status: str
    seconds: float
    message: str = ""
    path: str = ""


def build_all(builders: Sequence[OpBuilder], *, required: bool, force: bool, report: Report) -> list[Outcome]:
    """Build each op into the cache, side by side; one that fails keeps none of the others back.

    Args:
        required: an op that is not possible here has failed; else it is skipped.
        force: compile again what the cache has.
        report: told of every step, from several threads.
    """
    from op_builder.engine.jobs import available_cores

    settled = [_settle(builder, required, force) for builder in builders]
    pending = [builder for builder, outcome in zip(builders, settled, strict=True) if outcome is None]
    workers = max(1, min(len(pending), available_cores()))
    batch = _Batch(force, workers, report)
    with ThreadPoolExecutor(workers, thread_name_prefix="build") as pool:
        try:
            built = {outcome.op: outcome for outcome in pool.map(batch.build, pending)}
        except BaseException:
            # Ctrl-C: what runs is ended, what has not begun does not begin.
            batch.cancel.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [outcome or built[builder.name] for builder, outcome in zip(builders, settled, strict=True)]


def _settle(builder: OpBuilder, required: bool, force: bool) -> Outcome | None:
    """The outcome of an op for which nothing is to be compiled; None for the others."""
    from op_builder import resolver
    from op_builder.outcomes import failures

    started = time.monotonic()

    def settle() -> tuple[str, str, str] | None:
        missing = failures(builder.build_checks())
        if missing:
            reasons = "; ".join(f"{failure.reason} {failure.remedy}" for failure in missing)
            return "failed" if required else "skipped", reasons, ""
        cached = None if force else resolver.Request.of(builder).find_cached()
        return None if cached is None else ("cached", "", str(cached.artifact))

    result = _guarded(settle)
    return None if result is None else Outcome(builder.name, *_timed(result, started))


@dataclass(frozen=True)
class _Batch:
    """Builds that share the machine."""

    force: bool
    side_by_side: int
    report: Report
    cancel: threading.Event = field(default_factory=threading.Event)

    def build(self, builder: OpBuilder) -> Outcome:
        """Build one op; whatever goes wrong with it is told in the outcome."""
        from op_builder import resolver
        from op_builder.engine.build import BuildOptions

        started = time.monotonic()
        options = BuildOptions(
            progress=functools.partial(self.report, builder.name),
            force=self.force,
            side_by_side=self.side_by_side,
            cancel=self.cancel,
        )

        def build() -> tuple[str, str, str]:
            return "built", "", str(resolver.compile_now(resolver.Request.of(builder), options).artifact)

        result = _guarded(build)
        assert result is not None
        return Outcome(builder.name, *_timed(result, started))


def _guarded(step: Callable[[], tuple[str, str, str] | None]) -> tuple[str, str, str] | None:
    try:
        return step()
    except AccelError as error:
        return "failed", str(error), ""
    except Exception as error:
        # A builder of another package may raise anything; the other ops are built all the same.
        return "failed", f"{type(error).__name__}: {error}", ""


def _timed(result: tuple[str, str, str], started: float) -> tuple[str, float, str, str]:
    status, message, path = result
    return status, round(time.monotonic() - started, 2), message, path


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 0, 1 when an op that was asked for failed, 2 for a wrong name."""
    parser = argparse.ArgumentParser(
        prog="python -m op_builder.build", description="Compile ops ahead of time, into the cache."
    )
    parser.add_argument("ops", nargs="*", metavar="OP", help="ops to build (cpu_adam or CPUAdamBuilder)")
    parser.add_argument("--all", action="store_true", help="every op that can be built here")
    parser.add_argument("--force", action="store_true", help="compile again what the cache has")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if bool(options.ops) == options.all:
        parser.error("name the ops to build, or give --all")
    from op_builder.report.collect import builders_here, find_op

    try:
        builders = builders_here() if options.all else [find_op(name) for name in options.ops]
    except UnknownOpError as error:
        print(error, file=sys.stderr)
        return 2
    with _display([builder.name for builder in builders]) as report:
        outcomes = build_all(builders, required=not options.all, force=options.force, report=report)
    failed = any(outcome.status == "failed" for outcome in outcomes)
    if options.json:
        print(json.dumps({"ok": not failed, "ops": [asdict(outcome) for outcome in outcomes]}, indent=2))
    else:
        _print_summary(outcomes)
    return int(failed)


@contextmanager
def _display(ops: list[str]) -> Iterator[Report]:
    """A progress bar per op on a terminal; one line per step elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda op, done, total, step: console.print(
            f"{op}: [{done}/{total}] {step}", markup=False, highlight=False
        )
        return
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[step]}", style="dim"), console=console) as progress:
        tasks: dict[str, Any] = {}

        def report(op: str, done: int, total: int, step: str) -> None:
            if op not in tasks:
                tasks[op] = progress.add_task(op.ljust(max(map(len, ops))), total=total, step="")
            progress.update(tasks[op], completed=done, total=total, step=step)

        yield report


def _print_summary(outcomes: list[Outcome]) -> None:
    styles = {"built": "green", "cached": "green", "skipped": "yellow", "failed": "red"}
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("op", "result", "seconds", ""):
        table.add_column(heading)
    for outcome in outcomes:
        said = Text("see below" if outcome.status == "failed" else outcome.message or outcome.path, overflow="fold")
        table.add_row(outcome.op, Text(outcome.status, styles[outcome.status]), f"{outcome.seconds:.1f}", said)
    Console().print(table)
    for outcome in outcomes:
        if outcome.status == "failed":  # as it is: folded into a column, the cause is lost among its lines
            print(f"{outcome.op}: {outcome.message}\n")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        try:
            sys.exit(main())
        except KeyboardInterrupt:
            print("Interrupted; the compilers were ended and nothing half-built was kept.", file=sys.stderr)
            sys.exit(130)
