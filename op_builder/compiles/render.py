"""Starts of compilers as a table, as one line each, and as data for JSON."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from op_builder.command_line import printable
from op_builder.compiles.ledger_rows import Start
from op_builder.compiles.starts import NO_CACHE
from op_builder.messages import counted

_HEAD = "  start       s   CPU s  cache          what"


def table(starts: Sequence[Start], since: float) -> str:
    """A row for each compiler that compiled, with who asked and why below it, and the sums."""
    compiled, queries = [start for start in starts if not start.is_query], [start for start in starts if start.is_query]
    refused = sum(start.is_refused for start in compiled)
    rows = [_sums("compiled", [start for start in compiled if not start.is_refused])]
    if refused:
        rows[0] += f" {counted(refused, 'compiler')} refused."
    if compiled:
        rows += ["", _HEAD]
    for start in compiled:
        times = [start.started - since, start.seconds, start.cpu_seconds]
        figures = " ".join(f"{'?' if value is None else format(value, '.2f'):>7}" for value in times)
        rows.append(f"{figures}  {start.cache:<14} {start.what}{' (refused)' if start.is_refused else ''}")
        rows += [f"{'':25}{text}" for text in (start.program, start.library, start.reason) if text]
    if queries:
        rows += ["", _sums("only preprocessed or answered a question, such as --version", queries)]
    return printable("\n".join(rows))


def _sums(what: str, starts: Sequence[Start]) -> str:
    if not starts:
        return "Nothing was compiled."
    seconds, cpu = (sum(getattr(start, name) or 0 for start in starts) for name in ("seconds", "cpu_seconds"))
    by_cache = Counter(start.cache for start in starts)
    named = ", ".join(f"{cache} {count}" for cache, count in by_cache.items())
    return f"{counted(len(starts), 'compiler')} {what}: {seconds:.2f} s, CPU {cpu:.2f} s ({named})."


def line(start: Start) -> str:
    """A line for a log."""
    asked = f", asked by {start.program or start.library}" if start.program or start.library else ""
    compiler = start.compiler.rpartition("/")[2]
    for_cache = "" if start.cache == NO_CACHE else f" for {start.cache}"
    verb = " was refused:" if start.is_refused else " compiles"
    return printable(f"{f'{compiler}{verb}' if compiler else 'compiling'} {start.what}{for_cache}{asked}")


def as_dict(starts: Sequence[Start], since: float) -> dict[str, Any]:
    """``{"compiled": [...], "queries": [...], "seconds": ..., "cpu_seconds": ...}``."""
    compiled = [start for start in starts if not start.is_query]
    return {
        "seconds": round(sum(start.seconds or 0 for start in compiled), 6),
        "cpu_seconds": round(sum(start.cpu_seconds or 0 for start in compiled), 6),
        "compiled": [_row(start, since) for start in compiled],
        "queries": [_row(start, since) for start in starts if start.is_query],
    }


def _row(start: Start, since: float) -> dict[str, Any]:
    row = start._asdict()
    row.update(command=shlex.join(start.command), stack=start.stack.splitlines())
    row["started"] = start.started - since
    row.update({name: round(value, 6) for name, value in row.items() if isinstance(value, float)})
    del row["is_query"]
    return row
