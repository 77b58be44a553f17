"""Choosing among candidates: tables of simulated machines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from accelerator.selection import SUPPORTED_ACCELERATOR_LIST, choose
from op_builder import env
from tests.support.machines import Machine, accepted_label, reasons

pytestmark = pytest.mark.usefixtures("machine")

# Which devices a machine has -> which candidate detection takes.
DETECTION = [
    ("", "cpu"),
    ("cuda", "cuda"),
    ("supa cuda", "supa"),
    ("mlu supa cuda", "mlu"),
    ("hpu mlu cuda", "hpu"),
    ("mps hpu mlu cuda", "mps"),
    ("sdaa mps hpu mlu cuda", "sdaa"),
    ("npu sdaa mps hpu mlu cuda", "npu"),
    ("native_xpu npu sdaa mps hpu mlu", "xpu (torch)"),
    ("native_xpu cuda", "cuda"),
    ("native_xpu npu cuda", "npu"),
    ("ipex npu sdaa mps hpu mlu cuda", "xpu (IPEX)"),
    ("xpu_external ipex native_xpu npu sdaa mps hpu mlu cuda", "xpu.external"),
]


@pytest.mark.parametrize(("devices", "label"), DETECTION)
def test_detection_chooses_the_first_available_device(machine: Machine, devices: str, label: str) -> None:
    machine.install(devices)
    selection = choose()
    assert accepted_label(selection) == label
    assert (selection.name, selection.requested) == (label.split()[0], None)


def test_the_trace_lists_every_candidate_in_order(machine: Machine) -> None:
    machine.install("native_xpu cuda")
    selection = choose()
    expected = "xpu.external, xpu (IPEX), xpu (torch), npu, sdaa, mps, hpu, mlu, supa, cuda, cpu"
    assert ", ".join(entry.label for entry in selection.trace) == expected
    assert "torch_npu" in reasons(selection)["npu"]
    assert reasons(selection)["xpu (torch)"] == "a CUDA device is available"
    assert reasons(selection)["cpu"] == "not tried: cuda comes first"


@pytest.mark.parametrize(("devices", "label"), [("native_xpu", "xpu (torch)"), ("npu", "npu"), ("", "cpu")])
def test_a_broken_cuda_does_not_hide_other_devices(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, devices: str, label: str
) -> None:
    machine.install(devices)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1 / 0)
    selection = choose()
    assert accepted_label(selection) == label
    blamed = [name for name, reason in reasons(selection).items() if "ZeroDivisionError" in reason]
    assert blamed == (["cuda"] if label == "cpu" else [])


def test_a_broken_vendor_package_is_a_rejection_with_its_reason(machine: Machine, tmp_path: Path) -> None:
    machine.broken("torch_npu", OSError("driver 3 too old\nlong story"), tmp_path)
    machine.cuda(1)
    selection = choose()
    assert accepted_label(selection) == "cuda"
    assert reasons(selection)["npu"] == "OSError: driver 3 too old"


def test_an_ipex_that_exits_is_imported_once_and_hides_no_device(machine: Machine, tmp_path: Path) -> None:
    machine.native_xpu()
    machine.broken("intel_extension_for_pytorch", SystemExit(127), tmp_path)  # built for another torch, it calls exit()
    for _ in range(2):
        selection = choose()
        assert accepted_label(selection) == "xpu (torch)"
        assert reasons(selection)["xpu (IPEX)"] == "SystemExit: 127"
    assert (tmp_path / "imports").read_text().split() == ["intel_extension_for_pytorch"]


def test_a_package_may_be_installed_after_a_detection(machine: Machine) -> None:
    assert reasons(choose())["npu"].startswith("ModuleNotFoundError")
    machine.npu()
    assert accepted_label(choose()) == "npu"


@pytest.mark.parametrize("device", ["cuda", "npu", "mlu", "sdaa", "native_xpu"])
def test_detection_starts_no_driver(machine: Machine, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """is_available() starts it on CUDA (cuInit) and MLU (cnInit), and then no forked child can use the device."""
    machine.install(device)
    name = device.removeprefix("native_")
    monkeypatch.setattr(getattr(torch, name), "is_available", lambda: pytest.fail("the driver was started"))
    selection = choose()
    assert selection.name == name
    assert selection.accelerator.is_available()


# The override ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("CPU", "cuda"),
        (" Mlu ", "npu mlu"),
        ("cuda", ""),  # without a device: for builders, report and prebuild
        ("xpu", "ipex"),
        ("xpu", "native_xpu cuda"),
        ("xpu.external", "xpu_external"),
    ],
)
def test_an_override_has_precedence_over_detection(machine: Machine, name: str, devices: str) -> None:
    machine.install(devices)
    for variable in ("ACCEL_ACCELERATOR", "DS_ACCELERATOR"):
        with env.scope(**{variable: name}):
            selection = choose()
        assert selection.name == selection.requested == name.strip().lower()


def refusal(**variables: str) -> str:
    with env.scope(**variables):
        error = choose().error
    assert isinstance(error, ValueError)
    return str(error)


MISSING = [
    ("xpu", "XPU_Accelerator requires intel_extension_for_pytorch or a torch with XPU support"),
    ("xpu.external", "XPU_Accelerator external requires intel_extension_for_deepspeed"),
    ("npu", "NPU_Accelerator requires torch_npu"),
    ("sdaa", "SDAA_Accelerator requires torch_sdaa"),
    ("mps", "MPS_Accelerator requires torch.mps"),
    ("hpu", "HPU_Accelerator requires habana_frameworks.torch.hpu"),
    ("mlu", "MLU_Accelerator requires torch_mlu"),
    ("supa", "SUPA_Accelerator requires torch_supa"),
]


@pytest.mark.parametrize(("name", "message"), MISSING)
def test_an_override_without_its_package_or_device_reports_the_requirement(
    machine: Machine, name: str, message: str
) -> None:
    error = refusal(ACCEL_ACCELERATOR=name)
    assert message in error
    assert "Install what is missing, set ACCEL_ACCELERATOR to another name, or unset" in error
    if name != "mps":  # whose module is part of every torch
        getattr(machine, {"xpu": "native_xpu", "xpu.external": "xpu_external"}.get(name, name))(available=False)
        error = refusal(DS_ACCELERATOR=name)
        assert message in error
        assert "no device is available" in error
        assert any("no device is available" in reason for reason in reasons(choose()).values())


def test_an_unknown_name_lists_the_allowed_ones() -> None:
    listed = refusal(ACCEL_ACCELERATOR="tpu").partition("'tpu'; allowed are ")[2].partition(".\n")[0].split(", ")
    assert sorted(listed) == sorted(SUPPORTED_ACCELERATOR_LIST)
    assert "Did you mean cuda" in refusal(ACCEL_ACCELERATOR="cdua")


def test_both_variables_must_be_equal_and_an_empty_one_is_unset() -> None:
    message = refusal(ACCEL_ACCELERATOR="cpu", DS_ACCELERATOR="cuda")
    assert "ACCEL_ACCELERATOR='cpu' and DS_ACCELERATOR='cuda'" in message
    for both, requested in (("cpu", "cpu"), ("", None)):
        with env.scope(ACCEL_ACCELERATOR=both, DS_ACCELERATOR=both):
            selection = choose()
        assert selection.accelerator is not None
        assert selection.requested == requested


def test_ctrl_c_during_an_import_is_not_swallowed(machine: Machine, tmp_path: Path) -> None:
    machine.broken("torch_npu", KeyboardInterrupt(), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        choose()
