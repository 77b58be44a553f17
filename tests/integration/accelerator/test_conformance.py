"""``python -m accelerator.conformance``, which runs the checks in child processes."""

from __future__ import annotations

import json

import pytest

from accelerator.conformance import main
from accelerator.testing import CHECKS
from op_builder import env
from tests.support.machines import PluginSite


def test_the_command_line_runs_the_cpu_and_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cpu", "--json", "--without", "graphs=not today"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["accelerator"], data["passed"]) == ("cpu", True)
    assert [result["name"] for result in data["results"]] == [check.name for check in CHECKS]
    notes = {result["name"]: (result["status"], result["note"]) for result in data["results"]}
    assert notes["graphs_replay"] == ("not applicable", "not today")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quantum", "Unknown accelerator 'quantum'; allowed are"),
        ("cuda", "No device of CUDA_Accelerator is available"),
    ],
)
def test_an_unknown_name_and_a_missing_device_are_status_2(
    capfd: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    with env.scope(CUDA_VISIBLE_DEVICES=""):
        assert main([name]) == 2
    written = capfd.readouterr()
    assert message in written.err
    assert written.out == ""


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--without=wings=broken", "unknown check or group 'wings'; the groups are identity, devices"),
        *((f"--timeout={each}", "expected a number of seconds above 0, found") for each in ("0", "-3", "inf", "nan")),
    ],
)
def test_a_wrong_option_is_refused(capsys: pytest.CaptureFixture[str], option: str, message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["cpu", option])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


FRAGILE = """
import os, time
from accelerator.cpu_accelerator import CPU_Accelerator

class Plugin(CPU_Accelerator):
    def range_push(self, *args, **kwargs):
        os.kill(os.getpid(), 11)

    def device_capability(self, device_index=None):
        time.sleep(600)
"""


@pytest.mark.slow
def test_a_check_that_hangs_or_kills_its_process_fails_and_the_others_run(
    plugin_site: PluginSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    plugin_site.install("fragile", "plugin_fragile", FRAGILE)
    assert main(["fragile", "--timeout=20"]) == 1
    table = capsys.readouterr().out
    assert [check.name for check in CHECKS if f" {check.name} " not in table] == [], "names are whole in any window"
    text = " ".join(table.split())
    assert "ranges_open_and_close failed. It proves: range_push() and range_pop() take" in text
    assert "Found: it ended its process, signal SIGSEGV." in text
    assert "Found: it did not finish within 20 s." in text
    assert " passed, 2 failed, " in text
