"""Run a benchmark on another commit and on the working tree in turns, and compare their samples.

For example ``python -m benchmarks.compare main calls``, or ``python -m benchmarks.compare HEAD~20 jit --quick`` with
options of the benchmark. A quantity has changed only if it is larger, or smaller, in every turn, and its median by more
than ``--least``; on a busy machine, or with few turns, some changes are due to chance. Ctrl-C ends the comparison with
the turns that are complete.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import _measure, _processes
from benchmarks._peers import failure

Label = tuple[str, ...]
"""What identifies a sample: the keys on the way to it, and the texts and sizes beside it (a case, a contender)."""

_SIZE = "size_bytes"  # the key of a size, which identifies a sample as a text does


class Row(NamedTuple):
    """One quantity on both sides: its median before, and after over before in each turn."""

    label: Label
    before: float
    ratios: Sequence[float]

    def change(self, least: float) -> str:
        """``more`` or ``less`` if every turn says so and the median by more than ``least``; else empty."""
        ratio = median(self.ratios)
        if min(self.ratios) > 1 and ratio > 1 + least:
            return "more"
        return "less" if max(self.ratios) < 1 and ratio < 1 / (1 + least) else ""


def labelled(value: object, label: Label = ()) -> Iterator[tuple[Label, float]]:
    """Each number in a benchmark's samples; those of one list have the same label."""
    if isinstance(value, dict):
        texts = [text for text in value.values() if isinstance(text, str)]
        sizes = [f"{value[_SIZE]} bytes"] if _SIZE in value else []
        for key, each in value.items():
            if key != _SIZE:
                yield from labelled(each, (*label, *texts, *sizes, str(key)))
    elif isinstance(value, list):
        for each in value:
            yield from labelled(each, label)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield label, float(value)


def medians(samples: object) -> dict[Label, float]:
    """The median of each quantity in a benchmark's samples."""
    found: dict[Label, list[float]] = {}
    for label, number in labelled(samples):
        found.setdefault(label, []).append(number)
    return {label: median(numbers) for label, numbers in found.items()}


def rows_of(before: Sequence[Mapping[Label, float]], after: Sequence[Mapping[Label, float]]) -> list[Row]:
    """The quantities that every turn of both sides has and that are positive, the largest ratio first."""
    common = set(before[0]).intersection(*before, *after)
    rows = []
    for label in common:
        olds, news = [turn[label] for turn in before], [turn[label] for turn in after]
        if min(olds) > 0 and math.isfinite(sum(news)):
            rows.append(Row(label, median(olds), [new / old for new, old in zip(news, olds, strict=True)]))
    return sorted(rows, key=lambda row: median(row.ratios), reverse=True)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A directory with the files of a commit of this repository, removed at the end.

    Raises:
        SystemExit: this is no git repository, or it has no such commit.
    """
    git = ["git", "-C", str(_measure.ROOT)]
    with tempfile.TemporaryDirectory(prefix="accel-ops-compare-") as directory:
        tree = Path(directory) / "tree"
        added = subprocess.run(
            [*git, "worktree", "add", "--quiet", "--detach", str(tree), commit],
            capture_output=True,
            text=True,
            check=False,
        )
        if added.returncode != 0:
            raise SystemExit(f"Cannot check out {commit!r}: {added.stderr.strip()}")
        try:
            yield tree
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=False)


def run(tree: Path, benchmark: str, options: Sequence[str]) -> dict[Label, float]:
    """The medians of one run of a tree's own benchmark on the tree's own code.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", *options, "--json"]
    environment = {**_processes.environment(Path(sys.executable)), "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise failure(command, done.returncode, "")
    return medians(json.loads(done.stdout)["samples"])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("commit", help="the commit to compare with: a branch, a tag or a hash")
    parser.add_argument("benchmark", help="the benchmark's name")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of the benchmark")
    parser.add_argument("--turns", type=_measure.positive, default=3, help="runs of each side (default: 3)")
    parser.add_argument(
        "--least", type=float, default=0.05, help="the smallest change to call one, as a share (default: 0.05)"
    )
    parser.add_argument("--all", action="store_true", help="print all rows, not only those that changed")
    arguments = parser.parse_args()
    if not (_measure.ROOT / "benchmarks" / f"{arguments.benchmark}.py").is_file():
        parser.error(f"unknown benchmark {arguments.benchmark!r}")
    machine = _measure.describe_machine()
    before: list[dict[Label, float]] = []
    after: list[dict[Label, float]] = []
    with checked_out(arguments.commit) as tree:
        sides = {
            "before": lambda: before.append(run(tree, arguments.benchmark, arguments.options)),
            "after": lambda: after.append(run(_measure.ROOT, arguments.benchmark, arguments.options)),
        }
        title = f"{arguments.benchmark}, {arguments.commit} and the working tree"
        try:
            _measure.interleave(sides, arguments.turns, title, warm_ups=0)
        except KeyboardInterrupt:
            if not after:
                raise
    rows = rows_of(before[: len(after)], after)
    changed = [row for row in rows if row.change(arguments.least)]
    table = _measure.Table(
        f"{arguments.benchmark}: {len(changed)} of {len(rows)} quantities changed by more than {arguments.least:.0%}, "
        f"in each of {len(after)} turns",
        ("quantity", "change", "before", "ratio", "of the turns"),
        [
            [
                ", ".join(row.label),
                row.change(arguments.least),
                f"{row.before:.3g}",
                f"{median(row.ratios):.2f}",
                f"{min(row.ratios):.2f} to {max(row.ratios):.2f}",
            ]
            for row in (rows if arguments.all else changed)
        ],
    )
    _measure.console.print(_measure.rendered(table))
    _measure.console.print(str(machine))


if __name__ == "__main__":
    main()
