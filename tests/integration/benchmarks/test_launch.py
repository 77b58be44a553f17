"""The benchmark of the launcher."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks import launch
from benchmarks.launch import Block


@pytest.mark.parametrize(
    ("ours_s", "bound", "verdicts"),
    [
        (2.29, Block(1.01, 0.1), ["ok", "ok", "ok"]),
        (2.31, Block(1.03, 0.3), ["miss", "miss", "miss"]),
    ],
)
def test_verdicts_compare_medians(ours_s: float, bound: Block, verdicts: list[str]) -> None:
    starts = {"bound": [ours_s, 0.1, 9.0], "torchrun": [2.0, 1.0, 5.0]}
    table = launch.table(starts, {"bound": [bound], "unbound": [Block(1.0, 0.2)]})
    assert [row[1] for row in table.rows] == verdicts


def test_a_start_is_measured_to_the_last_rank() -> None:
    assert 0.1 < launch.start_seconds(launch.BOUND[:-1]) < launch.TIMEOUT_S


def test_a_block_of_the_loop_is_measured_and_its_ranks_end() -> None:
    loop = launch.Loop(launch.LAUNCH)
    try:
        found = loop.block(20)
    finally:
        status = loop.close()
    assert found.median_s > 0
    assert found.spread > 0
    assert status == 0


@pytest.mark.parametrize("use", [launch.start_seconds, lambda launcher: launch.Loop(launcher).block(20)])
def test_a_failed_launch_is_an_error_with_its_last_lines(use: Callable[[list[str]], object]) -> None:
    with pytest.raises(RuntimeError, match=r"failed with status 2:\n[\s\S]*unknown option --nothing"):
        use([*launch.LAUNCH, "--nothing"])
