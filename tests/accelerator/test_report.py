"""``python -m accelerator.report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulated_machines import Machine, PluginSite
from test_process import ROOT, run_python

from accelerator.report import main
from op_builder import env


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # rich's own variable: no line is folded


def as_json(capsys: pytest.CaptureFixture[str], status: int = 0) -> Any:
    assert main(["--json"]) == status
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("machine", "wide")
def test_the_table_shows_the_choice_its_facts_and_each_candidate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "Accelerator: cpu (detected)" in text
    for row in ("communication backend", "gloo", "float32", "total memory", "GiB", "op_builder.cpu"):
        assert row in text
    for label in ("xpu.external", "xpu (IPEX)", "xpu (torch)", "npu", "sdaa", "mps", "hpu", "mlu", "cuda"):
        line = next(line for line in text.splitlines() if f" {label} " in line and "rejected" in line)
        assert line.count("│") == 4
    assert "torch_npu" in text
    assert "No accelerator was detected" not in text


@pytest.mark.usefixtures("machine")
def test_json_has_the_facts_and_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    data = as_json(capsys)
    assert set(data) == {"accelerator", "error", "trace", "versions"}
    accelerator = data["accelerator"]
    assert accelerator["name"] == "cpu"
    assert accelerator["requested"] is None
    assert accelerator["class"] == "accelerator.cpu_accelerator.CPU_Accelerator"
    assert accelerator["dtypes"][0] == "float32"
    assert accelerator["total_memory_bytes"] >= accelerator["available_memory_bytes"] > 0
    assert accelerator["visible_devices"] == {"CUDA_VISIBLE_DEVICES": None}
    assert accelerator["unavailable"] == {}
    assert data["error"] is None
    assert [entry["accepted"] for entry in data["trace"]] == [False] * 9 + [True]
    assert all(bool(entry["reason"]) is not entry["accepted"] for entry in data["trace"])


@pytest.mark.usefixtures("machine")
def test_cuda_without_a_device_is_reported_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    with env.scope(ACCEL_ACCELERATOR="cuda"):
        data = as_json(capsys)
    assert data["accelerator"]["requested"] == "cuda"
    assert data["accelerator"]["device_count"] == 0
    assert data["accelerator"]["unavailable"]["total_memory_bytes"] == "there is no device"


def test_a_device_that_fails_to_answer_still_gives_a_report(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.npu()  # its fake module answers nothing but is_available and device_count
    data = as_json(capsys)
    assert data["accelerator"]["name"] == "npu"
    assert "AttributeError" in data["accelerator"]["unavailable"]["total_memory_bytes"]
    assert data["accelerator"]["cann_version"] is None


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ACCEL_ACCELERATOR": "tpu"}, "Unknown accelerator 'tpu'; allowed are"),
        ({"ACCEL_ACCELERATOR": "mlu"}, "MLU_Accelerator requires torch_mlu"),
        ({"ACCEL_ACCELERATOR": "cpu", "DS_ACCELERATOR": "cuda"}, "mean the same thing and differ"),
    ],
)
def test_a_wrong_override_is_said_with_status_2(
    capsys: pytest.CaptureFixture[str], variables: dict[str, str], message: str
) -> None:
    with env.scope(**variables):
        assert main([]) == 2
        assert message in capsys.readouterr().err
        data = as_json(capsys, status=2)
    assert data["accelerator"] is None
    assert message in data["error"]


@pytest.mark.usefixtures("machine", "wide")
def test_square_brackets_in_a_reason_are_shown_as_they_are(
    plugin_site: PluginSite, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin_site.install("acme", "plugin_acme", "raise OSError('[bold]card[/bold] [Errno 5]')")
    assert main([]) == 0
    assert "OSError: [bold]card[/bold] [Errno 5]" in capsys.readouterr().out


def test_what_a_vendors_package_prints_does_not_break_json(tmp_path: Path) -> None:
    said = "import ctypes, os\nprint('Loading Acme')\nctypes.CDLL(None).puts(b'Loaded in C')\nos.write(1, b'Raw\\n')\n"
    (tmp_path / "torch_npu.py").write_text(f"{said}raise OSError('no driver')\n")
    result = run_python("-m", "accelerator.report", "--json", PYTHONPATH=f"{tmp_path}:{ROOT}")
    trace = {entry["name"]: entry["reason"] for entry in json.loads(result.stdout)["trace"]}
    assert trace["npu"] == "OSError: no driver"
    assert all(line in result.stderr for line in ("Loading Acme", "Loaded in C", "Raw"))


def test_the_command_line() -> None:
    result = run_python("-m", "accelerator.report", "--help")
    assert result.returncode == 0
    assert "Exit status" in result.stdout
    result = run_python("-m", "accelerator.report", "--json", ACCEL_ACCELERATOR="cpu")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["accelerator"]["name"] == "cpu"
    assert result.stderr == ""
    assert run_python("-m", "accelerator.report", "--json", ACCEL_ACCELERATOR="tpu").returncode == 2
