"""The per-device table of the contract, over simulated vendors."""

from __future__ import annotations

import copy
import gc
import importlib
import os
import pickle
import sys
from typing import Any, NamedTuple

import pytest
import torch
import torch._dynamo  # set_compile_backend() does so, which fails while a simulated torch.xpu is in place
from simulated_machines import Machine

from accelerator.cann import cann_version
from accelerator.errors import AcceleratorUnavailableError, DeviceIndexError, UnsupportedFeatureError
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
        ("mps", "MPS_Accelerator requires torch.mps"),
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


def test_xpu_pinning_goes_to_torch(machine: Machine) -> None:
    machine.native_xpu()
    torch.xpu.current_device = lambda: 1  # type: ignore[assignment] # the fake's
    accelerator = device_class("xpu")()

    class Tensor:
        def pin_memory(self, device: str) -> str:
            return f"pinned for {device}"

    assert accelerator.pin_memory(Tensor()) == "pinned for xpu:1"
    with pytest.raises(UnsupportedFeatureError, match="align_bytes=512"):
        accelerator.pin_memory(torch.zeros(4), align_bytes=512)


def test_xpu_pins_whole_pages_through_async_io(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.native_xpu()
    torch.xpu.current_device = lambda: 0  # type: ignore[assignment] # the fake's
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda *_, **__: False)  # torch has no hooks of XPU here
    accelerator = device_class("xpu")()
    data = torch.arange(12.0).reshape(3, 4)
    pinned = accelerator.pin_memory(data, align_bytes=0)
    assert torch.equal(pinned, data)
    assert pinned.data_ptr() % os.sysconf("SC_PAGESIZE") == 0
    assert accelerator.is_pinned(pinned)
    assert accelerator.is_pinned(pinned[1:])
    assert not accelerator.is_pinned(data)
    assert torch.equal(accelerator.pin_memory(data.t(), align_bytes=0, match_shape=False), data.t().flatten())
    assert accelerator.pin_memory(data, align_bytes=0, make_copy=False).shape == data.shape
    view = pinned[1:]
    del pinned
    gc.collect()
    assert accelerator.is_pinned(view)
    assert accelerator.unpin_memory(view) is view
    assert not accelerator.is_pinned(view)
    assert torch.equal(view, data[1:])
    assert not copy.deepcopy(accelerator).is_pinned(data)  # the handle of async_io is left behind


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


@pytest.mark.parametrize("directory", ["", "x86_64-linux", "aarch64-linux"])
def test_cann_version_is_read_from_the_installation_record(tmp_path: Any, directory: str) -> None:
    with env.scope(ASCEND_HOME_PATH=None):
        assert cann_version() is None
    with env.scope(ASCEND_HOME_PATH=str(tmp_path)):
        assert cann_version() is None
        (tmp_path / "ascend_nnae_install.info").mkdir()  # not a record
        (tmp_path / directory).mkdir(exist_ok=True)
        record = tmp_path / directory / "ascend_toolkit_install.info"
        record.write_text("package_name=Ascend-cann\nversion=8.0.RC2\narch=x86\n")
        assert cann_version() == "8.0.RC2"


@pytest.mark.parametrize(("index", "named"), [(2, "2"), (-1, "-1"), ("mlu:0", "'mlu:0'")])
def test_an_index_out_of_range_is_named_with_the_count(machine: Machine, index: Any, named: str) -> None:
    machine.mlu()

    def set_device(device: int) -> None:
        if device != 0:
            raise RuntimeError("cnrtSetDevice: 632012")

    torch.mlu.set_device = set_device  # type: ignore[attr-defined]
    accelerator = device_class("mlu")()
    accelerator.set_device(0)
    with pytest.raises(DeviceIndexError, match=f"no mlu device of index {named}; the number of devices is 1"):
        accelerator.set_device(index)


def test_what_a_driver_raises_for_a_device_that_is_there_is_passed_on(machine: Machine) -> None:
    machine.mlu()

    def set_device(_device: int) -> None:
        raise RuntimeError("out of memory")

    torch.mlu.set_device = set_device  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="out of memory"):
        device_class("mlu")().set_device(0)


def test_fp8_is_asked_of_the_device_module(machine: Machine) -> None:
    machine.mlu()
    assert device_class("mlu")().is_fp8_supported() is False
    torch.mlu.is_fp8_supported = lambda including_emulation=True: including_emulation  # type: ignore[attr-defined]
    assert device_class("mlu")().is_fp8_supported() is True


# Copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_model_that_holds_its_accelerator_can_be_copied_and_pickled(machine: Machine, row: Row) -> None:
    getattr(machine, row.device)()
    model = torch.nn.Linear(2, 2)
    model.accelerator = device_class(row.name)()
    model.accelerator.set_compile_backend("eager")
    for copied in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        assert type(copied.accelerator) is device_class(row.name)
        assert copied.accelerator.get_compile_backend() == "eager"
        assert copied.accelerator.device_count() == 1
        assert copied.accelerator.communication_backend_name() == row.communication


def test_a_copy_where_the_package_is_missing_says_so(machine: Machine) -> None:
    machine.npu()
    sent = pickle.dumps(device_class("npu")())
    machine.package("torch_npu")
    sys.modules["torch_npu"] = None  # type: ignore[assignment] # the receiving process has no such package
    with pytest.raises(AcceleratorUnavailableError, match="NPU_Accelerator requires torch_npu"):
        pickle.loads(sent)


@pytest.mark.slow
def test_an_accelerator_can_be_handed_to_a_spawned_process() -> None:
    from accelerator.cpu_accelerator import CPU_Accelerator

    with torch.multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(CPU_Accelerator.device_name, (CPU_Accelerator(),)) == "cpu"
