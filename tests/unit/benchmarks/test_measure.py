"""What all benchmarks share: options, the busy machine, turns, results."""

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


@pytest.mark.parametrize(("text", "peers"), [("", []), ("gloo", ["gloo"]), ("gloo,mpi", ["gloo", "mpi"])])
def test_peers_are_a_list_of_names(text: str, peers: list[str]) -> None:
    parser = _measure.make_parser("x", "", "less", ("gloo", "mpi"))
    assert parser.parse_args(["--peers", text]).peers == peers
    assert parser.parse_args([]).peers == ["gloo", "mpi"]


@pytest.mark.parametrize("arguments", [["--peers", "gloo,nccl"], ["--count", "0"], ["--count", "many"]])
def test_bad_values_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = _measure.make_parser("x", "", "less", ("gloo",))
    parser.add_argument("--count", type=_measure.positive)
    with pytest.raises(SystemExit):
        parser.parse_args(arguments)
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize(("load", "is_busy"), [(0.1, False), (7.0, True)])
def test_a_busy_machine_is_reported(
    load: float, is_busy: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    monkeypatch.setattr("psutil.cpu_count", lambda **_: 2)
    machine = _measure.describe_machine()
    assert machine.is_busy is is_busy
    assert ("(busy)" in str(machine)) is is_busy
    assert ("the machine is busy" in capsys.readouterr().err) is is_busy


def test_contenders_take_turns_and_warm_ups_are_not_kept() -> None:
    calls: list[str] = []

    def count(name: str) -> int:
        calls.append(name)
        return len(calls)

    samples = _measure.interleave({"a": lambda: count("a"), "b": lambda: count("b")}, 2, "turns")
    assert calls == ["a", "b"] * 3
    assert samples == {"a": [3, 5], "b": [4, 6]}


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
