"""The benchmark of loading: what its figures say, without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import _builds, _figures, _loads, _processes
from op_builder.cpu import ShareMemCommBuilder

IMPORT_REPORT = """\
import time: self [us] | cumulative | imported package
import time:       100 |        100 |   op_builder._version
import time:       200 |        300 | op_builder
import time:        40 |         40 |   op_builder.errors
import time:        50 |         90 | accelerator
"""


@pytest.mark.parametrize(
    ("limit_s", "least_ratio", "verdict"),
    [(None, None, ""), (2.0, None, "ok"), (1.9, None, "miss"), (2.0, 10.0, "ok"), (2.0, 11.0, "miss")],
)
def test_a_figure_is_met_when_its_median_and_every_ratio_are(
    limit_s: float | None, least_ratio: float | None, verdict: str
) -> None:
    figure = _figures.Figure("f", [1.0, 2.0, 9.0], limit_s, peers={"peer": [20.0]}, least_ratio=least_ratio)
    assert figure.verdict == verdict


def test_import_time_counts_each_package_once_with_all_it_imports() -> None:
    assert _loads.importtime_s(IMPORT_REPORT) == pytest.approx(390e-6)


def test_rows_show_limits_peers_and_ratios() -> None:
    figure = _figures.Figure("cold", [2.0], limit_s=5.0, peers={"deepspeed": [40.0]}, least_ratio=10.0)
    row = dict(zip(_figures.columns_of(["deepspeed"]), _figures.rows_of([figure], ["deepspeed"])[0], strict=True))
    assert row == {
        "figure": "cold",
        "verdict": "ok",
        "accel-ops": "2.00 s",
        "limit": "<= 5.00 s",
        "deepspeed": "40.00 s",
        "deepspeed / accel-ops": "20 x (>= 10 x)",
    }


def test_a_write_into_the_cache_is_seen(tmp_path: Path) -> None:
    (tmp_path / "cache" / "ops").mkdir(parents=True)
    copy = _processes.make_read_only(tmp_path / "cache", tmp_path / "copy")
    before = _processes.snapshot(copy)
    assert _processes.snapshot(copy) == before
    copy.chmod(0o755)
    (copy / "new").touch()
    assert _processes.snapshot(copy) != before


def test_the_program_that_loads_cpu_adam_runs_by_its_path(tmp_path: Path) -> None:
    cold = _loads.accel_ops().load(tmp_path)
    warm = _loads.accel_ops().load(tmp_path)
    assert set(cold) == set(warm) == {"import_s", "load_s", "again_s"}


def test_the_bare_commands_of_an_op_can_be_run_by_hand() -> None:
    assert _builds.bare_commands_s(ShareMemCommBuilder()) > 0
