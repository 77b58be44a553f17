"""The torture suite: it observes what happens, and keeps it after each case."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks._measure import ROOT
from benchmarks.torture.bench import CLEAR, CRASH, HANG, REBUILT, RIGHT, STALE, TORN, UNCLEAR, Bench, Run
from benchmarks.torture.contenders import CONTENDERS
from tests.support.compilers import needs_gxx


@needs_gxx
@pytest.mark.parametrize(
    ("values", "status", "output", "compilers", "word"),
    [
        ((2,), 0, "", ("g++ -c",), RIGHT),
        ((1, 1), 0, "", (), STALE),
        ((77,), 0, "", (), TORN),
        ((), None, "", (), HANG),
        ((), -11, "", (), CRASH),
        ((), 1, "OSError: No space left on device", (), CLEAR),
        ((), 1, "KeyError: 3", (), UNCLEAR),
    ],
)
def test_an_outcome_is_what_was_observed(
    values: tuple[int, ...], status: int | None, output: str, compilers: tuple[str, ...], word: str, tmp_path: Path
) -> None:
    bench = Bench(CONTENDERS[0], tmp_path / "bench", is_quick=True)
    assert bench.judge(Run(values, status, output, compilers, 1.0), 2, clear=("no space",)).word == word
    if word == RIGHT:
        assert bench.judge(Run(values, status, output, compilers, 1.0), 2, compiles=False).word == REBUILT


@pytest.mark.slow
@needs_gxx
def test_outcomes_are_kept_and_only_missing_ones_observed(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    command = [sys.executable, "-m", "benchmarks.torture", "--contenders", "accel-ops engine", "--json", str(file)]

    def observe(*words: str) -> str:
        done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stderr + done.stdout

    assert "| right |" in observe("--cases", "lie_touched")
    assert json.loads(file.read_text())["outcomes"]["lie_touched"]["accel-ops engine"]["outcome"] == RIGHT
    assert "lie_touched" not in observe("--cases", "lie_touched", "--missing").replace(str(file), "")
