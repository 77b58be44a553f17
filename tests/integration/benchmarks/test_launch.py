"""The benchmark of the launcher."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks import launch


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
