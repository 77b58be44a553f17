"""The per-device table of the contract, over simulated vendors."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

import pytest
import torch
from simulated_machines import Machine

from accelerator.errors import AcceleratorUnavailableError, DeviceIndexError, UnsupportedFeatureError
from accelerator.npu_accelerator import cann_version
from op_builder import env


class Row(NamedTuple):
    name: str
    device: str  # how Machine installs it
    communication: str | None
    visible: list[str]
    exported: list[str]
    compile_backend: str
    builders: str
    dtypes: list[torch.dtype]
    triton: bool
    indexed: bool = True


FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
COLLECTIVES = ["LD_LIBRARY", "PATH"]
TABLE = [
    Row("xpu", "native_xpu", "xccl", ["ZE_AFFINITY_MASK"], [], "inductor", "op_builder.xpu", [FP32, FP16, BF16], False),
    Row(
        "npu",
        "npu",
        "hccl",
        ["ASCEND_RT_VISIBLE_DEVICES"],
        ["ASCEND", "HCCL", *COLLECTIVES],
        "inductor",
        "op_builder.host",
        [FP32, FP16, BF16],
        False,
    ),
    Row("mps", "mps", None, ["CUDA_VISIBLE_DEVICES"], [], "inductor", "op_builder.host", [FP32], False),
    Row(
        "hpu",
        "hpu",
        "hccl",
        ["HABANA_VISIBLE_MODULES", "CUDA_VISIBLE_DEVICES"],
        [],
        "hpu_backend",
        "op_builder.host",
        [FP32, FP16, BF16],
        False,
        indexed=False,
    ),
    Row(
        "mlu",
        "mlu",
        "cncl",
        ["MLU_VISIBLE_DEVICES"],
        ["NEUWARE_HOME", "CNCL", *COLLECTIVES],
        "inductor",
        "op_builder.host",
        [FP32, FP16, BF16],
        True,
    ),
    Row(
        "sdaa",
        "sdaa",
        "tccl",
        ["SDAA_VISIBLE_DEVICES"],
        ["NCCL", *COLLECTIVES],
        "inductor",
        "op_builder.host",
        [FP32, FP16],  # the fake torch.sdaa does not answer for bfloat16
        False,
    ),
]


def device_class(name: str) -> Any:
    return getattr(importlib.import_module(f"accelerator.{name}_accelerator"), f"{name.upper()}_Accelerator")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_device_declares_what_the_table_says(machine: Machine, row: Row) -> None:
    getattr(machine, row.device)()
    accelerator = device_class(row.name)()
    assert accelerator.communication_backend_name() == row.communication
    assert accelerator.visible_devices_envs() == row.visible
    assert accelerator.export_envs() == row.exported
    assert accelerator.get_compile_backend() == row.compile_backend
    assert accelerator.op_builder_dir() == row.builders
    assert accelerator.supported_dtypes() == row.dtypes
    assert accelerator.is_triton_supported() is row.triton
    assert accelerator.device_name() == row.name
    assert accelerator.device_name(1) == (f"{row.name}:1" if row.indexed else row.name)
    assert accelerator.supports_nvtx_domain() is False
    assert accelerator.is_synchronized_device() is False
    assert accelerator.use_host_timers() is (row.name == "mps")
    assert accelerator.resolves_data_dependency() is (row.name == "hpu")
    assert accelerator.handles_memory_backpressure() is (row.name == "hpu")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_visible_devices_are_written_into_the_given_environment_only(machine: Machine, row: Row) -> None:
    getattr(machine, row.device)()
    child: dict[str, str] = {"HOME": "/home/a"}
    before = env.child_environment()
    device_class(row.name)().set_visible_devices_envs(child, [3, 1])
    assert child == {"HOME": "/home/a", **dict.fromkeys(row.visible, "3,1")}
    assert env.child_environment() == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("xpu", "XPU_Accelerator requires intel_extension_for_pytorch or a torch with XPU support"),
        ("npu", "NPU_Accelerator requires torch_npu"),
        ("hpu", "HPU_Accelerator requires habana_frameworks.torch.hpu"),
        ("mlu", "MLU_Accelerator requires torch_mlu"),
        ("sdaa", "SDAA_Accelerator requires torch_sdaa"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_importing_needs_no_vendor_package_and_constructing_says_so(name: str, message: str) -> None:
    sys.modules.pop(f"accelerator.{name}_accelerator", None)
    constructor = device_class(name)
    with pytest.raises(AcceleratorUnavailableError) as caught:
        constructor()
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_graphs_without_a_graph_class_are_refused(machine: Machine) -> None:
    machine.npu()
    with pytest.raises(UnsupportedFeatureError, match=r"torch\.npu has no graphs"):
        device_class("npu")().create_graph()


def test_host_ops_are_the_builders_of_devices_without_their_own(machine: Machine) -> None:
    machine.npu()
    builder = device_class("npu")().create_op_builder("CPUAdamBuilder")
    assert builder.name == "cpu_adam"


# XPU -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "host_timers"),
    [("2.1.40+xpu", True), ("2.5.10+xpu", True), ("2.6.10+xpu", False), ("2.10.0", False), (None, False)],
)
def test_xpu_times_on_the_host_before_ipex_2_6(machine: Machine, version: str | None, host_timers: bool) -> None:
    if version is None:
        machine.native_xpu()
    else:
        machine.ipex(version=version)
    assert device_class("xpu")().use_host_timers() is host_timers


def test_xpu_communicates_through_oneccl_when_it_imports(machine: Machine) -> None:
    machine.native_xpu()
    machine.package("oneccl_bindings_for_pytorch")
    assert device_class("xpu")().communication_backend_name() == "ccl"


def test_xpu_default_stream_is_the_current_one(machine: Machine) -> None:
    machine.native_xpu()
    torch.xpu.current_stream = lambda index: ("stream", index)  # type: ignore[assignment] # the fake's
    assert device_class("xpu")().default_stream(1) == ("stream", 1)


def test_xpu_builds_with_ipex_when_it_is_installed(machine: Machine) -> None:
    from torch.utils.cpp_extension import BuildExtension

    machine.native_xpu()
    assert device_class("xpu")().build_extension() is BuildExtension
    machine.ipex()
    machine.package("intel_extension_for_pytorch.xpu")
    machine.package("intel_extension_for_pytorch.xpu.cpp_extension", DpcppBuildExtension="theirs")
    assert device_class("xpu")().build_extension() == "theirs"


def test_xpu_pinning_goes_to_torch_and_page_alignment_is_refused(machine: Machine) -> None:
    machine.native_xpu()
    torch.xpu.current_device = lambda: 1  # type: ignore[assignment] # the fake's
    accelerator = device_class("xpu")()

    class Tensor:
        def pin_memory(self, device: str) -> str:
            return f"pinned for {device}"

    assert accelerator.pin_memory(Tensor()) == "pinned for xpu:1"
    with pytest.raises(UnsupportedFeatureError, match="page-aligned memory from the op async_io"):
        accelerator.pin_memory(torch.zeros(4), align_bytes=0)


# Others ----------------------------------------------------------------------------------


def test_mps_is_one_device_with_one_queue(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.mps()
    waits: list[str] = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waits.append("synchronized"))
    accelerator = device_class("mps")()
    assert accelerator.device_count() == 1
    assert accelerator.current_device_name() == "mps:0"
    assert accelerator.device(0) == torch.device("mps", 0)
    with accelerator.stream(accelerator.Stream()):
        accelerator.current_stream().synchronize()  # must wait: the device works on while the host goes on
    assert waits == ["synchronized"]
    assert accelerator.Event is torch.mps.Event
    with pytest.raises(UnsupportedFeatureError):
        accelerator.create_graph()


def test_mps_refuses_a_second_device(machine: Machine) -> None:
    machine.mps()
    accelerator = device_class("mps")()
    accelerator.set_device(0)
    with pytest.raises(DeviceIndexError, match="There is one mps device, index 0, found index 1"):
        accelerator.set_device(1)


def test_hpu_current_device_carries_no_index(machine: Machine) -> None:
    machine.hpu()
    assert device_class("hpu")().current_device_name() == "hpu"


def test_cann_version_is_read_from_the_installation_record(tmp_path: Any) -> None:
    with env.scope(ASCEND_HOME_PATH=None):
        assert cann_version() is None
    with env.scope(ASCEND_HOME_PATH=str(tmp_path)):
        assert cann_version() is None
        (tmp_path / "ascend_toolkit_install.info").write_text("package_name=Ascend-cann\nversion=8.0.RC2\narch=x86\n")
        assert cann_version() == "8.0.RC2"
