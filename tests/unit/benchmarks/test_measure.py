"""What all benchmarks share: options and results."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest

from benchmarks import _measure

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


def test_results_are_printed_and_written_as_the_same_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_measure, "RESULTS", tmp_path / "results")
    arguments = _measure.make_parser("x", "", "less").parse_args(["--json", "--write"])
    machine = _measure.describe_machine()
    required = [_measure.at_least("speed", 0.9, 0.95), _measure.at_most("time", 2.0, 3.0, "s")]
    tables = [_measure.requirement_table(required)]
    capsys.readouterr()
    _measure.report("x", arguments, machine, tables, {"required": required})
    output = capsys.readouterr().out
    assert (tmp_path / "results" / "x.json").read_text() == output
    record = json.loads(output)
    assert record["tables"][0]["rows"] == [["speed", "miss", "0.9", ">= 0.95"], ["time", "ok", "2 s", "<= 3 s"]]
    assert record["samples"]["required"] == [dataclasses.asdict(one) for one in required]
    assert record["machine"]["cpu"] == machine.cpu
