"""What JIT builders survive: each contender in each case, and what was observed.

    python -m benchmarks.torture [--contenders NAME ...] [--cases WORD ...] [--jobs N] [--quick] [--json FILE] [--write]

"right" means that the op returned what its current sources say. An outcome is what was seen from outside: the returned
value, the exit status, the compilers that were started. It never follows from a contender's code. Some cases need root
or FUSE. A complete run takes more than an hour.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import pkgutil
import platform
import shutil
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import _measure
from benchmarks.torture import cases
from benchmarks.torture.bench import BAD, NONE, Bench, NotApplicable, Outcome, show_progress
from benchmarks.torture.contenders import Contender, named

RESULTS = _measure.ROOT / "benchmarks" / "results"
GROUPS = {
    "hang": "Hang",
    "lie": "Lie: is it the op of these sources?",
    "tear": "Tear: half-written and damaged files",
    "starve": "Starve: little memory, few processes, many ranks",
    "trust": "Trust: whose code is run?",
    "tell": "Tell: what the user learns",
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
    """What a case does, for the table."""
    return (importlib.import_module(f"benchmarks.torture.cases.{case}").__doc__ or case).strip()


def observe(contender: Contender, case: str, is_quick: bool) -> Outcome:
    """Run one case with one contender in a directory that is removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="torture-"))
    started = time.monotonic()
    try:
        outcome: Outcome = importlib.import_module(f"benchmarks.torture.cases.{case}").run(
            Bench(contender, directory / "bench", is_quick)
        )
    except NotApplicable as reason:
        outcome = Outcome(NONE, str(reason))
    except Exception:  # a fault of the case is a finding, and the other cases go on
        outcome = Outcome("FAULT OF THE CASE", traceback.format_exc(limit=-2).strip().replace("\n", " | "))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    detail = f" ({outcome.detail})" if outcome.detail else ""
    show_progress(f"{contender.name:26} {case:24} {outcome.word}{detail}  {time.monotonic() - started:.0f} s")
    return outcome


def markdown(observed: dict[str, dict[str, Outcome]], contenders: list[Contender]) -> str:
    """The table, a section for each group of cases."""
    lines = ["| contender | " + " | ".join(one.name for one in contenders) + " |", "|---" * (len(contenders) + 1) + "|"]
    lines.append("| version | " + " | ".join(one.version() for one in contenders) + " |")
    for group, heading in GROUPS.items():
        names = [name for name in observed if name.startswith(f"{group}_")]
        if not names:
            continue
        lines.append(f"| **{heading}** |" + " |" * len(contenders))
        for name in names:
            words = [observed[name][one.name].word for one in contenders]
            cells = [f"**{word}**" if word in BAD else word for word in words]
            lines.append(f"| {title(name)} | " + " | ".join(cells) + " |")
    counts = {one.name: collections.Counter(observed[name][one.name].word for name in observed) for one in contenders}
    for words, text in ((BAD, "**hang, stale, torn, crash, unsafe**"), (("right",), "right")):
        lines.append(f"| {text} | " + " | ".join(str(sum(counts[one.name][word] for word in words)) for one in contenders) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contenders", nargs="+", default=[], metavar="NAME", help="only those whose names contain this")
    parser.add_argument("--cases", nargs="+", default=[], metavar="WORD", help="only those whose names contain this")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at a time (default: 1)")
    parser.add_argument("--quick", action="store_true", help="fewer points and ranks in a case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write outcomes, details and versions")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/torture.json and torture.md")
    arguments = parser.parse_args()
    contenders, names = named(arguments.contenders), case_names(arguments.cases)
    for one in contenders:
        one.python()
    started = time.monotonic()
    pairs = [(one, name) for name in names for one in contenders]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = list(pool.map(lambda pair: observe(*pair, arguments.quick), pairs))
    observed: dict[str, dict[str, Outcome]] = {name: {} for name in names}
    for (one, name), outcome in zip(pairs, outcomes, strict=True):
        observed[name][one.name] = outcome
    table = markdown(observed, contenders)
    print(table)
    record = {
        "machine": f"{platform.platform()}, Python {platform.python_version()}",
        "seconds": round(time.monotonic() - started),
        "versions": {one.name: one.version() for one in contenders},
        "cases": {name: title(name) for name in names},
        "outcomes": {
            name: {who: [one.word, one.detail] for who, one in row.items()} for name, row in observed.items()
        },
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    if arguments.write:
        (RESULTS / "torture.json").write_text(json.dumps(record, indent=1) + "\n")
        (RESULTS / "torture.md").write_text(table)


if __name__ == "__main__":
    main()
