"""The torture suite: it observes what happens, and keeps it after each case."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.torture.bench import (
    CLEAR,
    CRASH,
    HANG,
    REBUILT,
    RIGHT,
    STALE,
    TORN,
    UNCLEAR,
    Bench,
    Run,
    make_counted_compilers,
)
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
        ((), 1, "OSError: No space left on device\nstopped", (), CLEAR),
        ((), 1, "KeyError: 3", (), UNCLEAR),
    ],
)
def test_an_outcome_is_what_was_observed(
    values: tuple[int, ...], status: int | None, output: str, compilers: tuple[str, ...], word: str, tmp_path: Path
) -> None:
    bench = Bench(CONTENDERS[0], tmp_path / "bench", is_quick=True)
    outcome = bench.judge(Run(values, status, output, compilers, 1.0), 2, clear=("no space",))
    assert outcome.word == word
    if status == 1:
        assert outcome.detail in ("OSError: No space left on device", "KeyError: 3")
    if word == RIGHT:
        assert bench.judge(Run(values, status, output, compilers, 1.0), 2, compiles=False).word == REBUILT


@needs_gxx
def test_only_commands_that_compile_or_link_are_counted(tmp_path: Path) -> None:
    log, source = tmp_path / "log", tmp_path / "a.cpp"
    log.touch()
    source.write_text("int four() { return 4; }\n")
    make_counted_compilers(tmp_path / "bin", log)
    for words in (["--version"], ["-E", "a.cpp"], ["-c", "a.cpp"], ["-shared", "a.o", "-o", "a.so"], ["-S", "a.cpp"]):
        subprocess.run([tmp_path / "bin" / "g++", *words], cwd=tmp_path, check=True, capture_output=True)
    assert [line.split()[1] for line in log.read_text().splitlines()] == ["-c", "-shared", "-S"]
