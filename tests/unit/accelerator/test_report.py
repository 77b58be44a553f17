"""``python -m accelerator.report``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accelerator.report import main
from op_builder import env
from tests.support.machines import Machine, PluginSite

pytestmark = pytest.mark.usefixtures("machine")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # rich's own variable: no line is folded


def as_json(capsys: pytest.CaptureFixture[str], status: int = 0) -> Any:
    assert main(["--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_the_tables_show_the_accelerator_and_every_candidate(
    plugin_site: PluginSite, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin_site.install("acme", "plugin_acme", "raise OSError('[bold]card[/bold] [Errno 5]')")
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "Accelerator: cpu (detected)" in text
    for row in ("communication backend", "gloo", "float32", "total memory", "GiB", "op_builder.cpu", "torch_npu"):
        assert row in text
    for label in ("xpu.external", "xpu (IPEX)", "xpu (torch)", "npu", "sdaa", "mps", "hpu", "mlu", "supa", "cuda"):
        line = next(line for line in text.splitlines() if f" {label} " in line and " no " in line)
        assert line.count("│") == 4
    assert "OSError: [bold]card[/bold] [Errno 5]" in text, "square brackets are shown as they are"


def test_json_has_the_facts_and_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    data = as_json(capsys)
    assert set(data) == {"accelerator", "error", "trace", "versions"}
    facts = data["accelerator"]
    assert (facts["name"], facts["requested"], data["error"]) == ("cpu", None, None)
    assert facts["class"] == "accelerator.cpu_accelerator.CPU_Accelerator"
    assert facts["hardware"]
    assert facts["dtypes"][0] == "float32"
    assert facts["total_memory_bytes"] >= facts["available_memory_bytes"] > 0
    assert facts["visible_devices"] == {"CUDA_VISIBLE_DEVICES": None}
    assert facts["unavailable"] == {}
    assert [entry["accepted"] for entry in data["trace"]] == [False] * 10 + [True]
    assert all(bool(entry["reason"]) is not entry["accepted"] for entry in data["trace"])


def test_a_missing_or_failing_device_does_not_prevent_the_report(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    with env.scope(ACCEL_ACCELERATOR="cuda"):
        facts = as_json(capsys)["accelerator"]
    assert (facts["requested"], facts["device_count"]) == ("cuda", 0)
    assert facts["unavailable"]["total_memory_bytes"] == "no device is available"
    machine.npu()  # its fake module answers nothing but is_available and device_count
    facts = as_json(capsys)["accelerator"]
    assert facts["name"] == "npu"
    assert "AttributeError" in facts["unavailable"]["total_memory_bytes"]
    assert facts["cann_version"] is None


def test_a_wrong_override_is_an_error_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    message = "Unknown accelerator 'tpu'; allowed are"
    with env.scope(ACCEL_ACCELERATOR="tpu"):
        assert main([]) == 2
        assert message in capsys.readouterr().err
        data = as_json(capsys, status=2)
    assert data["accelerator"] is None
    assert message in data["error"]
