"""``python -m op_builder.build``: compile ops ahead of time, into the cache."""

from __future__ import annotations

import argparse
import functools
import json
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from op_builder.builder.base import OpBuilder
from op_builder.cache.store import Entry
from op_builder.catalog.device import requested_package
from op_builder.catalog.registry import all_builders
from op_builder.command_line import run_main
from op_builder.engine import precompiled
from op_builder.engine.build import BuildOptions
from op_builder.engine.kernels import compile_all_kernels
from op_builder.errors import AccelError
from op_builder.load.resolver import Request, compile_now
from op_builder.plan import Binding
from op_builder.report.collect import find_op
from op_builder.system.outcomes import failures
from op_builder.toolchains.jobs import JobBudget, allowed_jobs
from op_builder.toolchains.toolset import find_toolset

Report = Callable[[str, int, int, str], None]
"""Called with (op, steps done, steps in all or 0 as long as that is not known, what was just done)."""

T = TypeVar("T")
U = TypeVar("U")

_STYLES = {"built": "green", "cached": "green", "skipped": "yellow", "failed": "red"}


@dataclass(frozen=True)
class Outcome:
    """The result for one op: ``built``, ``cached``, ``skipped`` (not possible here) or ``failed``.

    ``message`` says why; for one that is available, what it lacks: SYCL kernels where there is no device for them.
    """

    op: str
    status: str
    seconds: float = 0.0
    message: str = ""
    path: str = ""


def build_all(
    builders: Sequence[OpBuilder],
    *,
    required: Container[str],
    force: bool,
    report: Report,
    with_kernels: bool = False,
) -> list[Outcome]:
    """Build each op into the cache, side by side; a failure of one does not affect the others.

    Args:
        required: names of the ops that have failed if they are not possible here; others are then skipped.
        force: compile again what the cache has.
        report: called at every step, from several threads.
        with_kernels: have the SYCL runtime compile all kernels of an op; else a build tries one of them.
    """
    batch = _Batch(required, force, report, with_kernels)
    for builder in builders:
        report(builder.name, 0, 0, "checking")
    try:
        at_a_time = allowed_jobs([])  # checks compile, too, but little
    except AccelError:
        at_a_time = 1  # a variable cannot be parsed; each op's checks say so
    settled = batch.side_by_side(batch.settle, builders, at_a_time)
    requests = [found for found in settled if isinstance(found, Request)]
    total = allowed_jobs([request.plan for request in requests]) if requests else 1
    build = functools.partial(batch.build, budget=JobBudget(total))
    built = iter(batch.side_by_side(build, requests, total))
    return [found if isinstance(found, Outcome) else next(built) for found in settled]


@dataclass(frozen=True)
class _Batch:
    """Builds that share the machine."""

    required: Container[str]
    force: bool
    report: Report
    with_kernels: bool
    cancel: threading.Event = field(default_factory=threading.Event)

    def side_by_side(self, task: Callable[[T], U], items: Sequence[T], at_a_time: int) -> list[U]:
        """What the task returns for the items, in their order."""
        with ThreadPoolExecutor(max(1, min(len(items), at_a_time)), thread_name_prefix="build") as pool:
            try:
                return list(pool.map(task, items))
            except BaseException:
                # Ctrl-C: what runs is ended, what has not begun does not begin.
                self.cancel.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def settle(self, builder: OpBuilder) -> Outcome | Request:
        """The outcome of an op that needs no compile; the request of one that does."""
        found = self._guarded(builder.name, lambda: self._settle(builder))
        self.report(builder.name, 0, 0, found.status if isinstance(found, Outcome) else "waiting")
        return found

    def _settle(self, builder: OpBuilder) -> Outcome | Request:
        missing = failures(builder.build_checks())
        reasons = "; ".join(f"{failure.reason} {failure.remedy}" for failure in missing)
        reasons = reasons or builder.own_rejection() or ""
        if reasons:
            return Outcome(builder.name, "failed" if builder.name in self.required else "skipped", message=reasons)
        request = Request.of(builder)
        cached = None if self.force else request.find_cached()
        return request if cached is None else self._done(request, cached, "cached")

    def build(self, request: Request, budget: JobBudget) -> Outcome:
        """Build one op; a failure is an outcome."""
        op = request.plan.op
        options = BuildOptions(functools.partial(self.report, op), self.force, budget, self.cancel)
        outcome = self._guarded(op, lambda: self._done(request, compile_now(request, options), "built"))
        self.report(op, 0, 0, outcome.status)
        return outcome

    def _done(self, request: Request, entry: Entry, status: str) -> Outcome:
        """The outcome of an op with an entry, whose SYCL kernels are compiled if they are asked for."""
        note = ""
        if self.with_kernels and request.plan.sycl is not None and request.toolset is not None:
            self.report(request.plan.op, 0, 0, "compiling kernels")
            note = compile_all_kernels(entry, request.plan, request.toolset, request.cache)
        return Outcome(request.plan.op, status, message=note, path=str(entry.artifact))

    def _guarded(self, op: str, step: Callable[[], T]) -> T | Outcome:
        """What ``step`` returns, an outcome with its time; an error is the outcome ``failed``."""
        started = time.monotonic()
        result: T | Outcome
        try:
            result = step()
        except AccelError as error:
            result = Outcome(op, "failed", message=str(error))
        except Exception as error:
            # A builder of another package may raise anything; the other ops are built all the same.
            result = Outcome(op, "failed", message=f"{type(error).__name__}: {error}")
        if isinstance(result, Outcome):
            return replace(result, seconds=round(time.monotonic() - started, 2))
        return result


def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.build") -> int:
    """The command line; returns the exit status: 0, 1 when an op that was asked for failed, 2 for a wrong name."""
    parser = argparse.ArgumentParser(prog=prog, description="Compile ops ahead of time, into the cache.")
    parser.add_argument(
        "ops",
        nargs="*",
        metavar="OP",
        help="ops to build: cpu_adam, CPUAdamBuilder, or another package's as package.module:Builder",
    )
    parser.add_argument("--all", action="store_true", help="every op that can be built here")
    parser.add_argument("--force", action="store_true", help="compile again what the cache has")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--precompile",
        action="store_true",
        help="build no op; have GCC precompile torch/extension.h (600 to 800 MB in the cache) for ops that include it "
        "first, with the flags of the named ops, else for ops without flags of their own",
    )
    options = parser.parse_args(arguments)
    if not options.precompile and bool(options.ops) == options.all:
        parser.error("name the ops to build, or give --all")
    try:
        # For the accelerator that is named, if one is: compiling needs no device.
        _, package = requested_package()
        if options.all:
            builders = list(all_builders(package).values())
        else:
            builders = [find_op(name, package) for name in options.ops]
    except AccelError as error:
        print(error, file=sys.stderr)
        return 2
    if options.precompile:
        return _precompile(builders, is_all=options.all)
    with _display([builder.name for builder in builders]) as report:
        required = [] if options.all else [builder.name for builder in builders]
        outcomes = build_all(builders, required=required, force=options.force, report=report, with_kernels=True)
    failed = any(outcome.status == "failed" for outcome in outcomes)
    if options.json:
        print(json.dumps({"ok": not failed, "ops": [asdict(outcome) for outcome in outcomes]}, indent=2))
    else:
        _print_summary(outcomes)
    return int(failed)


class _PlainBuilder(OpBuilder):
    """Any op on torch's C++ API without flags of its own."""

    NAME = "plain"

    def sources(self) -> list[str]:
        return []

    def source_texts(self) -> dict[str, str]:
        return {"plain.cpp": ""}


def _precompile(builders: Sequence[OpBuilder], *, is_all: bool) -> int:
    """Precompile ``torch/extension.h`` for the flags of each builder, or for no flags; returns the exit status."""
    chosen = [
        builder for builder in builders if builder.BINDING is Binding.TORCH and not failures(builder.build_checks())
    ]
    skipped = ", ".join(builder.name for builder in builders if builder not in chosen)
    if skipped and not is_all:
        print(
            f"Nothing to precompile for {skipped}: it does not include torch/extension.h, or cannot be built here.\n"
            "  Remedy: Name ops with the binding style Binding.TORCH, or none.",
            file=sys.stderr,
        )
        return 2
    for builder in chosen or [_PlainBuilder()]:
        try:
            plan = builder.plan()
            entry = precompiled.precompile(plan, find_toolset(plan, builder.cache.memo), builder.cache)
        except AccelError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"torch/extension.h is precompiled for {builder.name}: {entry.directory}")
    return 0


@contextmanager
def _display(ops: list[str]) -> Iterator[Report]:
    """A progress bar per op on a terminal; one line per step elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:

        def print_step(op: str, done: int, total: int, step: str) -> None:
            count = f"[{done}/{total}] " if total else ""
            console.print(f"{op}: {count}{step}", markup=False, highlight=False)

        yield print_step
        return
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[step]}", style="dim"), console=console) as progress:
        tasks: dict[str, Any] = {}

        def report(op: str, done: int, total: int, step: str) -> None:
            if op not in tasks:
                tasks[op] = progress.add_task(op.ljust(max(map(len, ops))), total=None, step="")
            if total:
                progress.update(tasks[op], completed=done, total=total)
            progress.update(tasks[op], step=step)
            if step in _STYLES:  # its end
                progress.stop_task(tasks[op])
                if progress.tasks[tasks[op]].total is None:
                    progress.update(tasks[op], total=0)  # or the bar would go on pulsing

        yield report


def _print_summary(outcomes: list[Outcome]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("op", "result", "seconds", ""):
        table.add_column(heading)
    for outcome in outcomes:
        note = "see below" if outcome.status == "failed" else outcome.message
        last = Text("\n".join(filter(None, (note, outcome.path))), overflow="fold")
        table.add_row(outcome.op, Text(outcome.status, _STYLES[outcome.status]), f"{outcome.seconds:.1f}", last)
    Console().print(table)
    for outcome in outcomes:
        if outcome.status == "failed":  # not in the table: folded into a column, the cause is lost among its lines
            print(f"{outcome.op}: {outcome.message}\n")


if __name__ == "__main__":
    try:
        run_main(main)
    except KeyboardInterrupt:
        print("Interrupted; the compilers were ended and nothing half-built was kept.", file=sys.stderr)
        sys.exit(130)
