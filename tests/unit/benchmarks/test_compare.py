"""Comparing a benchmark's samples of two commits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import _measure
from benchmarks.compare import Row, medians, rows_of

SAMPLES = {
    "load": [{"name": "warm", "seconds": [3.0, 1.0, 2.0], "limit_s": None, "peers": {"torch": [4.0]}, "is_met": True}],
    "pass": {"plain": [0.25, 0.5, 0.75]},
    "ranks": [{"size_bytes": 4, "turns": [1.0]}, {"size_bytes": 64, "turns": [5.0]}],
}


def test_a_quantity_is_named_by_its_keys_and_the_texts_and_sizes_beside_it() -> None:
    found = medians(SAMPLES)
    assert found == {
        ("load", "warm", "seconds"): 2.0,
        ("load", "warm", "peers", "torch"): 4.0,
        ("pass", "plain"): 0.5,
        ("ranks", "4 bytes", "turns"): 1.0,
        ("ranks", "64 bytes", "turns"): 5.0,
    }


def test_only_quantities_of_every_turn_are_compared_the_largest_ratio_first() -> None:
    before = [{("a",): 2.0, ("b",): 1.0, ("zero",): 0.0}, {("a",): 4.0, ("b",): 1.0, ("old",): 1.0, ("zero",): 0.0}]
    after = [{("a",): 1.0, ("b",): 3.0, ("zero",): 1.0}, {("a",): 3.0, ("b",): 2.0, ("zero",): 1.0}]
    assert rows_of(before, after) == [Row(("b",), 1.0, [3.0, 2.0]), Row(("a",), 3.0, [0.5, 0.75])]


@pytest.mark.parametrize(
    ("ratios", "change"),
    [([1.2, 1.1], "more"), ([1.2, 0.99], ""), ([1.04, 1.02], ""), ([0.8, 0.9], "less"), ([0.96, 0.98], "")],
)
def test_a_change_is_one_that_every_turn_shows(ratios: list[float], change: str) -> None:
    assert Row(("a",), 1.0, ratios).change(0.05) == change


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(("HEAD", "nothing"), "unknown benchmark 'nothing'"), (("no-such-commit", "calls"), "'no-such-commit'")],
)
def test_what_cannot_be_compared_is_named(arguments: tuple[str, str], reason: str) -> None:
    command = [sys.executable, "-m", "benchmarks.compare", *arguments]
    done = subprocess.run(command, cwd=_measure.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert reason in done.stderr


TINY = """
import os, pathlib, signal, sys, time
assert sys.argv[1:] == ["--turns", "0", "--json"]
turns = pathlib.Path("turns")
print('{"samples": {"size": [2, 2]}}')
if turns.exists() and len(turns.read_text()) == 2:
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
turns.open("a").write(".")
"""


def test_both_sides_run_in_turns_until_ctrl_c_and_the_commits_files_are_removed(tmp_path: Path) -> None:
    """A repository whose benchmark prints a figure that the commit and the working tree differ in."""
    package = tmp_path / "benchmarks"
    package.mkdir()
    for name in ("__init__", "compare", "_measure", "_processes", "_peers"):
        (package / f"{name}.py").write_bytes((_measure.ROOT / "benchmarks" / f"{name}.py").read_bytes())
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    (package / "tiny.py").write_text('print(\'{"samples": {"size": [1, 1]}}\')\n')
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    (package / "tiny.py").write_text(TINY)
    command = [sys.executable, "-m", "benchmarks.compare", "--turns", "9", "HEAD", "tiny", "--turns", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tiny: 1 of 1 quantities changed" in done.stdout
    assert "each of 2 turns" in done.stdout
    assert [word.strip() for word in done.stdout.split("│")[1:5]] == ["size", "more", "1", "2.00"]
    trees = subprocess.run([*git, "worktree", "list"], capture_output=True, text=True, check=True).stdout
    assert len(trees.splitlines()) == 1
