"""``python -m accelerator.conformance NAME``: does an accelerator keep the whole contract? A table of checks.

The checks run in a child process. One that hangs or ends that process is a failed check, and the
next child goes on after it.
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from accelerator.detection import Refused
from accelerator.selection import choose
from accelerator.testing import CHECKS, Ability, CheckResult, ConformanceReport, Failed, NotApplicable, Passed
from accelerator.testing.run import require_device
from accelerator.vendors import standard_output_kept
from op_builder import env
from op_builder.errors import AccelError

_EPILOG = "Exit status: 0 when all checks passed or do not apply, 1 when one failed, 2 when there is nothing to check."
_MARK = "conformance-result: "
_REFUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = _parse(arguments)
    with env.scope(ACCEL_ACCELERATOR=options.name, DS_ACCELERATOR=None):
        if options.worker is not None:
            return _work(options.worker, dict(options.without))
        with standard_output_kept():
            error = _cannot_run()
        if error is not None:
            print(error, file=sys.stderr)
            return 2
        report = run_isolated(options.name, dict(options.without), options.timeout)
    if options.json:
        print(json.dumps(as_data(report), indent=2))
    else:
        _print_table(report)
    return 0 if report.passed else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m accelerator.conformance",
        description="Check that an accelerator keeps the whole contract.",
        epilog=_EPILOG,
    )
    parser.add_argument("name", metavar="NAME", help="cpu, cuda, ... or a plug-in's name, as in ACCEL_ACCELERATOR")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.add_argument("--timeout", type=_seconds, default=300, metavar="SECONDS", help="for one check (default: 300)")
    parser.add_argument(
        "--without",
        type=_ability_and_reason,
        action="append",
        default=[],
        metavar="ABILITY=REASON",
        help="what this set-up lacks; checks that need it do not apply. Abilities: "
        + ", ".join(ability.value for ability in Ability),
    )
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: expected a number of seconds above 0")
    return seconds


def _ability_and_reason(text: str) -> tuple[Ability, str]:
    ability, _, reason = text.partition("=")
    try:
        return Ability(ability), reason or "this set-up lacks it"
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{ability!r} is no ability; there are {', '.join(each.value for each in Ability)}"
        ) from None


def _cannot_run() -> AccelError | None:
    """Why there is nothing to check."""
    selection = choose()
    if isinstance(selection, Refused):
        return selection.error
    try:
        require_device(selection.accelerator)
    except AccelError as error:
        return error
    return None


# The child ----------------------------------------------------------------------------------


def _work(first: int, lacks: Mapping[Ability, str]) -> int:
    """Run the checks from number ``first`` on, and write each result as soon as it is there."""
    selection = choose()
    if isinstance(selection, Refused):
        print(selection.error, file=sys.stderr)
        return _REFUSED
    for check in CHECKS[first:]:
        result = check.run(selection.accelerator, lacks)
        # A device's library may print what it likes; a line of ours begins with the mark.
        print(f"\n{_MARK}{json.dumps({'status': result.status, 'note': result.note})}", flush=True)
    return 0


# The parent ---------------------------------------------------------------------------------


def run_isolated(name: str, lacks: Mapping[Ability, str], timeout_s: float) -> ConformanceReport:
    """Run every check on the accelerator that ``name`` names, in child processes.

    Args:
        lacks: as for :func:`accelerator.testing.check_conformance`.
        timeout_s: for one check, the start of its process included.
    """
    outcomes: list[Passed | Failed | NotApplicable] = []
    while len(outcomes) < len(CHECKS):
        with _Worker(name, len(outcomes), lacks) as worker:
            told = list(worker.outcomes(timeout_s))
            outcomes += told
            if not told and worker.has_refused:
                outcomes += [Failed(worker.end)] * (len(CHECKS) - len(outcomes))
            elif len(outcomes) < len(CHECKS):
                outcomes.append(Failed(worker.end))
    results = (
        CheckResult(check.name, check.group, check.proves, outcome)
        for check, outcome in zip(CHECKS, outcomes, strict=True)
    )
    return ConformanceReport(name, tuple(results))


class _Worker:
    """One child process; ``end`` says how it ended before the last check."""

    def __init__(self, name: str, first: int, lacks: Mapping[Ability, str]) -> None:
        without = (f"--without={ability.value}={reason}" for ability, reason in lacks.items())
        command = [sys.executable, "-m", "accelerator.conformance", name, f"--worker={first}", *without]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, errors="replace", env=env.child_environment()
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.end = ""

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()  # no matter when it has ended
        self._process.wait()

    @property
    def has_refused(self) -> bool:
        """Whether it found no accelerator to check, as the next one would."""
        return self._process.poll() == _REFUSED

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_MARK):
                self._lines.put(line.removeprefix(_MARK))
        self._lines.put(None)

    def outcomes(self, timeout_s: float) -> Iterator[Passed | Failed | NotApplicable]:
        """The outcomes as they come, up to the last check or the first that does not come."""
        kinds: dict[str, Callable[[str], Passed | Failed | NotApplicable]] = {
            "passed": Passed,
            "failed": Failed,
            "not applicable": NotApplicable,
        }
        while True:
            try:
                line = self._lines.get(timeout=timeout_s)
            except queue.Empty:
                self.end = f"it did not finish within {timeout_s:g} s"
                return
            if line is None:
                self.end = f"it ended its process, {_exit_in_words(self._process.wait())}"
                return
            data = json.loads(line)
            yield kinds[data["status"]](data["note"])


def _exit_in_words(status: int) -> str:
    return f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"


# Output -------------------------------------------------------------------------------------


def as_data(report: ConformanceReport) -> dict[str, Any]:
    """The report for JSON: ``accelerator``, ``passed``, ``summary`` and ``results``."""
    return {
        "accelerator": report.accelerator,
        "passed": report.passed,
        "summary": report.summary,
        "results": [
            {
                "name": result.name,
                "group": result.group,
                "proves": result.proves,
                "status": result.status,
                "note": result.note,
            }
            for result in report.results
        ],
    }


def _print_table(report: ConformanceReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"passed": "green", "failed": "bold red", "not applicable": "dim"}
    table = Table(title=f"Conformance of {report.accelerator}", title_justify="left", title_style="bold")
    for heading in ("check", "result", "what was seen, or why"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "check")  # a name is to be found by searching
    group = None
    for result in report.results:
        if result.group != group:
            group = result.group
            table.add_section()
            table.add_row(Text(group, "bold"))
        table.add_row(Text(f"  {result.name}"), Text(result.status, styles[result.status]), Text(result.note))
    console = Console()
    console.print(table)
    proves = {check.name: check.proves for check in CHECKS}
    for failed in report.failures:
        console.print(Text(f"{failed.name} failed. It proves: {proves[failed.name]} Seen: {failed.note}."))
    console.print(Text(report.summary))


if __name__ == "__main__":
    from op_builder.command_line import run_main

    run_main(main)
