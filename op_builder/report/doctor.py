"""``accel-ops doctor``: what does not work on this machine and what to do about it, and where a file can load."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from op_builder.command_line import printable, reports_errors, run_main

if TYPE_CHECKING:
    from op_builder.report.requirements import Machine, Requirement

_SYMBOL_CHARS = 60


@reports_errors
def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.report.doctor") -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="List what does not work on this machine, with the reason and a remedy. For the file of a native "
        "extension or a wheel, list the releases of torch, the Pythons, systems and CPUs with which it loads, and the "
        "symbols that decide; nothing of it is executed.",
        epilog=f"Example: '{prog} cpu_adam'. Exit status: 1 if a named op does not work, no accelerator can be used, "
        "a library in the file does not load here or the wheel's tag does not fit; "
        "2 if an op is unknown or the file cannot be read; otherwise 0.",
    )
    parser.add_argument(
        "ops",
        nargs="*",
        metavar="OP|FILE",
        help="check these ops: cpu_adam, CPUAdamBuilder or package.module:Builder; or one file: x.so, ./x, x.whl",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--torch",
        type=_releases,
        default=[],
        metavar="X.Y,...",
        help="with a file: also predict for CPU builds of these releases",
    )
    options = parser.parse_args(arguments)
    if files := list(filter(_is_file, options.ops)):
        if len(options.ops) > 1:
            parser.error("only one file can be checked at a time")
        return _check_file(Path(files[0]), options.torch, as_json=options.json)
    if options.torch:
        parser.error("--torch needs a file")
    from rich.console import Console

    from op_builder.report.collect import diagnosis

    with Console(stderr=True).status("Checking..."):
        found = diagnosis(options.ops)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        working, rejected = found["working"], found["rejected"]
        print(f"Working: {', '.join(working) or 'no op'}.")
        if found["unavailable"]:
            print(f"Only for other devices: {', '.join(found['unavailable'])}.")
        for one in rejected:
            print(f"\n{one['name']}: {one['reason']}")
            if one["remedy"]:
                print(f"  Remedy: {one['remedy']}")
        if not rejected:
            print("No problems found.")
    return 1 if any(options.ops or one["name"] == "accelerator" for one in found["rejected"]) else 0


def _releases(text: str) -> list[str]:
    releases = text.split(",")
    if not all(re.fullmatch(r"\d+\.\d+(\.\d+)?", release) for release in releases):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of releases like 2.10,2.13.0")
    return releases


def _is_file(name: str) -> bool:
    is_library = re.search(r"\.(so[.\d]*|whl|zip|pyd|dll|dylib)$", name)
    return "/" in name or bool(is_library) or ("." in name and Path(name).exists())


def _check_file(path: Path, releases: Sequence[str], *, as_json: bool) -> int:
    from packaging.tags import sys_tags

    from op_builder.report.destinations import this_machine, with_torch
    from op_builder.report.extension_file import read_file, tag_requirement
    from op_builder.report.known_symbols import known_symbols
    from op_builder.report.requirements import requirements_of, short

    file, known, machine = read_file(path), known_symbols(), this_machine(path.parent.resolve())

    def needed(place: Machine) -> dict[str, list[Requirement]]:
        return {binary.name: requirements_of(binary, known, place) for binary in file.binaries}

    here, tag = needed(machine), tag_requirement(file, sys_tags())

    predictions = {}
    for release in releases if file.binaries else ():
        listed = next((name for name in known.torch if short(name) == short(release)), None)
        shown = listed if listed and release == short(release) else release
        predictions[shown] = _reasons(needed(with_torch(machine, listed, known))) if listed else None
    found = {
        "file": str(path),
        "loads_here": not any(_reasons(here).values()),
        "known_torch": known.torch,
        "tag": tag._asdict() if tag else None,
        "libraries": {name: [one._asdict() for one in requirements] for name, requirements in here.items()},
        "torch": predictions,
    }
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print(printable(_demangled(_report(found))))
    return 0 if found["loads_here"] and not (tag and tag.reason) else 1


def _reasons(requirements: dict[str, list[Requirement]]) -> dict[str, str]:
    return {name: next((one.reason for one in found if one.reason), "") for name, found in requirements.items()}


def _report(found: dict[str, Any]) -> str:
    from op_builder.report.requirements import short

    libraries, tag = found["libraries"], found["tag"]
    failing = {name for name, needed in libraries.items() if any(one["reason"] for one in needed)}
    loads = "does not load here" if failing else "loads here"
    if not libraries:
        loads = "it has no libraries and loads wherever its Python code does"
    elif len(libraries) > 1:
        loads = f"{len(libraries) - len(failing)} of {len(libraries)} libraries load here"
    loads += "; its tag does not fit" if tag and tag["reason"] else ""
    lines = [f"{Path(found['file']).name}: {loads}"]
    sections = {"": [tag], **libraries} if tag else {"": next(iter(libraries.values()))}
    for name, needed in sections.items():
        if ".libs/" in name and name not in failing:  # auditwheel added it
            continue
        lines += [f"\n{name}"] if name else []
        for one in needed:
            lines.append(f"  {one['axis']:10} {one['answer']}")
            lines += [f"  {'':10}   {reason}" for reason in one["evidence"].split("; ")]
            lines += [f"  {'':10}   Not here: {one['reason']}."] if one["reason"] else []
    known = " to ".join(short(found["known_torch"][at]) for at in (0, -1))
    lines += [""] if found["torch"] else []
    for release, predicted in found["torch"].items():
        if predicted is None:
            lines.append(f"torch {release}: not known, the lists were made for {known}")
        else:
            lines.append(f"torch {release}+cpu: {_outcome(predicted)}")
    return "\n".join(lines)


def _outcome(reasons: dict[str, str]) -> str:
    failing = {name: reason for name, reason in reasons.items() if reason}
    if not failing:
        return "loads"
    name, reason = next(iter(failing.items()))
    return f"{len(failing)} of {len(reasons)} do not load: {name}: {reason}"


def _demangled(text: str) -> str:
    """``text`` with demangled C++ names; unchanged without binutils."""
    from op_builder.toolchains.compiler_probe import demangled

    names = demangled(sorted(set(re.findall(r"\b_Z\w+", text))))
    shortened = {
        name: shown if len(shown) <= _SYMBOL_CHARS else f"{shown[:_SYMBOL_CHARS]}..." for name, shown in names.items()
    }
    return re.sub(r"\b_Z\w+", lambda match: shortened.get(match[0], match[0]), text)


if __name__ == "__main__":
    run_main(main)
