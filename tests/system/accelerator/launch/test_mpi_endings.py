"""How ranks below MPI's launchers end."""

from __future__ import annotations

from pathlib import Path

import pytest

from op_builder import env
from tests.support.launching import TWO, Started, launch, left_in
from tests.support.mpis import MPIS, available

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("launcher", MPIS)]


def test_a_failing_rank_is_reported(launcher: str, tmp_path: Path) -> None:
    options = [*TWO, "--launcher", launcher, "--grace_period", "3"]
    done = launch([*options, "wait.py", "exits"], tmp_path, **available(launcher))
    assert done.returncode == 7, done.stderr
    assert "accel-launch: rank 1 (local rank 1, pid " in done.stderr
    assert "  | last words of the rank" in done.stderr


@pytest.mark.parametrize("how", ["polite", "stubborn"])
def test_ranks_end_with_the_driver(launcher: str, how: str, tmp_path: Path) -> None:
    options = [*TWO, "--launcher", launcher, "--grace_period", "2", "wait.py", how]
    with env.scope(**available(launcher)), Started(options, tmp_path) as started:
        started.wait_for("up0", "up1")
        started.process.terminate()
        assert started.end() == 143, started.errors
        if how == "polite":
            # Open MPI sends a signal of its own
            assert {(tmp_path / f"got{rank}").read_text()[:7] for rank in (0, 1)} == {"SIGTERM"}
        assert left_in(tmp_path) == [], started.errors
