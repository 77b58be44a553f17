"""``accel-ops doctor``: what does not work on this machine and what to do about it, and where a file can load."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from op_builder.command_line import printable, reports_errors, run_main

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
    options = parser.parse_args(arguments)
    if files := list(filter(_is_file, options.ops)):
        if len(options.ops) > 1:
            parser.error("only one file can be checked at a time")
        return _check_file(Path(files[0]), as_json=options.json)
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


def _is_file(name: str) -> bool:
    is_library = re.search(r"\.(so[.\d]*|whl|zip|pyd|dll|dylib)$", name)
    return "/" in name or bool(is_library) or ("." in name and Path(name).exists())


def _check_file(path: Path, *, as_json: bool) -> int:
    from packaging.tags import sys_tags

    from op_builder.report.destinations import this_machine
    from op_builder.report.extension_file import read_file, tag_requirement
    from op_builder.report.known_symbols import known_symbols
    from op_builder.report.requirements import requirements_of

    file, known, machine = read_file(path), known_symbols(), this_machine(path.parent.resolve())

    here = {binary.name: requirements_of(binary, known, machine) for binary in file.binaries}
    tag = tag_requirement(file, sys_tags())
    found = {
        "file": str(path),
        "loads_here": not any(one.reason for requirements in here.values() for one in requirements),
        "known_torch": known.torch,
        "tag": tag._asdict() if tag else None,
        "libraries": {name: [one._asdict() for one in requirements] for name, requirements in here.items()},
    }
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print(printable(_demangled(_report(found))))
    return 0 if found["loads_here"] and not (tag and tag.reason) else 1


def _report(found: dict[str, Any]) -> str:
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
    return "\n".join(lines)


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
