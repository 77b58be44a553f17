"""The reports of simulated machines that docs/conformance.md shows are what the command prints there."""

# ruff: noqa: ARG001 - each machine is furnished with the same arguments

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from simulated_machines import PLUGIN_SOURCE, Machine, PluginSite

from accelerator.report import main
from op_builder import env

GUIDE = Path(__file__).parents[2] / "docs" / "conformance.md"


def two_cuda_devices_and_a_broken_vendor(machine: Machine, site: PluginSite, where: Path) -> None:
    machine.cuda(2)
    machine.broken("torch_npu", OSError("libascendcl.so: cannot open shared object file"), where)


def an_ipex_for_another_torch(machine: Machine, site: PluginSite, where: Path) -> None:
    machine.native_xpu()
    machine.broken("intel_extension_for_pytorch", SystemExit(127), where)


def a_plugin_and_one_whose_name_is_taken(machine: Machine, site: PluginSite, where: Path) -> None:
    site.install("acme", "plugin_acme", PLUGIN_SOURCE.format(members="detection_priority = 250"))
    site.install("cuda", "plugin_other", PLUGIN_SOURCE.format(members="pass"))


def a_named_one_without_its_device(machine: Machine, site: PluginSite, where: Path) -> None:
    machine.mlu(available=False)


MACHINES: list[tuple[Callable[[Machine, PluginSite, Path], None], str | None]] = [
    (two_cuda_devices_and_a_broken_vendor, None),
    (an_ipex_for_another_torch, None),
    (a_plugin_and_one_whose_name_is_taken, None),
    (a_named_one_without_its_device, "mlu"),
]


def shown(text: str) -> str:
    """What does not differ from machine to machine: no facts, and no rows of what is not installed."""
    lines = [line.rstrip() for line in text.splitlines()]
    told = [line for line in lines if line.startswith(("Accelerator:", "MLU_", "  Remedy"))]
    rows = [line for line in lines if "│ rejected │" in line or "│ accepted │" in line]
    here = ("NotFoundError", "built without XPU", "│ mps ")  # what this machine's torch lacks, in its words
    return "\n".join([*told, *(row for row in rows if not any(part in row for part in here))])


@pytest.mark.parametrize(("furnish", "name"), MACHINES, ids=lambda value: getattr(value, "__name__", value))
def test_the_guide_shows_what_the_report_says(
    machine: Machine,
    plugin_site: PluginSite,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    furnish: Callable[[Machine, PluginSite, Path], None],
    name: str | None,
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    furnish(machine, plugin_site, tmp_path)
    with env.scope(ACCEL_ACCELERATOR=name):
        main([])
    captured = capsys.readouterr()
    text = shown(captured.out + captured.err)
    assert text in GUIDE.read_text(), f"put this into the guide:\n{text}\n"
