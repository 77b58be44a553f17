"""``python -m accelerator.report``: the accelerator of this machine, what it can do, and why it was chosen."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from accelerator.detection import Chosen, Refused, Rejected, Verdict
from accelerator.facts import Fact, accelerator_facts
from accelerator.selection import choose
from accelerator.vendors import standard_output_kept

if TYPE_CHECKING:
    from rich.table import Table

_EPILOG = "Exit status: 0, or 2 when no accelerator can be had (say, a wrong ACCEL_ACCELERATOR)."


def report(selection: Chosen | Refused) -> dict[str, Any]:
    """The report as data for JSON: ``accelerator`` (None when refused), ``error``, ``trace``, ``versions``."""
    return {
        "accelerator": {
            "name": selection.name,
            "requested": selection.requested,
            **accelerator_facts(selection.accelerator),
        }
        if isinstance(selection, Chosen)
        else None,
        "error": str(selection.error) if isinstance(selection, Refused) else None,
        "trace": [_trace_entry(verdict) for verdict in selection.trace],
        "versions": {
            "accel-ops": _version("accel-ops"),
            "torch": _version("torch"),
            "python": platform.python_version(),
        },
    }


def _trace_entry(verdict: Verdict) -> dict[str, str | bool | None]:
    reason = verdict.outcome.reason if isinstance(verdict.outcome, Rejected) else None
    return {"name": verdict.name, "label": verdict.label, "accepted": reason is None, "reason": reason}


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m accelerator.report", description=(__doc__ or "").partition(": ")[2], epilog=_EPILOG
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object; sizes are bytes")
    options = parser.parse_args(arguments)
    with standard_output_kept():
        data = report(choose())
    if options.json:
        print(json.dumps(data, indent=2))
    else:
        _print_tables(data)
    if data["error"] is None:
        return 0
    print(data["error"], file=sys.stderr)
    return 2


def _print_tables(data: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    if data["accelerator"] is not None:
        console.print(_facts_table(data))
    if data["trace"]:
        trace = _table("Detection, in the order asked")
        for entry in data["trace"]:
            verdict = Text("accepted", "green") if entry["accepted"] else Text("rejected", "dim")
            trace.add_row(Text(entry["label"]), verdict, Text(entry["reason"] or ""))
        console.print(trace)


def _facts_table(data: dict[str, Any]) -> Table:
    from rich.text import Text

    accelerator: dict[str, Any] = data["accelerator"]
    requested = accelerator["requested"]
    why = "detected" if requested is None else f"the environment names {requested!r}"
    table = _table(f"Accelerator: {accelerator['name']} ({why})")
    unavailable = accelerator["unavailable"]
    for key in (*accelerator, *unavailable):
        if key in ("name", "requested", "unavailable"):
            continue
        value = f"unavailable: {unavailable[key]}" if key in unavailable else _text(key, accelerator[key])
        table.add_row(Text(_caption(key)), Text(value))
    for name, number in data["versions"].items():
        table.add_row(Text(name), Text(number or "not installed as a distribution"))
    return table


def _table(title: str) -> Table:
    from rich.table import Table

    return Table(title=title, title_justify="left", title_style="bold", show_header=False)


def _caption(key: str) -> str:
    return key.removesuffix("_bytes").removeprefix("is_").replace("_", " ")


def _text(key: str, value: Fact) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key.endswith("_bytes"):
        return f"{value / 2**30:.2f} GiB"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} ({'unset' if setting is None else setting})" for name, setting in value.items())
    return "none" if value is None else str(value)


if __name__ == "__main__":
    from op_builder.command_line import run_main

    run_main(main)
