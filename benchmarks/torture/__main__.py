"""What JIT builders survive: each contender in each case, and what was observed.

    python -m benchmarks.torture [--contenders NAME ...] [--cases WORD ...] [--missing] [--json FILE] [--write]

"right" means that the op returned what its current sources say. An outcome is what was seen from outside: the returned
value, the exit status, the compilers that were started. It never follows from a contender's code. Some cases need root
or FUSE. A complete run takes more than an hour.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import json
import os
import pkgutil
import platform
import shutil
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import _measure
from benchmarks.torture import cases
from benchmarks.torture.bench import BAD, CROWDED, NONE, RIGHT, Bench, NotApplicable, Outcome, show_progress
from benchmarks.torture.contenders import CONTENDERS, Contender, named

RESULTS = _measure.ROOT / "benchmarks" / "results"
# The table stands between these lines.
PAGE, BEGIN, END = RESULTS.parent / "RESULTS.md", "<!-- generated: torture -->", "<!-- end -->"
MOST_CHARACTERS = 300
GROUPS = {
    "hang": "Hang",
    "lie": "Lie: is it the op of these sources?",
    "tear": "Tear: half-written and damaged files",
    "starve": "Starve: little memory, few processes, many ranks",
    "trust": "Trust: whose code is run?",
    "tell": "Report: what the user learns",
}


def case_names(words: list[str]) -> list[str]:
    """The cases whose names contain one of ``words``, group by group."""
    names = [module.name for module in pkgutil.iter_modules(cases.__path__)]
    found = [name for group in GROUPS for name in names if name.startswith(f"{group}_")]
    chosen = [name for name in found if not words or any(word in name for word in words)]
    if not chosen:
        raise SystemExit(f"No case is named {' or '.join(words)}. Choose from: {', '.join(found)}.")
    return chosen


def title(case: str) -> str:
    """What a case does, for the table: the first line of its file."""
    return (importlib.import_module(f"benchmarks.torture.cases.{case}").__doc__ or case).splitlines()[0]


def cell(row: dict[str, Any] | None) -> str:
    """An outcome in the table, with the figure that was measured; empty if there is none."""
    if row is None:
        return ""
    word = f"**{row['outcome']}**" if row["outcome"] in BAD else row["outcome"]
    figure = f": {row['detail']}" if row["outcome"] in (RIGHT, CROWDED) and row["detail"] else ""
    return f"{word}{figure}{' (quick)' if row['quick'] else ''}"


def observe(contender: Contender, case: str, is_quick: bool) -> dict[str, Any]:
    """Run one case with one contender in a directory that is removed afterwards; the row of the outcome."""
    directory = Path(tempfile.mkdtemp(prefix="torture-"))
    started = time.monotonic()
    bench = Bench(contender, directory / "bench", is_quick)
    try:
        outcome: Outcome = importlib.import_module(f"benchmarks.torture.cases.{case}").run(bench)
    except NotApplicable as reason:
        outcome = Outcome(NONE, str(reason))
    except Exception:  # a fault of the case is a finding, and the other cases still run
        outcome = Outcome("FAULT OF THE CASE", traceback.format_exc(limit=-1).strip().replace("\n", " | "))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    seconds = time.monotonic() - started
    outcome = dataclasses.replace(outcome, detail=without_places(outcome.detail, bench))
    detail = f" ({outcome.detail})" if outcome.detail else ""
    show_progress(f"{contender.name:26} {case:24} {outcome.word}{detail}  {seconds:.0f} s")
    return {
        "outcome": outcome.word,
        "detail": outcome.detail,
        "seconds": round(seconds, 1),
        "date": time.strftime("%Y-%m-%d"),
        "quick": bench.is_shortened,
    }


def without_places(text: str, bench: Bench) -> str:
    """The start of a line of output, without the directories of this machine and this run."""
    return text.replace(str(bench.root), "BENCH").replace(sys.prefix, "ENVIRONMENT")[:MOST_CHARACTERS]


class Record:
    """What was observed so far, in a file that is complete after each case, so that a run may be interrupted.

    Outcomes of earlier runs stay in it until the same case is observed with the same contender again.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self._lock = path, threading.Lock()
        empty: dict[str, Any] = {"machine": "", "outcomes": {}}
        self.data = json.loads(path.read_text()) if path is not None and path.exists() else empty

    def add(self, contender: Contender, case: str, row: dict[str, Any]) -> None:
        """Add the row of an outcome and write the file."""
        with self._lock:
            self.data["machine"] = f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}"
            self.data["outcomes"].setdefault(case, {})[contender.name] = row
            if self.path is not None:
                staged = self.path.with_suffix(".staged")
                staged.write_text(json.dumps(self.data, indent=1) + "\n")
                staged.replace(self.path)


def markdown(record: dict[str, Any]) -> str:
    """The table, a section for each group of cases."""
    outcomes: dict[str, dict[str, dict[str, Any]]] = record["outcomes"]
    seen = {one.name: [row[one.name] for row in outcomes.values() if one.name in row] for one in CONTENDERS}
    who = [name for name, rows in seen.items() if rows]
    lines = [f"| | {' | '.join(who)} |", "|---" * (len(who) + 1) + "|"]
    for text, member in (("version", "version"), ("date", "date")):
        values = (", ".join(sorted({row[member] for row in seen[name]})) for name in who)
        lines.append(f"| {text} | {' | '.join(values)} |")
    for group, heading in GROUPS.items():
        cases_of_group = [case for case in case_names([]) if case.startswith(f"{group}_") and case in outcomes]
        if cases_of_group:
            lines.append(f"| **{heading}** |" + " |" * len(who))
        for case in cases_of_group:
            lines.append(f"| {title(case)} | {' | '.join(cell(outcomes[case].get(name)) for name in who)} |")
    for text, counted in (("right", ("right",)), (", ".join(BAD).lower(), BAD)):
        numbers = (sum(row["outcome"] in counted for row in seen[name]) for name in who)
        lines.append(f"| **cases: {text}** | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--contenders", nargs="+", default=[], metavar="NAME", help="only those whose names contain this"
    )
    parser.add_argument("--cases", nargs="+", default=[], metavar="WORD", help="only those whose names contain this")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at a time (default: 1)")
    parser.add_argument("--quick", action="store_true", help="fewer points and ranks in a case")
    parser.add_argument("--missing", action="store_true", help="only what the file lacks, or has only from --quick")
    parser.add_argument(
        "--stop-after", type=float, default=float("inf"), metavar="SECONDS", help="begin no case after this time"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep outcomes, details and versions in this file")
    parser.add_argument(
        "--write", action="store_true", help="keep them in benchmarks/results/torture.json, and the table in RESULTS.md"
    )
    arguments = parser.parse_args()
    contenders, names = named(arguments.contenders), case_names(arguments.cases)
    versions = {one.name: one.version() for one in contenders}
    record = Record(RESULTS / "torture.json" if arguments.write else arguments.json)

    begun = time.monotonic()

    def observe_pair(pair: tuple[str, Contender]) -> None:
        case, one = pair
        if time.monotonic() - begun < arguments.stop_after:
            record.add(one, case, {**observe(one, case, arguments.quick), "version": versions[one.name]})

    def is_missing(case: str, one: Contender) -> bool:
        row = record.data["outcomes"].get(case, {}).get(one.name)
        return row is None or (row["quick"] and not arguments.quick)

    pairs = [pair for pair in itertools.product(names, contenders) if not arguments.missing or is_missing(*pair)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for _ in pool.map(observe_pair, pairs):
            pass
    table = markdown(record.data)
    print(table)
    if arguments.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
