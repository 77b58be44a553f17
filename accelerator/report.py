"""``python -m accelerator.report``: the accelerator of this machine, what it can do, and why it was chosen."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from accelerator.detection import Chosen, Refused
from accelerator.facts import Fact, accelerator_facts
from accelerator.selection import choose
from accelerator.vendors import standard_output_kept

_EPILOG = "Exit status: 0, or 2 when no accelerator can be used (say, a wrong ACCEL_ACCELERATOR)."


def report(selection: Chosen | Refused) -> dict[str, Any]:
    """The report as data for JSON: ``accelerator`` (None when refused), ``error``, ``trace``, ``versions``."""
    accelerator: dict[str, Any] | None = None
    if isinstance(selection, Chosen):
        names = {"name": selection.name, "requested": selection.requested}
        accelerator = {**names, **accelerator_facts(selection.accelerator)}
    return {
        "accelerator": accelerator,
        "error": str(selection.error) if isinstance(selection, Refused) else None,
        "trace": [
            {"name": name, "label": label, "accepted": reason is None, "reason": reason}
            for name, label, reason in selection.trace
        ],
        "versions": {
            "accel-ops": _version("accel-ops"),
            "torch": _version("torch"),
            "python": platform.python_version(),
        },
    }


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
    from rich.table import Table
    from rich.text import Text

    def table(title: str) -> Table:
        return Table(title=title, title_justify="left", title_style="bold", show_header=False)

    console = Console()
    accelerator: dict[str, Any] | None = data["accelerator"]
    if accelerator is not None:
        requested = accelerator["requested"]
        why = "detected" if requested is None else f"the environment names {requested!r}"
        facts = table(f"Accelerator: {accelerator['name']} ({why})")
        values = {key: _text(key, value) for key, value in accelerator.items()}
        values |= {key: f"unavailable: {reason}" for key, reason in accelerator["unavailable"].items()}
        values |= {name: number or "not installed as a distribution" for name, number in data["versions"].items()}
        for key, value in values.items():
            if key not in ("name", "requested", "unavailable"):
                facts.add_row(Text(key.removesuffix("_bytes").removeprefix("is_").replace("_", " ")), Text(value))
        console.print(facts)
    if data["trace"]:
        trace = table("Detection, in the order asked")
        for entry in data["trace"]:
            verdict = Text("accepted", "green") if entry["accepted"] else Text("rejected", "dim")
            trace.add_row(Text(entry["label"]), verdict, Text(entry["reason"] or ""))
        console.print(trace)


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
