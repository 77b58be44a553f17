"""The report as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from op_builder.messages import counted, grouped, size_text

_WIDE = 120  # columns; a wider table has separate columns for reason and remedy


def print_report(data: dict[str, Any], console: Console) -> None:
    """Print the whole report."""
    console.print(_ops_table(data["ops"], wide=console.width >= _WIDE))
    if data["wheels"]:
        console.print(_facts_table("Prebuilt", _prebuilt_rows(data)))
    if data["registered"]:
        console.print(_facts_table("Packages that register ops", _registered_rows(data["registered"])))
    console.print(_facts_table("Accelerator", _accelerator_rows(data["accelerator"])))
    console.print(_facts_table("SYCL", sycl_rows(data["environment"]["sycl"])))
    console.print(_facts_table("Environment", _environment_rows(data["environment"])))


def print_explanation(data: dict[str, Any], console: Console) -> None:
    """Print one op in full."""
    state = [
        ("builder", data["builder"]),
        ("installed", _entry_text(data["prebuilt"])),
        ("cached", _cached_text(data)),
        ("compatible", _mark(data["compatible"])),
    ]
    if data["reason"]:
        state += [("reason", data["reason"]), ("remedy", data["remedy"])]
    console.print(_facts_table(f"Op {data['name']}: {data['summary']}", state))
    checks = Table(title="Checks", title_justify="left", title_style="bold", box=None, padding=(0, 1))
    for check in data["checks"]:
        text = Text(check["detail"] if check["passed"] else check["reason"])
        if not check["passed"] and check["remedy"]:
            text.append(f"\n{check['remedy']}", style="cyan")
        checks.add_row(_mark(check["passed"]), Text(check["name"]), text)
    console.print(checks)
    if data["plan"] is not None:
        plan = dict(data["plan"])
        sources = "\n".join(" ".join([source["label"], *source["flags"]]) for source in plan.pop("sources"))
        rows = [("sources", sources), *((_label(key), _text(value)) for key, value in plan.items())]
        rows.append(("key", data["key"]["digest"]))
        rows += [(f"  {name}", value) for name, value in data["key"]["parts"].items()]
        console.print(_facts_table("Plan", rows))
    if data["commands"]:
        console.print(Text("Commands, run in a temporary directory", style="bold"))
        for command in data["commands"]:
            console.print(Text(command), soft_wrap=True)


def _ops_table(ops: list[dict[str, Any]], *, wide: bool) -> Table:
    table = Table(title="Ops", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("op", "installed", "cached", "compatible"):
        table.add_column(heading, no_wrap=True)
    for heading in ("reason", "remedy") if wide else ("reason and remedy",):
        table.add_column(heading)
    for op in ops:
        marks = [_mark(op["installed"], "dim"), _mark(op["cached"], "dim"), _mark(op["compatible"], "yellow")]
        reason, remedy = Text(op["reason"]), Text(op["remedy"], style="cyan")
        text = (reason, remedy) if wide else (Text("\n").join(part for part in (reason, remedy) if part.plain),)
        table.add_row(Text(op["name"]), *marks, *text)
    return table


def _accelerator_rows(accelerator: dict[str, Any]) -> list[tuple[str, Any]]:
    if accelerator["error"] is not None:
        return [("error", Text(accelerator["error"], style="red"))]
    unknown = accelerator.get("unavailable", {})
    facts = [(name, value) for name, value in accelerator.items() if name not in ("name", "error", "unavailable")]
    rows: list[tuple[str, Any]] = [(_label(name), _text(value, name)) for name, value in facts]
    rows += [(_label(name), f"unknown: {why}") for name, why in unknown.items()]
    return [*rows, ("why detected", "python -m accelerator.report")]


def _prebuilt_rows(data: dict[str, Any]) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for wheel in data["wheels"]:
        if "reason" in wheel:
            rows.append((wheel["package"], wheel["reason"]))
            continue
        rows.append(
            (wheel["package"], f"{wheel['tag']}, for accelerator {wheel['accelerator']}, by {wheel['built_by']}")
        )
        left_out = grouped((left["op"], left["reason"]) for left in wheel["left_out"])
        rows += [("  without", line) for line in left_out]
        own = [op for op in data["ops"] if op["installed"] and _is_in(op["prebuilt"], wheel)]
        rows += [("  with", line) for line in grouped((op["name"], _fits(op["prebuilt"])) for op in own)]
    return rows


def _is_in(entry: dict[str, Any], wheel: dict[str, Any]) -> bool:
    return Path(wheel["directory"]) in Path(entry["directory"]).parents


def _fits(entry: dict[str, Any]) -> str:
    python = "any CPython >= 3.10" if entry["python_needed"] == "any" else f"Python ABI {entry['python_needed']}"
    archs = f", CUDA {' '.join(entry['cuda_archs'])}" if entry["cuda_archs"] else ""
    return (
        f"for torch {entry['torch_needed']}, {python}, {entry['platform']}{archs}; "
        f"built {entry['built_at'][:10]} by {' and '.join(entry['compilers'])}"
    )


def _registered_rows(packages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for package in packages:
        text = Text(f"{package['module']}: {', '.join(package['ops']) or 'no ops'}")
        for reason in package["reasons"]:
            text.append(f"\n{reason}", style="yellow")
        rows.append((package["label"], text))
    return rows


def sycl_rows(sycl: dict[str, Any]) -> list[tuple[str, Any]]:
    """The SYCL section: one row for each toolchain and device."""
    if "error" in sycl:
        return [("toolchains", sycl)]
    rows: list[tuple[str, Any]] = []
    for found in sycl["toolchains"]:
        if found["accepted"]:
            text: Any = Text(f"{'selected: ' if found['chosen'] else 'available: '}{found['detail']}")
        else:
            text = {"error": found["reason"], "remedy": found["remedy"]}
        rows.append((found["name"], text))
    runtime, compiler = sycl["runtime"], sycl["kernel_compiler"]
    rows.append(("runtime", runtime if "error" in runtime else f"libsycl {runtime['version']}, {runtime['prefix']}"))
    compiles = compiler if "error" in compiler else f"{compiler['library']}, for {', '.join(compiler['devices'])}"
    rows.append(("kernel compiler", compiles))
    for device in sycl["devices"]:
        types = [name for name in ("fp16", "fp64") if device[name]]
        rows.append(
            (
                f"device ({device['kind']})",
                f"{device['name']}; {device['platform']}, driver {device['driver']}; {' '.join(types) or 'fp32 only'}",
            )
        )
    return rows


def _environment_rows(environment: dict[str, Any]) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in environment.items():
        is_group = name in ("toolchains", "foreign_packages", "misspelled_variables", "variables")
        rows += value.items() if is_group else [] if name == "sycl" else [(_label(name), value)]
    return rows


def _facts_table(title: str, rows: list[tuple[str, Any]]) -> Group:
    table = Table(show_header=False, box=None, padding=(0, 1))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), _cell(value))
    return Group(Text(title, style="bold"), table)  # not as the table's title, which wraps at its width


def _cell(value: Any) -> Text:
    if isinstance(value, dict) and "error" in value:
        return Text.assemble((value["error"], "yellow"), " ", (value["remedy"], "cyan"))
    return value if isinstance(value, Text) else Text(_text(value))


def _entry_text(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "no"
    if entry["rejected"]:
        return f"ignored: {entry['rejected']} ({entry['directory']})"
    return (
        f"yes: {entry['directory']}, {size_text(entry['size_bytes'])}, "
        f"built {entry['built_at']} in {entry['build_s']:.1f} s "
        f"with torch {entry['torch'] or 'none'} by {' and '.join(entry['compilers'])}, "
        f"{counted(entry['headers'], 'header')}; "
        f"{entry['check']}; fits torch {entry['torch_needed']}"
    )


def _cached_text(data: dict[str, Any]) -> str:
    miss = data["miss"]
    if data["cache_entry"] is not None or miss is None:
        return _entry_text(data["cache_entry"])
    if miss["nearest"] is None:
        return "no: the cache has no entry of this op"
    return "\n".join([f"no; differences from the nearest entry, {miss['nearest']}:", *miss["differences"]])


def _label(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ") if name.islower() else name


def _mark(yes: bool, style_of_no: str = "red") -> Text:
    return Text("yes", style="green") if yes else Text("no", style=style_of_no)


def _text(value: Any, name: str = "") -> str:
    """A fact as words; ``name`` is that of its member in JSON."""
    if isinstance(value, dict):
        return ", ".join(f"{key.removesuffix('_bytes')} {_text(each, key)}" for key, each in value.items()) or "none"
    if isinstance(value, list):
        return " ".join(map(_text, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return size_text(value) if name.endswith("_bytes") else str(value)
