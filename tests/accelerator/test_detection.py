"""Choosing among candidates: tables of simulated machines, and the pure functions under them."""

# ruff: noqa: ARG001 - the fixture `machine` is there for what it does

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_machines import Machine, accepted_label, reasons
from test_process import run_python

from accelerator.catalog import SUPPORTED_ACCELERATOR_LIST
from accelerator.cpu_accelerator import CPU_Accelerator
from accelerator.detection import Candidate, Chosen, Refused, detect, select_named
from accelerator.errors import AcceleratorUnavailableError
from accelerator.selection import choose
from op_builder import env

# Which devices a machine has -> which candidate detection takes.
DETECTION = [
    ("", "cpu"),
    ("cuda", "cuda"),
    ("mlu", "mlu"),
    ("mlu cuda", "mlu"),
    ("hpu mlu cuda", "hpu"),
    ("mps hpu mlu cuda", "mps"),
    ("sdaa mps hpu mlu cuda", "sdaa"),
    ("npu sdaa mps hpu mlu cuda", "npu"),
    ("native_xpu", "xpu (torch)"),
    ("native_xpu npu sdaa mps hpu mlu", "xpu (torch)"),
    ("native_xpu cuda", "cuda"),
    ("native_xpu npu cuda", "npu"),
    ("ipex", "xpu (IPEX)"),
    ("ipex cuda", "xpu (IPEX)"),
    ("ipex npu sdaa mps hpu mlu cuda", "xpu (IPEX)"),
    ("xpu_external ipex native_xpu npu sdaa mps hpu mlu cuda", "xpu.external"),
]


def furnish(machine: Machine, devices: str) -> None:
    for device in devices.split():
        if device == "cuda":
            machine.cuda(2)
        else:
            getattr(machine, device)()


@pytest.mark.parametrize(("devices", "label"), DETECTION)
def test_detection_takes_the_first_device_that_answers(machine: Machine, devices: str, label: str) -> None:
    furnish(machine, devices)
    selection = choose()
    assert isinstance(selection, Chosen)
    assert accepted_label(selection) == label
    assert selection.name == label.split()[0]
    assert selection.requested is None


def test_the_trace_has_every_candidate_in_the_order_asked(machine: Machine) -> None:
    machine.cuda(1)
    selection = choose()
    assert [verdict.label for verdict in selection.trace] == [
        "xpu.external",
        "xpu (IPEX)",
        "xpu (torch)",
        "npu",
        "sdaa",
        "mps",
        "hpu",
        "mlu",
        "cuda",
        "cpu",
    ]
    assert "torch_npu" in reasons(selection)["npu"]
    assert reasons(selection)["cpu"] == "not asked: cuda comes first"


def test_native_xpu_gives_way_to_cuda_and_says_so(machine: Machine) -> None:
    furnish(machine, "native_xpu cuda")
    assert reasons(choose())["xpu (torch)"] == "there is a CUDA device"


# What answers beside a CUDA that raises when it is asked -> which candidate detection takes.
BESIDE_A_BROKEN_CUDA = [("native_xpu", "xpu (torch)"), ("ipex", "xpu (IPEX)"), ("npu", "npu"), ("", "cpu")]


@pytest.mark.parametrize(("devices", "label"), BESIDE_A_BROKEN_CUDA)
def test_a_broken_cuda_hides_no_other_device(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, devices: str, label: str
) -> None:
    def fail() -> int:
        raise RuntimeError("driver and library do not fit")

    furnish(machine, devices)
    monkeypatch.setattr(torch.cuda, "device_count", fail)
    selection = choose()
    assert accepted_label(selection) == label
    blamed = [name for name, reason in reasons(selection).items() if "do not fit" in reason]
    assert blamed == (["cuda"] if label == "cpu" else [])


@pytest.mark.parametrize("device", ["xpu_external", "ipex", "native_xpu", "npu", "sdaa", "hpu", "mlu"])
def test_a_package_without_a_device_is_a_rejection(machine: Machine, device: str) -> None:
    getattr(machine, device)(available=False)
    selection = choose()
    assert isinstance(selection, Chosen)
    assert selection.name == "cpu"
    assert any("no device is available" in reason for reason in reasons(selection).values())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ImportError("libascend.so: cannot open shared object file"), "ImportError: libascend.so: cannot open shared"),
        (OSError("driver 3 too old\nlong story"), "OSError: driver 3 too old"),
        (SystemExit(3), "SystemExit: 3"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (RecursionError("deep"), "RecursionError: deep"),
    ],
)
def test_a_broken_vendor_package_is_a_rejection_with_its_reason(
    machine: Machine, tmp_path: Path, error: BaseException, reason: str
) -> None:
    machine.broken("torch_npu", error, tmp_path)
    machine.cuda(1)
    selection = choose()
    assert isinstance(selection, Chosen)
    assert selection.name == "cuda"
    assert reasons(selection)["npu"].startswith(reason)
    assert "\n" not in reasons(selection)["npu"]


def test_a_broken_ipex_does_not_hide_native_xpu(machine: Machine, tmp_path: Path) -> None:
    machine.native_xpu()
    machine.broken("intel_extension_for_pytorch", RuntimeError("built for another torch"), tmp_path)
    selection = choose()
    assert accepted_label(selection) == "xpu (torch)"
    assert reasons(selection)["xpu (IPEX)"] == "RuntimeError: built for another torch"


def test_an_ipex_that_ends_the_process_hides_nothing_and_runs_once(machine: Machine, tmp_path: Path) -> None:
    machine.native_xpu()
    machine.broken("intel_extension_for_pytorch", SystemExit(127), tmp_path)  # built for another torch, it calls exit()
    selection = choose()
    assert accepted_label(selection) == "xpu (torch)"
    assert reasons(selection)["xpu (IPEX)"] == "SystemExit: 127"
    choose()
    assert (tmp_path / "imports").read_text().split() == ["intel_extension_for_pytorch"]


def test_a_oneccl_that_ends_the_process_leaves_the_cpu(machine: Machine, tmp_path: Path) -> None:
    machine.broken("oneccl_bindings_for_pytorch", SystemExit(127), tmp_path)
    selection = choose()
    assert isinstance(selection, Chosen)
    assert (selection.name, selection.accelerator.communication_backend_name()) == ("cpu", "gloo")


def test_constructing_over_a_package_that_ends_the_process_is_an_error(machine: Machine, tmp_path: Path) -> None:
    from accelerator.npu_accelerator import NPU_Accelerator

    machine.broken("torch_npu", SystemExit(127), tmp_path)
    for _ in range(2):
        with pytest.raises(
            AcceleratorUnavailableError, match=r"NPU_Accelerator requires torch_npu \(SystemExit: 127\)"
        ):
            NPU_Accelerator()
    assert (tmp_path / "imports").read_text().split() == ["torch_npu"]


def test_a_package_that_was_absent_may_be_installed_later(machine: Machine) -> None:
    assert reasons(choose())["npu"].startswith("ModuleNotFoundError")
    machine.npu()
    assert accepted_label(choose()) == "npu"


@pytest.mark.parametrize("device", ["cuda", "npu", "mlu", "sdaa", "native_xpu"])
def test_detection_starts_no_driver(machine: Machine, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """is_available() starts it on CUDA (cuInit) and MLU (cnInit), and then no forked child can use the device."""
    furnish(machine, device)

    def start() -> bool:
        raise AssertionError("the driver was started")

    name = device.removeprefix("native_")
    monkeypatch.setattr(getattr(torch, name), "is_available", start)
    selection = choose()
    assert isinstance(selection, Chosen)
    assert selection.name == name
    assert selection.accelerator.is_available()


# The override ----------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["ACCEL_ACCELERATOR", "DS_ACCELERATOR"])
@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_cpu_and_cuda_need_no_device(machine: Machine, variable: str, name: str) -> None:
    with env.scope(**{variable: name}):
        selection = choose()
    assert isinstance(selection, Chosen)
    assert (selection.name, selection.requested) == (name, name)
    assert selection.accelerator.device_name() == name


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("xpu", "ipex"),
        ("xpu", "native_xpu"),
        ("xpu", "native_xpu cuda"),
        ("xpu.external", "xpu_external"),
        ("npu", "npu"),
        ("sdaa", "sdaa"),
        ("mps", "mps"),
        ("hpu", "hpu"),
        ("mlu", "mlu"),
        ("cuda", "npu cuda"),
        ("cpu", "npu cuda"),
    ],
)
def test_an_override_takes_its_device_whatever_comes_first(machine: Machine, name: str, device: str) -> None:
    furnish(machine, device)
    with env.scope(ACCEL_ACCELERATOR=name):
        selection = choose()
    assert isinstance(selection, Chosen)
    assert selection.name == name


MISSING = [
    ("xpu", "XPU_Accelerator requires intel_extension_for_pytorch or a torch with XPU support"),
    ("xpu.external", "XPU_Accelerator external requires intel_extension_for_deepspeed"),
    ("npu", "NPU_Accelerator requires torch_npu"),
    ("sdaa", "SDAA_Accelerator requires torch_sdaa"),
    ("mps", "MPS_Accelerator requires torch.mps"),
    ("hpu", "HPU_Accelerator requires habana_frameworks.torch.hpu"),
    ("mlu", "MLU_Accelerator requires torch_mlu"),
]


@pytest.mark.parametrize(("name", "message"), MISSING)
def test_an_override_without_its_package_says_what_it_needs(machine: Machine, name: str, message: str) -> None:
    with env.scope(ACCEL_ACCELERATOR=name):
        selection = choose()
    assert isinstance(selection, Refused)
    assert isinstance(selection.error, ValueError)
    assert message in str(selection.error)


def test_the_remedy_for_a_missing_package_is_to_install_it(machine: Machine) -> None:
    with env.scope(ACCEL_ACCELERATOR="npu"):
        selection = choose()
    assert isinstance(selection, Refused)
    assert selection.error.remedy.startswith("Install torch_npu, set ACCEL_ACCELERATOR to another name, or unset")
    machine.npu(available=False)
    with env.scope(ACCEL_ACCELERATOR="npu"):
        selection = choose()
    assert isinstance(selection, Refused)
    assert selection.error.remedy.startswith("Set ACCEL_ACCELERATOR to another name")


def test_the_remedy_for_xpu_is_not_ipex_alone(machine: Machine) -> None:
    with env.scope(ACCEL_ACCELERATOR="xpu"):
        selection = choose()
    assert isinstance(selection, Refused)
    assert selection.error.remedy.startswith("Install one of these, set ACCEL_ACCELERATOR to another name")


@pytest.mark.parametrize("name", ["cpu", "cuda", "npu", None])
def test_a_torch_that_is_broken_itself_is_told(tmp_path: Path, name: str | None) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open shared object file')\n")
    path = f"{tmp_path}:{Path(__file__).parents[2]}"
    result = run_python("-m", "accelerator.report", ACCEL_ACCELERATOR=name, PYTHONPATH=path)
    assert result.returncode == 2
    assert "OSError: libtorch_cpu.so: cannot open shared object file" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("name", "message"), [row for row in MISSING if row[0] != "mps"])
def test_an_override_without_its_device_says_what_it_needs(machine: Machine, name: str, message: str) -> None:
    getattr(machine, {"xpu": "native_xpu", "xpu.external": "xpu_external"}.get(name, name))(available=False)
    with env.scope(DS_ACCELERATOR=name):
        selection = choose()
    assert isinstance(selection, Refused)
    assert message in str(selection.error)
    assert "no device is available" in str(selection.error)


def test_an_unknown_name_lists_the_allowed_ones(machine: Machine) -> None:
    with env.scope(ACCEL_ACCELERATOR="tpu"):
        selection = choose()
    assert isinstance(selection, Refused)
    message = str(selection.error)
    assert "'tpu'" in message
    listed = message.partition("allowed are ")[2].partition(".\n")[0].split(", ")
    assert sorted(listed) == sorted(SUPPORTED_ACCELERATOR_LIST)


def test_both_variables_must_agree(machine: Machine) -> None:
    with env.scope(ACCEL_ACCELERATOR="cpu", DS_ACCELERATOR="cuda"):
        selection = choose()
    assert isinstance(selection, Refused)
    assert "ACCEL_ACCELERATOR='cpu' and DS_ACCELERATOR='cuda'" in str(selection.error)
    with env.scope(ACCEL_ACCELERATOR="cpu", DS_ACCELERATOR="cpu"):
        assert isinstance(choose(), Chosen)


def test_an_empty_override_is_no_override(machine: Machine) -> None:
    with env.scope(ACCEL_ACCELERATOR="", DS_ACCELERATOR=""):
        selection = choose()
    assert isinstance(selection, Chosen)
    assert selection.requested is None


# The pure functions ----------------------------------------------------------------------


def candidate(name: str, priority: int = 0, reason: str | None = None, **extra: Any) -> Candidate:
    settings: dict[str, Any] = {"probe": lambda: reason, "create": CPU_Accelerator, **extra}
    return Candidate(name, name, priority, **settings)


def must_not_be_asked() -> str | None:
    raise AssertionError("asked")


def test_detect_asks_by_falling_priority_and_stops_at_the_first() -> None:
    selection = detect([candidate("low", 1, probe=must_not_be_asked), candidate("high", 9), candidate("top", 10, "no")])
    assert isinstance(selection, Chosen)
    assert selection.name == "high"
    assert reasons(selection) == {"top": "no", "low": "not asked: high comes first"}


def test_equal_priorities_are_asked_in_the_given_order() -> None:
    selection = detect([candidate("first"), candidate("second")])
    assert isinstance(selection, Chosen)
    assert selection.name == "first"


def test_detect_without_any_that_works_is_refused_with_all_reasons() -> None:
    selection = detect([candidate("a", reason="no a"), candidate("b", reason="no b")])
    assert isinstance(selection, Refused)
    assert "a: no a" in str(selection.error)
    assert "b: no b" in str(selection.error)


def test_an_object_that_is_no_accelerator_is_a_rejection() -> None:
    selection = detect([candidate("odd", 1, create=object), candidate("cpu")])
    assert isinstance(selection, Chosen)
    assert selection.name == "cpu"
    assert reasons(selection)["odd"].startswith("not an accelerator: missing: is_synchronized_device")


def test_a_constructor_that_raises_is_a_rejection() -> None:
    def create() -> Any:
        raise MemoryError("no room")

    assert reasons(detect([candidate("big", 1, create=create), candidate("cpu")]))["big"] == "MemoryError: no room"


def test_ctrl_c_during_a_probe_is_not_swallowed() -> None:
    def probe() -> str | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        detect([candidate("slow", probe=probe)])


def test_a_named_candidate_may_have_several_ways() -> None:
    ways = [candidate("x", reason="way one shut"), candidate("x"), candidate("x", probe=must_not_be_asked)]
    assert isinstance(select_named("x", ways), Chosen)


def test_an_objection_does_not_count_against_a_name() -> None:
    shy = candidate("shy", 1, objection=lambda: "others first")
    assert reasons(detect([shy, candidate("cpu")]))["shy"] == "others first"
    assert isinstance(select_named("shy", [shy]), Chosen)
