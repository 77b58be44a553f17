"""Starts of compilers as a table, as one line each, and as data for JSON."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from op_builder.command_line import printable
from op_builder.compiles.ledger_rows import Start
from op_builder.compiles.starts import NO_CACHE
from op_builder.messages import counted

_UNWATCHED = "Such a program is linked statically or setuid, or LD_PRELOAD was changed or cannot be loaded."
_HEAD = "  start       s   CPU s  cache          what"


def table(starts: Sequence[Start], since: float, unwatched: Sequence[str]) -> str:
    """A row for each compiler that compiled, with what started it and why below it, and the sums."""
    compiled, queries = [start for start in starts if not start.is_query], [start for start in starts if start.is_query]
    refused = sum(start.is_refused for start in compiled)
    rows = [_sums("compiled", [start for start in compiled if not start.is_refused])]
    if refused:
        rows[0] += f" {counted(refused, 'compiler')} refused."
    if compiled:
        rows += ["", _HEAD]
    for start in compiled:
        times = [start.started - since, start.seconds, start.cpu_seconds]
        figures = " ".join(f"{'-' if value is None else format(value, '.2f'):>7}" for value in times)
        rows.append(f"{figures}  {start.cache:<14} {start.what}{' (refused)' if start.is_refused else ''}")
        rows += [f"{'':25}{text}" for text in (start.program, start.library, start.reason) if text]
    if queries:
        rows += ["", _sums("only preprocessed or answered a question, such as --version", queries)]
    if unwatched:
        names = Counter(os.path.basename(file) for file in unwatched)
        named = ", ".join(name if count == 1 else f"{name} ({count} times)" for name, count in names.items())
        rows += ["", f"Not watched: {named}. Compilers that they started are not listed. {_UNWATCHED}"]
    return printable("\n".join(rows))


def _sums(what: str, starts: Sequence[Start]) -> str:
    if not starts:
        return "Nothing was compiled."
    times = [_total(starts, name) for name in ("seconds", "cpu_seconds")]
    seconds, cpu = ("-" if total is None else f"{total:.2f} s" for total in times)
    by_cache = Counter(start.cache for start in starts)
    named = ", ".join(f"{cache} {count}" for cache, count in by_cache.items())
    return f"{counted(len(starts), 'compiler')} {what}: {seconds}, CPU {cpu} ({named})."


def _total(starts: Sequence[Start], name: str) -> float | None:
    """The sum of the known times; None if there are starts and none of their times is known."""
    known = [value for start in starts if (value := getattr(start, name)) is not None]
    return sum(known) if known or not starts else None


def line(start: Start) -> str:
    """A line for a log."""
    starter = f", started by {start.program or start.library}" if start.program or start.library else ""
    compiler = start.compiler.rpartition("/")[2]
    for_cache = "" if start.cache == NO_CACHE else f" for {start.cache}"
    verb = " was refused:" if start.is_refused else " compiles"
    return printable(f"{f'{compiler}{verb}' if compiler else 'compiling'} {start.what}{for_cache}{starter}")


def as_dict(starts: Sequence[Start], since: float, unwatched: Sequence[str]) -> dict[str, Any]:
    """``{"compiled": [...], "queries": [...], "unwatched": [...], "seconds": ..., "cpu_seconds": ...}``."""
    compiled = [start for start in starts if not start.is_query]
    ran = [start for start in compiled if not start.is_refused]
    totals = {name: _total(ran, name) for name in ("seconds", "cpu_seconds")}
    return {
        **{name: None if total is None else round(total, 6) for name, total in totals.items()},
        "compiled": [_row(start, since) for start in compiled],
        "queries": [_row(start, since) for start in starts if start.is_query],
        "unwatched": list(unwatched),
    }


def _row(start: Start, since: float) -> dict[str, Any]:
    row = start._asdict()
    row.update(command=shlex.join(start.command), stack=start.stack.splitlines())
    row["started"] = start.started - since
    row.update({name: round(value, 6) for name, value in row.items() if isinstance(value, float)})
    del row["is_query"]
    return row
