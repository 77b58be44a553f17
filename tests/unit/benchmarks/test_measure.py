"""The options that all benchmarks share."""

from __future__ import annotations

import importlib
import sys

import pytest

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
