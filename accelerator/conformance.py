"""``python -m accelerator.conformance NAME``: check that an accelerator implements the whole contract.

The checks run in a child process. One that hangs or ends that process is a failed check, and a new
child runs the rest.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from accelerator.errors import AcceleratorSelectionError
from accelerator.selection import choose
from accelerator.testing import CHECKS, CheckResult, ConformanceReport
from accelerator.testing.model import FAILED, require_device
from op_builder import env
from op_builder.system.interpreter import isolated_command

_EPILOG = "Exit status: 0 if all checks passed or do not apply, 1 if one failed, 2 if no device can be checked."
_MARK = "conformance-result: "
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


def run_checks(first: int, without: Mapping[str, str]) -> int:
    """In the child: run the checks from number ``first`` on, and write each result at once; returns the exit status."""
    try:
        accelerator = choose().require()
        require_device(accelerator)
    except AcceleratorSelectionError as error:
        print(error, file=sys.stderr)
        return _NO_DEVICE
    for check in CHECKS[first:]:
        result = check.run(accelerator, without)
        # A device's library may print, too; our lines begin with the mark.
        print(f"\n{_MARK}{json.dumps([result.status, result.note])}", flush=True)
    return 0


def run_isolated(name: str, without: Mapping[str, str], timeout_s: float) -> ConformanceReport | None:
    """Run every check on the accelerator that the environment names, in child processes.

    Args:
        without: as for :func:`accelerator.testing.check_conformance`.
        timeout_s: for one check, the start of its process included.

    Returns:
        None if no device can be checked; the child has written the reason to standard error.
    """
    outcomes: list[tuple[str, str]] = []
    while len(outcomes) < len(CHECKS):
        found, end, status = _run_child(len(outcomes), without, timeout_s)
        if status == _NO_DEVICE and not outcomes and not found:
            return None
        outcomes += found
        if len(outcomes) < len(CHECKS):
            outcomes.append((FAILED, end))
    results = (CheckResult(check, *outcome) for check, outcome in zip(CHECKS, outcomes, strict=True))
    return ConformanceReport(name, tuple(results))


_CHILD = """
from accelerator.conformance import run_checks
from op_builder.command_line import run_main
run_main(lambda: run_checks({}, {}))
"""


def _run_child(first: int, without: Mapping[str, str], timeout_s: float) -> tuple[list[tuple[str, str]], str, int]:
    """The outcomes from check ``first`` on, how the child ended, and its exit status."""
    command = isolated_command(_CHILD.format(first, dict(without)))
    outcomes: list[tuple[str, str]] = []
    is_late = threading.Event()

    def stop() -> None:
        is_late.set()
        child.kill()

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as child:
        assert child.stdout is not None
        while True:
            timer = threading.Timer(timeout_s, stop)
            timer.start()
            line = next((line for line in child.stdout if line.startswith(_MARK)), None)
            timer.cancel()
            if line is None:
                break
            status, note = json.loads(line.removeprefix(_MARK))
            outcomes.append((status, note))
    code = child.returncode
    if is_late.is_set():
        return outcomes, f"it did not finish within {timeout_s:g} s", code
    end = f"status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    return outcomes, f"it ended its process, {end}", code


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
    from op_builder.command_line import run_main

    run_main(main)
