"""``python -m accelerator.report``: the accelerator of this machine, what it can do, and why it was chosen."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from accelerator.detection import Selection
from accelerator.errors import describe
from accelerator.selection import choose
from accelerator.vendors import redirect_output_to_stderr
from op_builder import env
from op_builder.command_line import run_main
from op_builder.messages import size_text

if TYPE_CHECKING:
    from accelerator.abstract_accelerator import DeepSpeedAccelerator

Fact = str | int | bool | list[str] | dict[str, str | None] | None

_EPILOG = "Exit status: 0, or 2 if no accelerator can be used, such as for an unknown ACCEL_ACCELERATOR."


def report(selection: Selection) -> dict[str, Any]:
    """The report as data for JSON: ``accelerator`` (None if none can be used), ``error``, ``trace``, ``versions``."""
    accelerator: dict[str, Any] | None = None
    if selection.accelerator is not None:
        names = {"name": selection.name, "requested": selection.requested}
        accelerator = {**names, **accelerator_facts(selection.accelerator)}
    return {
        "accelerator": accelerator,
        "error": None if selection.error is None else str(selection.error),
        "trace": [{**vars(entry), "accepted": entry.reason is None} for entry in selection.trace],
        "versions": {
            "accel-ops": _version("accel-ops"),
            "torch": _version("torch"),
            "python": platform.python_version(),
        },
    }


_NEEDS_DEVICE = {"hardware", "current_device", "total_memory_bytes", "available_memory_bytes", "memory_allocated_bytes"}


def accelerator_facts(accelerator: DeepSpeedAccelerator) -> dict[str, Fact]:
    """The facts of one accelerator under stable keys, ready for JSON; sizes are bytes.

    A fact that cannot be determined is listed under ``unavailable`` with the reason.
    """
    variables = env.child_environment()
    getters: dict[str, Callable[[], Fact]] = {
        "class": lambda: f"{type(accelerator).__module__}.{type(accelerator).__qualname__}",
        "device_name": accelerator.device_name,
        "is_available": accelerator.is_available,
        "hardware": lambda: _record(accelerator.get_device_properties()),
        "device_count": accelerator.device_count,
        "current_device": accelerator.current_device_name,
        "communication_backend": accelerator.communication_backend_name,
        "compile_backend": accelerator.get_compile_backend,
        "dtypes": lambda: _dtypes(accelerator),
        "is_triton_supported": accelerator.is_triton_supported,
        "is_synchronized_device": accelerator.is_synchronized_device,
        "total_memory_bytes": accelerator.total_memory,
        "available_memory_bytes": accelerator.available_memory,
        "memory_allocated_bytes": accelerator.memory_allocated,
        "visible_devices": lambda: {name: variables.get(name) for name in accelerator.visible_devices_envs()},
        "export_envs": accelerator.export_envs,
        "op_builder_dir": accelerator.op_builder_dir,
        **getattr(accelerator, "extra_facts", dict)(),
    }
    facts: dict[str, Fact] = {}
    unavailable: dict[str, str | None] = {}
    for key, get in getters.items():
        if key in _NEEDS_DEVICE and not facts.get("is_available"):
            unavailable[key] = "no device is available"
            continue
        try:
            facts[key] = get()
        except Exception as error:  # a device's error must not prevent the report
            unavailable[key] = describe(error)
    return {**facts, "unavailable": unavailable}


def _record(properties: Any) -> str | None:
    """The device's name in its properties, or the properties if they are text."""
    return None if properties is None else str(getattr(properties, "name", properties))


def _dtypes(accelerator: DeepSpeedAccelerator) -> list[str]:
    names = [str(dtype).removeprefix("torch.") for dtype in accelerator.supported_dtypes()]
    return [*names, "float8"] if accelerator.is_fp8_supported() else names


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m accelerator.report",
        description="Show the accelerator of this machine, what it can do, and why it was chosen.",
        epilog=_EPILOG,
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object; sizes are bytes")
    options = parser.parse_args(arguments)
    with redirect_output_to_stderr():
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
        trace = table("Detection, in order")
        for entry in data["trace"]:
            result = Text("chosen", "green") if entry["accepted"] else Text("no", "dim")
            trace.add_row(Text(entry["label"]), result, Text(entry["reason"] or ""))
        console.print(trace)


def _text(key: str, value: Fact) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key.endswith("_bytes"):
        return size_text(value)
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} ({'unset' if setting is None else setting})" for name, setting in value.items())
    return "none" if value is None else str(value)


if __name__ == "__main__":
    run_main(main)
