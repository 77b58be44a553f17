"""``python -m op_builder.cache``: what is built, whether it is whole, and what may go."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from op_builder.cache.bundle import export_bundle, import_bundle, misfits
from op_builder.cache.leftovers import leftovers, other_bytes, remove_leftovers, surplus_leftovers, sweep_small
from op_builder.cache.maintenance import Usage, examine, keep_in_bounds, remove, surplus, usages
from op_builder.cache.store import Cache
from op_builder.command_line import run_main
from op_builder.errors import AccelError

_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TIME_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 0, 1 when verify found damage, 2 for an error."""
    options = _parser().parse_args(arguments, argparse.Namespace(json=False, directory=None))
    try:
        # Who looks moves nothing; verify does so after it has looked.
        looks = options.command in ("list", "info", "verify", "export")
        status, data, text = _COMMANDS[options.command](Cache(options.directory, is_ours=not looks), options)
    except AccelError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(data, indent=2))
    else:
        print(text)
    return status


Answer = tuple[int, Any, str]


def _list(cache: Cache, _: argparse.Namespace) -> Answer:
    found = usages(cache)
    total = sum(usage.size_bytes for usage in found)
    lines = [f"{'op':<16}{'key':<14}{'size':>10}  {'last used':<12}{'built in':>9}  torch"]
    lines += [
        f"{usage.entry.manifest.op:<16}{usage.entry.directory.name[:12]:<14}{_size(usage.size_bytes):>10}  "
        f"{_ago(usage.used_at):<12}{usage.entry.manifest.build_s:>8.1f}s  {usage.entry.manifest.torch}"
        for usage in found
    ]
    others = other_bytes(cache)
    lines.append(
        f"{_entries(len(found))}, {_size(total)} in {cache.root}; besides, {_size(others)} of logs, entries set aside, "
        "locks and memos"
    )
    data = {"directory": str(cache.root), "entries": [_facts(usage) for usage in found], "other_bytes": others}
    return 0, data, "\n".join(lines)


def _info(cache: Cache, options: argparse.Namespace) -> Answer:
    found = usages(cache, options.op)
    if not found:
        raise AccelError(
            f"Op {options.op!r} has no entry in {cache.root}.", "python -m op_builder.cache list shows what there is."
        )
    data = [{**_facts(usage), "manifest": json.loads(usage.entry.manifest.to_json())} for usage in found]
    blocks = []
    for usage in found:
        manifest = usage.entry.manifest
        rows = {
            "directory": usage.entry.directory,
            "binary": f"{manifest.artifact}, {manifest.size_bytes} bytes, sha256 {manifest.sha256}",
            "built": f"{manifest.built_at} in {manifest.build_s} s with torch {manifest.torch}",
            "tried": manifest.check,
            "last used": _ago(usage.used_at) + (", in use now" if usage.is_mapped else ""),
            **manifest.key_parts,
            "headers": ", ".join(header.path for header in manifest.headers) or "none",
        }
        blocks.append("\n".join(f"{name:<16} {value}" for name, value in rows.items()))
    return 0, data, "\n\n".join(blocks)


def _verify(cache: Cache, _: argparse.Namespace) -> Answer:
    whole, damaged = examine(cache)
    mover = Cache(cache.root)
    lines, kept = [], []
    for directory, reason in damaged.items():
        mover.set_aside(directory, reason)
        if directory.exists():
            kept.append(str(directory))
        lines.append(f"damaged, {'cannot be moved' if directory.exists() else 'set aside'}: {directory}: {reason}")
    lines.append(f"{_entries(len(whole))} whole.")
    if kept:
        lines.append(f"Remedy: have somebody verify it who may write {cache.root}; load() passes over what is damaged.")
    data = {"whole": len(whole), "damaged": [str(directory) for directory in damaged], "cannot_be_moved": kept}
    return int(bool(damaged)), data, "\n".join(lines)


def _prune(cache: Cache, options: argparse.Namespace) -> Answer:
    if options.max_size is None and options.older_than is None and not options.unused:
        raise AccelError(
            "prune was not told what may go.", "Give --max-size, --older-than or --unused; clear removes all."
        )
    found, others = usages(cache), leftovers(cache)
    excess = 0
    if options.max_size is not None:
        sizes = [*(usage.size_bytes for usage in found), *(item.size_bytes for item in others)]
        excess = sum(sizes) - options.max_size
    freed = sweep_small(cache)
    freed += remove_leftovers(surplus_leftovers(others, excess_bytes=excess, older_than_s=options.older_than))
    going, held = surplus(
        found, max_size_bytes=options.max_size, older_than_s=options.older_than, unused=options.unused
    )
    status, data, text = _removed(cache, going, freed)
    data["kept"] = [str(usage.entry.directory) for usage in held]
    if held:
        text += f"\n{_entries(len(held))} kept that would go: a process has them open, or used them within a minute."
    return status, data, text


def _clear(cache: Cache, _: argparse.Namespace) -> Answer:
    found = usages(cache)
    busy = [usage for usage in found if usage.is_mapped]
    freed = remove_leftovers(leftovers(cache)) + sweep_small(cache, all_of_them=True)
    status, data, text = _removed(cache, [usage for usage in found if not usage.is_mapped], freed)
    data["in_use"] = [str(usage.entry.directory) for usage in busy]
    if busy:
        text += f"\n{_entries(len(busy))} in use by a process and kept."
    return status, data, text


def _export(cache: Cache, options: argparse.Namespace) -> Answer:
    # A precompiled header serves the compiler of this machine alone.
    built = [entry for entry in cache.entries() if entry.manifest.kind != "header"]
    entries = [entry for entry in built if not options.ops or entry.manifest.op in options.ops]
    missing = set(options.ops) - {entry.manifest.op for entry in entries}
    if missing:
        raise AccelError(
            f"Not in the cache: {', '.join(sorted(missing))}.",
            f"Build first: python -m op_builder.build {' '.join(sorted(missing))}.",
        )
    count = export_bundle(entries, options.file)
    data = {"file": str(options.file), "entries": count, "size_bytes": options.file.stat().st_size}
    return 0, data, f"{_entries(count)} written to {options.file} ({_size(data['size_bytes'])})."


def _import(cache: Cache, options: argparse.Namespace) -> Answer:
    entries = import_bundle(cache, options.file)
    keep_in_bounds(cache)
    data, lines = [], []
    for entry in entries:
        op, key, differences = entry.manifest.op, entry.directory.name, misfits(entry.manifest, cache.memo)
        data.append({"op": op, "key": key, "fits": not differences, "differences": differences})
        lines.append(f"{op} {key[:12]}: {'will not be used on this machine' if differences else 'fits this machine'}")
        lines += [f"    {difference}" for difference in differences]
    useless = sum(not item["fits"] for item in data)
    lines.append(
        f"{_entries(len(entries))} imported into {cache.root}"
        + (f", {useless} of them for another machine." if useless else ".")
    )
    return 0, {"entries": data}, "\n".join(lines)


_COMMANDS = {
    "list": _list,
    "info": _info,
    "verify": _verify,
    "prune": _prune,
    "clear": _clear,
    "export": _export,
    "import": _import,
}


def _parser() -> argparse.ArgumentParser:
    # Before the command or behind it: what is not given at one place must not undo what stands at the other.
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--json", action="store_true", help="print JSON; sizes are bytes")
    common.add_argument("--directory", type=Path, metavar="DIR", help="the cache directory (default: as the library)")
    parser = argparse.ArgumentParser(
        prog="python -m op_builder.cache",
        description="What is built, whether it is whole, and what may go.",
        parents=[common],
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", parents=[common], help="all entries, the last used first")
    info = commands.add_parser("info", parents=[common], help="everything about the entries of one op")
    info.add_argument("op", metavar="OP")
    commands.add_parser("verify", parents=[common], help="check every binary; set damaged entries aside")
    prune = commands.add_parser(
        "prune",
        parents=[common],
        help="remove entries, and logs and what was set aside before them; what was in use within a minute stays",
    )
    prune.add_argument("--max-size", type=_bytes, metavar="SIZE", help="the least lately used go until 500M are left")
    prune.add_argument("--older-than", type=_seconds, metavar="AGE", help="those not used for so long go: 30d")
    prune.add_argument("--unused", action="store_true", help="all but the last used of each op go")
    commands.add_parser("clear", parents=[common], help="remove all but what is in use: entries, logs, locks, memos")
    export = commands.add_parser("export", parents=[common], help="write entries into a file for another machine")
    export.add_argument("file", type=Path, metavar="FILE")
    export.add_argument("ops", nargs="*", metavar="OP", help="only these ops")
    bring = commands.add_parser("import", parents=[common], help="take the entries of such a file")
    bring.add_argument("file", type=Path, metavar="FILE")
    return parser


def _removed(cache: Cache, going: list[Usage], freed_bytes: int) -> Answer:
    freed = freed_bytes + remove(cache, going)
    data: dict[str, Any] = {"removed": [str(usage.entry.directory) for usage in going], "freed_bytes": freed}
    return 0, data, f"{_entries(len(going))} removed, {_size(freed)} freed."


def _facts(usage: Usage) -> dict[str, Any]:
    manifest = usage.entry.manifest
    return {
        "op": manifest.op,
        "key": usage.entry.directory.name,
        "directory": str(usage.entry.directory),
        "size_bytes": usage.size_bytes,
        "last_used": int(usage.used_at),
        "in_use": usage.is_mapped,
        "built_at": manifest.built_at,
        "build_s": manifest.build_s,
        "torch": manifest.torch,
    }


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size like 500M or 2G")
    return int(float(match[1]) * _SIZE_UNITS[match[2].upper()])


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age like 12h or 30d")
    return float(match[1]) * _TIME_UNITS_S[match[2]]


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB" if size_bytes >= 1 << 20 else f"{size_bytes / 1024:.0f} KiB"


def _ago(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    for unit, length in reversed(_TIME_UNITS_S.items()):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"


if __name__ == "__main__":
    run_main(main)
