"""The options, verdicts and results that all benchmarks share."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from benchmarks import _figures, _measure

NAMES = ("accelerator", "adam", "aio", "comm", "convergence", "fused_adam", "jit", "launch", "prebuild", "sycl")


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_has_the_same_options(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as caught:
        importlib.import_module(f"benchmarks.{name}").main()
    assert caught.value.code == 0
    output = capsys.readouterr().out
    assert all(option in output for option in ("--quick", "--json", "--write"))


@pytest.mark.parametrize(
    ("limit_s", "least_ratio", "verdict"),
    [(None, None, ""), (2.0, None, "ok"), (1.9, None, "miss"), (2.0, 10.0, "ok"), (2.0, 11.0, "miss")],
)
def test_the_median_and_every_ratio_must_keep_their_limits(
    limit_s: float | None, least_ratio: float | None, verdict: str
) -> None:
    figure = _figures.Figure("f", [1.0, 2.0, 9.0], limit_s, peers={"peer": [20.0]}, least_ratio=least_ratio)
    assert figure.verdict == verdict


def test_results_are_printed_and_written_as_the_same_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_measure, "RESULTS", tmp_path / "results")
    arguments = _measure.make_parser("x", "", "less", ("gloo", "mpi")).parse_args(
        ["--json", "--write", "--peers", "mpi"]
    )
    assert arguments.peers == ["mpi"]
    required = [_measure.at_least("speed", 0.9, 0.95), _measure.at_most("time", 2.0, 3.0, "s")]
    _measure.report("x", arguments, _measure.describe_machine(), [_measure.requirement_table(required)], {})
    output = capsys.readouterr().out
    assert (tmp_path / "results" / "x.json").read_text() == output
    rows = json.loads(output)["tables"][0]["rows"]
    assert rows == [["speed", "miss", "0.9", ">= 0.95"], ["time", "ok", "2 s", "<= 3 s"]]
