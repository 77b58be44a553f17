"""``python -m accelerator.conformance NAME``: check that an accelerator implements the whole contract.

The checks run in a child process. One that hangs or ends that process is a failed check, and a new
child runs the rest.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from accelerator.errors import AcceleratorSelectionError
from accelerator.selection import choose
from accelerator.testing import CHECKS, CheckResult, ConformanceReport
from accelerator.testing.model import FAILED, require_device
from accelerator.vendors import redirect_output_to_stderr
from op_builder import env
from op_builder.command_line import run_main

_EPILOG = "Exit status: 0 if all checks passed or do not apply, 1 if one failed, 2 if no device can be checked."
_NO_DEVICE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = _parse(arguments)
    with env.scope(ACCEL_ACCELERATOR=options.name, DS_ACCELERATOR=None):
        report = run_isolated(options.name, dict(options.without), options.timeout)
    if report is None:
        return _NO_DEVICE
    if options.json:
        print(json.dumps(as_data(report), indent=2))
    else:
        _print_table(report)
    return 0 if report.passed else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m accelerator.conformance",
        description="Check that an accelerator implements the whole contract.",
        epilog=_EPILOG,
    )
    parser.add_argument("name", metavar="NAME", help="cpu, cuda, ... or a plug-in's name, as in ACCEL_ACCELERATOR")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECONDS", help="for one check (default: 300)")
    parser.add_argument(
        "--without",
        type=_name_and_reason,
        action="append",
        default=[],
        metavar="NAME=REASON",
        help="a check or a group of checks that does not apply to this set-up",
    )
    options = parser.parse_args(arguments)
    if not 0 < options.timeout < math.inf:
        parser.error(f"argument --timeout: expected a number of seconds above 0, found {options.timeout:g}")
    return options


def _name_and_reason(text: str) -> tuple[str, str]:
    name, _, reason = text.partition("=")
    groups = dict.fromkeys(check.group for check in CHECKS)
    if name not in groups and name not in map(str, CHECKS):
        raise argparse.ArgumentTypeError(f"unknown check or group {name!r}; the groups are {', '.join(groups)}")
    return name, reason or "not on this set-up"


def run_isolated(name: str, without: Mapping[str, str], timeout_s: float) -> ConformanceReport | None:
    """Run every check on the accelerator that the environment names, in child processes.

    Args:
        without: as for :func:`accelerator.testing.check_conformance`.
        timeout_s: for one check, the start of its process included.

    Returns:
        None if no device can be checked; the child has written the reason to standard error.
    """
    outcomes: list[tuple[str, str]] = []
    context = multiprocessing.get_context("spawn")
    while len(outcomes) < len(CHECKS):
        reader, writer = context.Pipe(duplex=False)
        child = context.Process(target=_work, args=(writer, len(outcomes), without), daemon=True)
        child.start()
        writer.close()
        try:
            while reader.poll(timeout_s):
                outcomes.append(reader.recv())
            end = f"it did not finish within {timeout_s:g} s"
            child.kill()
            child.join()
        except EOFError:
            child.join()
            code = child.exitcode or 0
            if code == _NO_DEVICE and not outcomes:
                return None
            end = f"it ended its process, {f'status {code}' if code >= 0 else f'signal {signal.Signals(-code).name}'}"
        if len(outcomes) < len(CHECKS):
            outcomes.append((FAILED, end))
    results = (CheckResult(check, *outcome) for check, outcome in zip(CHECKS, outcomes, strict=True))
    return ConformanceReport(name, tuple(results))


def _work(writer: Connection, first: int, without: Mapping[str, str]) -> NoReturn:
    """In the child: run the checks from number ``first`` on, and send each result at once."""

    def work() -> int:
        try:
            accelerator = choose().require()
            require_device(accelerator)
        except AcceleratorSelectionError as error:
            print(error, file=sys.stderr)
            return _NO_DEVICE
        for check in CHECKS[first:]:
            result = check.run(accelerator, without)
            writer.send((result.status, result.note))
        return 0

    with redirect_output_to_stderr():  # a device's library may print, too
        run_main(work)


def as_data(report: ConformanceReport) -> dict[str, Any]:
    """The report for JSON: ``accelerator``, ``passed``, ``summary`` and ``results``."""
    return {
        "accelerator": report.accelerator,
        "passed": report.passed,
        "summary": report.summary,
        "results": [
            {"name": check.name, "group": check.group, "proves": check.proves, "status": status, "note": note}
            for check, status, note in ((each.check, each.status, each.note) for each in report.results)
        ],
    }


def _print_table(report: ConformanceReport) -> None:
    from rich.console import Console  # not at the top: --json needs no tables
    from rich.table import Table
    from rich.text import Text

    styles = {"passed": "green", "failed": "bold red", "not applicable": "dim"}
    table = Table(title=f"Conformance of {report.accelerator}", title_justify="left", title_style="bold")
    for heading in ("check", "result", "finding or reason"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "check")  # names stay whole for searching
    group = None
    for result in report.results:
        if result.check.group != group:
            group = result.check.group
            table.add_section()
            table.add_row(Text(group, "bold"))
        table.add_row(Text(f"  {result.check}"), Text(result.status, styles[result.status]), Text(result.note))
    console = Console()
    console.print(table)
    for failed in report.failures:
        console.print(Text(f"{failed.check} failed. It proves: {failed.check.proves} Found: {failed.note}."))
    console.print(Text(report.summary))


if __name__ == "__main__":
    run_main(main)
