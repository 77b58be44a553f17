"""``accel-ops cache``: what is built, whether it is intact, and what may be removed."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from op_builder.cache import eviction, layout
from op_builder.cache.bundle import differences_here, export_bundle, import_bundle
from op_builder.cache.eviction import Item, Usage
from op_builder.cache.ownership import unusable
from op_builder.cache.removal import folder
from op_builder.cache.store import Cache
from op_builder.command_line import parse_size, printable, reports_errors, run_main
from op_builder.commands.rebuild import rebuild
from op_builder.errors import AccelError, CacheError
from op_builder.messages import counted, did_you_mean, size_text
from op_builder.system.outcomes import Rejection

_NO_GROUP = (1 << 32) - 1  # (gid_t)-1: no group; no id is larger
_TIME_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NOT_READABLE = "of another version of accel-ops, or damaged"
_TIME_WORDS = {"s": "second", "m": "minute", "h": "hour", "d": "day"}

Answer = tuple[int, Any, str]
"""The exit status, the JSON data and the text of a command."""


@reports_errors
def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.cache") -> int:
    """The command line; returns the exit status: 0, 1 when verify found damage, 2 for an error."""
    options = _parser(prog).parse_args(arguments, argparse.Namespace(json=False, directory=None))
    # Commands that only read move no damaged entry; verify moves them after it has read all.
    only_reads = options.command in ("list", "info", "verify", "export")
    cache = Cache(options.directory, is_ours=not only_reads)
    if only_reads or options.command in ("prune", "clear"):
        _require_readable(cache.root)
    if options.command in ("prune", "clear"):
        cache.require_ours()
    _require_entries(cache, getattr(options, "ops", []))
    status, data, text = _COMMANDS[options.command](cache, options)
    print(json.dumps(data, indent=2) if options.json else printable(text))
    return status


def _require_readable(root: Path) -> None:
    try:
        os.listdir(root)
    except FileNotFoundError:  # nothing is built yet
        pass
    except OSError as error:
        raise CacheError(
            f"The cache directory {root} cannot be read: {error.strerror}.",
            f"Run `chmod u+rwx {root}` as its owner, or pass another directory: --directory DIRECTORY.",
        ) from None


def _require_entries(cache: Cache, ops: Sequence[str]) -> None:
    present = {usage.op for usage in eviction.usages(cache)} if ops else set()
    for op in ops:
        if op not in present:
            raise AccelError(
                f"The cache {cache.root} has no entry of {op!r}. {did_you_mean(op, present)}".rstrip(),
                f"`accel-ops cache list` shows all entries; `accel-ops build {op}` makes one.",
            )


def _list(cache: Cache, options: argparse.Namespace) -> Answer:
    found, others = eviction.usages(cache, options.ops), eviction.other_bytes(cache)
    width = max((len(usage.op) for usage in found), default=2) + 2
    lines = [f"{'op':<{width}}{'key':<14}{'size':>10}  {'last used':<16}{'built in':>9}  torch"]
    for usage in found:
        line = (
            f"{usage.op:<{width}}{usage.path.name[:12]:<14}{size_text(usage.size_bytes):>10}  {_ago(usage.used_at):<16}"
        )
        if usage.entry is not None:
            lines.append(f"{line}{usage.entry.manifest.build_s:>7.1f} s  {usage.entry.manifest.torch or 'none'}")
        else:
            lines.append(f"{line}{'':>9}  {_NOT_READABLE}")
    size, other_size = size_text(sum(usage.size_bytes for usage in found)), size_text(others)
    lines.append(
        f"{_entries(found)}, {size} in {cache.root}; also {other_size} of logs, entries set aside, locks and memos"
    )
    data = {"directory": str(cache.root), "entries": [_facts(usage) for usage in found], "other_bytes": others}
    return 0, data, "\n".join(lines)


def _info(cache: Cache, options: argparse.Namespace) -> Answer:
    blocks, data = [], []
    for usage in eviction.usages(cache, options.ops):
        if usage.entry is None:
            blocks.append(f"{'directory':<16} {usage.path}: {_NOT_READABLE}")
            continue
        manifest = usage.entry.manifest
        rows = {
            "directory": usage.path,
            "binary": f"{manifest.artifact}, {manifest.size_bytes} bytes, sha256 {manifest.sha256}",
            "built": f"{manifest.built_at} in {manifest.build_s:.1f} s with torch {manifest.torch or 'none'}",
            "tried": manifest.check,
            "last used": _ago(usage.used_at),
            **manifest.key_parts,
            "headers": ", ".join(header.path for header in manifest.headers) or "none",
        }
        blocks.append("\n".join(f"{name:<16} {value}" for name, value in rows.items()))
        data.append({**_facts(usage), "manifest": json.loads(manifest.to_json())})
    return 0, data, "\n\n".join(blocks)


def _verify(cache: Cache, options: argparse.Namespace) -> Answer:
    whole, damaged = eviction.examine(cache)
    mover = Cache(cache.root)
    lines, kept = [], []
    for directory, rejection in damaged.items():
        mover.set_aside(directory, rejection)
        result = "set aside"
        if os.path.lexists(directory):
            kept.append(str(directory))
            result = "cannot be moved"
        lines.append(f"damaged, {result}: {directory}: {rejection.reason}")
    lines.append(f"{_entries(whole)} intact.")
    if kept:
        lines.append(f"Remedy: run verify as a user who may write {cache.root}; load() ignores damaged entries.")
    data = {"whole": len(whole), "damaged": list(map(str, damaged)), "cannot_be_moved": kept}
    status = int(bool(damaged))
    if options.rebuild:
        compared = rebuild(cache, whole)
        lines += map(str, compared)
        data["rebuilt"] = [
            {
                "op": each.entry.manifest.op,
                "key": each.entry.digest,
                "differences": [each.difference] if each.difference else [],
                "reason": each.reason,
            }
            for each in compared
        ]
        status |= any(each.difference for each in compared)
    return status, data, "\n".join(lines)


def _prune(cache: Cache, options: argparse.Namespace) -> Answer:
    older_than = options.older_than
    if options.max_size is None and older_than is None and not options.unused:
        if not options.ops:
            raise AccelError(
                "prune needs a criterion: ops, --max-size, --older-than or --unused.",
                "`accel-ops cache prune --unused` keeps the newest of each op; `accel-ops cache clear` removes all.",
            )
        older_than = -math.inf
    freed = eviction.sweep_small(cache)
    removable, protected = eviction.surplus(
        cache, max_size_bytes=options.max_size, older_than_s=older_than, unused=options.unused, ops=options.ops
    )
    data, text = _removed(cache, removable, freed)
    data["kept"] = [str(usage.path) for usage in protected]
    if protected:
        text += f"\n{_entries(protected)} kept: used within the last minute."
    return 0, data, text


def _clear(cache: Cache, _: argparse.Namespace) -> Answer:
    found = eviction.usages(cache)
    data, text = _removed(cache, [*found, *eviction.leftovers(cache)], eviction.sweep_small(cache, all_of_them=True))
    return 0, data, text


def _export(cache: Cache, options: argparse.Namespace) -> Answer:
    ops = options.ops
    entries = [
        entry for entry in cache.entries() if (entry.manifest.op in ops if ops else entry.manifest.kind != "header")
    ]
    count = export_bundle(cache, entries, options.file)
    data = {"file": str(options.file), "entries": count, "size_bytes": options.file.stat().st_size}
    return 0, data, f"{_entries(entries)} written to {options.file} ({size_text(data['size_bytes'])})."


def _import(cache: Cache, options: argparse.Namespace) -> Answer:
    entries = import_bundle(cache, options.file)
    eviction.keep_in_bounds(cache)
    data, lines = [], []
    for entry in entries:
        differences = differences_here(entry.manifest, cache.memo)
        op, key = entry.manifest.op, entry.digest
        data.append({"op": op, "key": key, "fits": not differences, "differences": differences})
        lines.append(f"{op} {key[:12]}: {'will not be used on this machine' if differences else 'fits this machine'}")
        lines += [f"    {difference}" for difference in differences]
    useless = sum(not item["fits"] for item in data)
    lines.append(
        f"{_entries(entries)} imported into {cache.root}"
        + (f", {useless} of them for another machine." if useless else ".")
    )
    return 0, {"entries": data}, "\n".join(lines)


def _init(cache: Cache, options: argparse.Namespace) -> Answer:
    _share(cache, options.shared)
    sharers = "all users may read it" if options.readers else f"the members of group {options.shared} may write it"
    directory, user = cache.root.resolve(), os.geteuid()
    text = f"{directory} is a cache; {sharers}. Set ACCEL_CACHE_DIR={directory} for the programs that use it."
    if user != 0:
        text += f" Users who trust you also set ACCEL_CACHE_TRUST={user}."
    return 0, {"directory": str(directory), "group": options.shared}, text


def _share(cache: Cache, group: int | None) -> None:
    """Make an empty cache that all users may read, and that the members of ``group`` may write."""
    root = cache.root
    with cache.errors_explained():
        cache.require_ours()
        for name in layout.GENERATED:
            with folder(root, name) as opened:
                if opened is not None and opened.names():
                    remedy = "Name a new directory with --directory, or clear this one first."
                    raise unusable(root, Rejection(f"It has content already ({name}).", remedy))
        layout.claim(root)
        mode = layout.OPEN_TO_READERS if group is None else layout.OPEN_TO_GROUP
        folders = [root / layout.HOME / name for name in layout.GENERATED]
        for directory in folders:
            layout.make_directory(directory, mode)
        for directory in (*folders, root / layout.HOME, root):
            if group is not None:
                os.chown(directory, -1, group)
            os.chmod(directory, mode)
        layout.sign(root, group)


_COMMANDS = {
    "init": _init,
    "list": _list,
    "info": _info,
    "verify": _verify,
    "prune": _prune,
    "clear": _clear,
    "export": _export,
    "import": _import,
}


def _parser(prog: str) -> argparse.ArgumentParser:
    # Accepted before and after the command: an option missing in one place must not reset the other.
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--json", action="store_true", help="print JSON; sizes are bytes")
    common.add_argument(
        "--directory", type=Path, metavar="DIR", help="the cache directory (default: the one that builds use)"
    )
    parser = argparse.ArgumentParser(
        prog=prog,
        description="List, verify, remove, export, import and share built ops.",
        epilog=f"Example: '{prog} list'.",
        parents=[common],
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, help_text: str, example: str = "", ops: str = "") -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            parents=[common],
            help=help_text,
            description=f"{help_text[0].upper()}{help_text[1:]}.",
            epilog=f"Example: '{f'{prog} {name} {example}'.rstrip()}'.",
        )
        if ops:
            command.add_argument("ops", nargs=ops, metavar="OP", help="only its entries, such as cpu_adam")
        return command

    init = add("init", "make a cache for several users", "--readers --directory /srv/ops")
    sharers = init.add_mutually_exclusive_group(required=True)
    sharers.add_argument(
        "--shared",
        type=_group,
        metavar="GROUP",
        help="the members of this group read and write it; each of them can run code as the others",
    )
    sharers.add_argument("--readers", action="store_true", help="all users read it; only you write it")
    add("list", "list the entries, the most recently used first", ops="*")
    add("info", "show everything about the entries of an op", "cpu_adam", ops="+")
    verify = add("verify", "check every binary; set damaged entries aside")
    verify.add_argument(
        "--rebuild", action="store_true", help="also compile each op again, and report binaries with other bytes"
    )
    prune = add(
        "prune",
        "remove entries by op, size, age or use, logs and set-aside entries first; keep those used within a minute",
        "--older-than 30d",
        ops="*",
    )
    prune.add_argument(
        "--max-size",
        type=parse_size,
        metavar="SIZE",
        help="remove the least recently used entries until the rest fits SIZE, such as 500M",
    )
    prune.add_argument(
        "--older-than", type=_seconds, metavar="AGE", help="remove entries not used for this long, such as 30d"
    )
    prune.add_argument("--unused", action="store_true", help="remove all but the most recently used entry of each op")
    add("clear", "remove everything: entries, logs, locks, memos")
    export = add("export", "write entries into a file for another machine", "ops.tar cpu_adam")
    export.add_argument("file", type=Path, metavar="FILE", help="the file to write")
    export.add_argument("ops", nargs="*", default=[], metavar="OP", help="only its entries, such as cpu_adam")
    add("import", "add the entries of an exported file", "ops.tar").add_argument(
        "file", type=Path, metavar="FILE", help="the file that export wrote"
    )
    return parser


def _removed(cache: Cache, items: Iterable[Item], freed_bytes: int) -> tuple[dict[str, Any], str]:
    entries = [item for item in items if isinstance(item, Usage)]
    freed = freed_bytes + eviction.remove(cache, items)
    data: dict[str, Any] = {"removed": [str(usage.path) for usage in entries], "freed_bytes": freed}
    return data, f"{_entries(entries)} removed, {size_text(freed)} freed."


def _facts(usage: Usage) -> dict[str, Any]:
    manifest = usage.entry.manifest if usage.entry is not None else None
    return {
        "op": usage.op,
        "key": usage.path.name,
        "directory": str(usage.path),
        "size_bytes": usage.size_bytes,
        "last_used": int(usage.used_at),
        "built_at": manifest.built_at if manifest else None,
        "build_s": manifest.build_s if manifest else None,
        "torch": manifest.torch if manifest else None,
    }


def _group(text: str) -> int:
    import grp

    try:
        group = int(text) if text.isdecimal() else grp.getgrnam(text).gr_gid
    except (KeyError, ValueError):
        group = _NO_GROUP
    if group >= _NO_GROUP:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a group of this system")
    if os.geteuid() != 0 and group not in (os.getegid(), *os.getgroups()):
        raise argparse.ArgumentTypeError(f"you are not a member of group {text!r}")
    return group


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age like 12h or 30d")
    return float(match[1]) * _TIME_UNITS_S[match[2]]


def _entries(found: Sequence[object]) -> str:
    return counted(len(found), "entry", "entries")


def _ago(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    for unit, length in reversed(_TIME_UNITS_S.items()):
        if seconds >= length:
            return f"{counted(round(seconds / length), _TIME_WORDS[unit])} ago"
    return "now"


if __name__ == "__main__":
    run_main(main)
