"""The benchmark of the launcher: what its table says."""

from __future__ import annotations

import pytest

from benchmarks import launch
from benchmarks.launch import Turns


@pytest.mark.parametrize(
    ("ours_s", "bound", "verdicts"),
    [
        (2.29, Turns(1.01, 0.1), ["ok", "ok", "ok"]),
        (2.31, Turns(1.03, 0.3), ["miss", "miss", "miss"]),
    ],
)
def test_verdicts_are_of_medians(ours_s: float, bound: Turns, verdicts: list[str]) -> None:
    start = {"bound": [ours_s, 0.1, 9.0], "torchrun": [2.0, 1.0, 5.0]}
    table = launch.rows(start, {"bound": [bound], "unbound": [Turns(1.0, 0.2)]})
    assert [row[1] for row in table] == verdicts
    assert all(len(row) == len(launch.COLUMNS) for row in table)


def test_a_start_is_measured_to_the_last_rank() -> None:
    assert 0.1 < launch.start_seconds(launch.BOUND[:-1]) < launch.TIMEOUT_S


def test_a_run_that_fails_is_an_error_with_its_last_words() -> None:
    with pytest.raises(RuntimeError, match=r"failed with status 2:\n[\s\S]*there is no option"):
        launch.run([*launch.LAUNCH, "--nothing", "x.py"], ".")
