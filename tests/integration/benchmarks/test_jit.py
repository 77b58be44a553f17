"""The benchmark of loading: its programs and its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import _figures, jit
from benchmarks._processes import run_program
from op_builder.cache.store import Cache
from tests.support.small_ops import make_small


@pytest.mark.parametrize(
    ("limit_s", "least_ratio", "verdict"),
    [(None, None, ""), (2.0, None, "ok"), (1.9, None, "miss"), (2.0, 10.0, "ok"), (2.0, 11.0, "miss")],
)
def test_the_median_and_every_ratio_must_keep_their_limits(
    limit_s: float | None, least_ratio: float | None, verdict: str
) -> None:
    figure = _figures.Figure("f", [1.0, 2.0, 9.0], limit_s, peers={"peer": [20.0]}, least_ratio=least_ratio)
    assert figure.verdict == verdict


def test_the_program_that_loads_cpu_adam_prints_its_times() -> None:
    times = run_program(jit.LOAD_CPU_ADAM, "op_builder")
    assert set(times) == {"import_s", "load_s", "again_s"}


def test_an_op_s_compiler_commands_run_without_the_engine(tmp_path: Path) -> None:
    assert jit.bare_commands_s(make_small(tmp_path / "op", Cache(tmp_path / "cache"))) > 0
