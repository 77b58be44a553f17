"""The example with moments on disk: the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples import swapped_moments

torch_threads = torch.get_num_threads()


@pytest.fixture(autouse=True)
def _cpu(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("ACCEL_ACCELERATOR", "cpu")
    yield
    torch.set_num_threads(torch_threads)


def test_a_short_demo_finds_both_runs_the_same_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = swapped_moments.main(["--steps", "4", "--width", "64", "--out", str(tmp_path / "out")])
    output = capsys.readouterr().out
    assert status == 0, output
    assert "The same to the bit: 4 losses" in output
    assert "overlapped with training" in output
    assert list((tmp_path / "out").iterdir()) == []
