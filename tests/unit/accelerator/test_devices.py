"""The per-device table of the contract, over simulated vendors."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch._dynamo  # set_compile_backend() does so, which fails while a simulated torch.xpu is in place
from torch.utils.cpp_extension import BuildExtension

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.errors import AcceleratorUnavailableError, DeviceIndexError, UnsupportedFeatureError
from accelerator.npu_accelerator import cann_version
from op_builder import env
from tests.support.machines import Machine


class Row(NamedTuple):
    name: str
    communication: str | None
    visible: str
    exported: str
    dtypes: list[torch.dtype]
    true: str  # the predicates that are, of those below
    builders: str = "op_builder.host"
    compile_backend: str = "inductor"


PREDICATES = (
    "is_available is_synchronized_device use_host_timers resolves_data_dependency handles_memory_backpressure "
    "is_triton_supported is_fp8_supported is_fp64_supported prefer_triton_grouped_mm is_current_stream_capturing"
)
USUAL = "is_available is_fp64_supported"
ORDERED = "resolves_data_dependency handles_memory_backpressure"

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
ALL = [FP32, FP16, BF16]
OF_CPU = ALL if torch.ops.mkldnn._is_mkldnn_fp16_supported() else [FP32, BF16]
HPU_VISIBLE = "HABANA_VISIBLE_MODULES CUDA_VISIBLE_DEVICES"
ALWAYS = f"{USUAL} {ORDERED} is_synchronized_device use_host_timers"
TABLE = [
    Row("cpu", "gloo", "CUDA_VISIBLE_DEVICES", "", OF_CPU, ALWAYS, "op_builder.cpu"),
    # On a machine without one.
    Row("cuda", "nccl", "CUDA_VISIBLE_DEVICES", "NCCL", [FP32], "is_fp64_supported", "op_builder.cuda"),
    Row("xpu", "xccl", "ZE_AFFINITY_MASK", "", ALL, USUAL, "op_builder.xpu"),
    Row("npu", "hccl", "ASCEND_RT_VISIBLE_DEVICES", "ASCEND HCCL LD_LIBRARY PATH", ALL, USUAL),
    Row("mps", None, "CUDA_VISIBLE_DEVICES", "", [FP32], "is_available use_host_timers"),
    Row("hpu", "hccl", HPU_VISIBLE, "", ALL, f"{USUAL} {ORDERED}", compile_backend="hpu_backend"),
    Row("mlu", "cncl", "MLU_VISIBLE_DEVICES", "NEUWARE_HOME CNCL LD_LIBRARY PATH", ALL, f"{USUAL} is_triton_supported"),
    Row("supa", "bccl", "SUPA_VISIBLE_DEVICES", "BCCL BIREN SUPA LD_LIBRARY PATH", ALL, f"{USUAL} is_triton_supported"),
    # The fake torch.sdaa does not answer for bfloat16.
    Row("sdaa", "tccl", "SDAA_VISIBLE_DEVICES", "NCCL LD_LIBRARY PATH", [FP32, FP16], USUAL),
]


def install(machine: Machine, name: str) -> Any:
    machine.install({"xpu": "native_xpu", "cpu": "", "cuda": ""}.get(name, name))
    return device_class(name)()


def device_class(name: str) -> Any:
    return getattr(importlib.import_module(f"accelerator.{name}_accelerator"), f"{name.upper()}_Accelerator")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_devices_declare_their_properties(machine: Machine, row: Row) -> None:
    accelerator = install(machine, row.name)
    assert accelerator.communication_backend_name() == row.communication
    assert accelerator.visible_devices_envs() == row.visible.split()
    assert accelerator.export_envs() == row.exported.split()
    assert accelerator.get_compile_backend() == row.compile_backend
    assert accelerator.op_builder_dir() == row.builders
    assert accelerator.build_extension() is BuildExtension
    assert accelerator.supported_dtypes() == row.dtypes
    assert {name for name in PREDICATES.split() if getattr(accelerator, name)()} == set(row.true.split())
    assert accelerator.supports_nvtx_domain is (row.name == "cuda")
    assert accelerator.device_name() == row.name
    assert accelerator.device_name(1) == (row.name if row.name in ("cpu", "hpu") else f"{row.name}:1")
    assert accelerator.pin_memory_alignment() == (4096 if row.name == "npu" else 1)
    if row.name != "cuda":
        assert accelerator.register_host_memory(4096, 4096) is accelerator.unregister_host_memory(4096) is False

    child: dict[str, str] = {"HOME": "/home/a"}
    before = env.child_environment()
    accelerator.set_visible_devices_envs(child, [3, 1])
    assert child == {"HOME": "/home/a", **dict.fromkeys(row.visible.split(), "3,1")}
    assert env.child_environment() == before

    model = torch.nn.Linear(2, 2)  # one that holds its accelerator can be copied and pickled
    model.accelerator = accelerator
    accelerator.set_compile_backend("eager")
    for copied in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        assert type(copied.accelerator) is device_class(row.name)
        assert copied.accelerator.get_compile_backend() == "eager"
        assert copied.accelerator.device_count() == accelerator.device_count()


def test_pinned_memory_is_that_of_the_vendors_hooks(machine: Machine) -> None:
    class Vendor(device_class("npu")):  # type: ignore[misc]
        def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor + 1

        def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
            return bool(tensor.flatten()[0] == 1)

        def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Any) -> torch.Tensor:
            return tensor.new_ones(shape)

    machine.npu()
    accelerator = Vendor()
    data = torch.zeros(2, dtype=FP16)
    assert not accelerator.is_pinned(data)
    assert accelerator.is_pinned(accelerator.pin_memory(data, make_copy=True, match_shape=True))
    for made, shape, dtype in (
        (accelerator.pin_empty(2, 3, dtype=torch.int32), (2, 3), torch.int32),
        (accelerator.pin_empty((4,), dtype=FP32), (4,), FP32),
        (accelerator.pin_empty(dtype=FP32), (), FP32),
        (accelerator.pin_empty_like(data), (2,), FP16),
        (accelerator.pin_empty_like(data, dtype=BF16), (2,), BF16),
    ):
        assert (made.shape, made.dtype, accelerator.is_pinned(made)) == (shape, dtype, True)
    with pytest.raises(ValueError, match="npu:0"):
        accelerator.pin_empty_like(data, device="npu:0")


# XPU -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "host_timers"), [("2.1.40+xpu", True), ("2.5.10+xpu", True), ("2.6.10+xpu", False), ("2.10.0", False)]
)
def test_xpu_uses_host_timers_before_ipex_2_6(machine: Machine, version: str, host_timers: bool) -> None:
    machine.ipex(version=version)
    assert device_class("xpu")().use_host_timers() is host_timers


def test_xpu_uses_oneccl_and_the_build_command_of_ipex_if_they_are_installed(machine: Machine) -> None:
    accelerator = install(machine, "xpu")
    torch.xpu.current_stream = lambda index: ("stream", index)  # type: ignore[assignment] # the fake's
    assert accelerator.default_stream(1) == ("stream", 1), "it has one stream"
    machine.package("oneccl_bindings_for_pytorch")
    machine.ipex()
    machine.package("intel_extension_for_pytorch.xpu")
    machine.package("intel_extension_for_pytorch.xpu.cpp_extension", DpcppBuildExtension="theirs")
    assert device_class("xpu")().communication_backend_name() == "ccl"
    assert device_class("xpu")().build_extension() == "theirs"


def test_xpu_pins_memory_with_torch(machine: Machine) -> None:
    machine.native_xpu()
    torch.xpu.current_device = lambda: 1  # type: ignore[assignment] # the fake's
    accelerator = device_class("xpu")()
    tensor = SimpleNamespace(pin_memory=lambda device: f"pinned for {device}")
    assert accelerator.pin_memory(tensor) == "pinned for xpu:1"
    with pytest.raises(UnsupportedFeatureError, match="align_bytes=512"):
        accelerator.pin_memory(torch.zeros(4), align_bytes=512)


# Others ----------------------------------------------------------------------------------


def test_mps_is_one_device_with_one_queue(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.mps()
    monkeypatch.delattr(torch.mps, "Stream", raising=False)  # which torch has since 2.15
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
    with pytest.raises(DeviceIndexError, match="only device"):
        accelerator.set_device(1)


def test_mps_uses_the_streams_of_torch_where_it_has_them(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.mps()
    fakes = {"Stream": object, "stream": str, "current_stream": lambda: "now", "default_stream": lambda: "default"}
    for name, value in fakes.items():
        monkeypatch.setattr(torch.mps, name, value, raising=False)
    accelerator = device_class("mps")()
    assert accelerator.Stream is object
    assert (accelerator.current_stream(0), accelerator.default_stream()) == ("now", "default")
    assert accelerator.stream("chosen") == "chosen"


@pytest.mark.parametrize("directory", ["", "aarch64-linux"])
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


@pytest.mark.parametrize("name", ["cpu", "mps"])
def test_a_device_that_ignores_indices_refuses_what_names_no_device(machine: Machine, name: str) -> None:
    accelerator = install(machine, name)
    for member, declared in vars(DeepSpeedAccelerator).items():
        if "device_index" in getattr(getattr(declared, "__code__", None), "co_varnames", ()):
            state = {"new_state": torch.get_rng_state()} if member == "set_rng_state" else {}
            for wrong in ("nonsense", 1.5, torch.device("cuda")):
                with pytest.raises(DeviceIndexError, match=f"device of type {name}"):
                    getattr(accelerator, member)(*state.values(), wrong)
                with pytest.raises(DeviceIndexError, match=f"device of type {name}"):
                    getattr(accelerator, member)(**state, device_index=wrong)
    for device in (0, "0", torch.device(name), name):
        accelerator.set_device(device)
        assert accelerator.device_name(device).partition(":")[0] == name


def test_the_name_of_a_device_without_an_index_ignores_one() -> None:
    accelerator = device_class("cpu")()
    for index in (None, -1, 0, 7):
        assert accelerator.device_name(index) == "cpu"
        assert accelerator.device(index) == torch.device("cpu")


@pytest.mark.parametrize("index", [2, -1, "xpu:1", "nonsense"])
def test_an_index_out_of_range_is_an_error_that_names_it(machine: Machine, index: Any) -> None:
    accelerator = install(machine, "xpu")

    def set_device(_device: int) -> None:
        raise RuntimeError("out of memory")

    torch.xpu.set_device = set_device  # type: ignore[assignment]
    for existing in (0, "xpu:0"):
        with pytest.raises(RuntimeError, match="out of memory"):  # the driver's own
            accelerator.set_device(existing)
        assert accelerator.device_name(existing) == "xpu:0"
    with pytest.raises(DeviceIndexError, match=str(index)):
        accelerator.set_device(index)
    if index in (-1, "nonsense"):  # what no machine has
        with pytest.raises(DeviceIndexError, match=str(index)):
            accelerator.device_name(index)


def test_unpickling_without_the_package_is_an_error(machine: Machine) -> None:
    sent = pickle.dumps(install(machine, "npu"))
    sys.modules["torch_npu"] = None  # type: ignore[assignment] # the receiving process has no such package
    with pytest.raises(AcceleratorUnavailableError, match="torch_npu"):
        pickle.loads(sent)
