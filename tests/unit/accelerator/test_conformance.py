"""The conformance suite on the CPU, and the command that runs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.conformance import main
from accelerator.cpu_accelerator import CPU_Accelerator
from accelerator.real_accelerator import set_accelerator
from op_builder import env
from tests.support.conformance import ALONE, run_suite, with_outcome
from tests.support.machines import Recording

pytestmark = pytest.mark.usefixtures("fresh")


def test_the_cpu_conforms_and_every_member_is_checked_and_the_generators_are_restored() -> None:
    state = torch.get_rng_state()
    recording: Any = Recording(CPU_Accelerator())
    set_accelerator(recording)
    outcomes = run_suite()
    assert outcomes
    assert with_outcome("failed", outcomes) == {}
    assert {name for name in vars(DeepSpeedAccelerator) if not name.startswith("_")} <= recording.asked
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "message"), [("quantum", "Unknown accelerator 'quantum'"), ("cuda", "No device of CUDA_Accelerator")]
)
def test_an_unknown_name_and_a_missing_device_are_status_4(
    capfd: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    with env.scope(CUDA_VISIBLE_DEVICES=""):
        assert main([*ALONE, "--accelerator", name]) == 4
    assert message in capfd.readouterr().err


def test_the_command_takes_the_options_of_pytest(tmp_path: Path) -> None:
    assert main([*ALONE, "--accelerator=cpu", "-k", "rng_state", f"--junitxml={tmp_path / 'report.xml'}"]) == 0
    assert 'failures="0" skipped="0" tests="2"' in (tmp_path / "report.xml").read_text()


def test_help_and_the_remedy_need_no_pytest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pytest", None)
    assert main(["--help"]) == 0
    assert "--junitxml" in capsys.readouterr().out
    assert main([]) == 4
    assert "pip install pytest" in capsys.readouterr().err
