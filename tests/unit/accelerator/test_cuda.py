"""CUDA without a device, NVML with a fake package, and tests that need a device."""

# ruff: noqa: ARG001, ARG005 - fixtures without a value, fakes with torch's signatures

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accelerator import nvml
from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.cuda_accelerator import CUDA_Accelerator, _nvtx
from accelerator.errors import AcceleratorUnavailableError
from accelerator.selection import choose
from op_builder import env
from tests.support.conformance import run_suite, with_outcome
from tests.support.machines import Machine
from tests.support.processes import fork, wait_for

UUIDS = ["GPU-aaaa1111-0", "GPU-bbbb2222-1", "GPU-bbbb3333-2"]
FREE = [10, 20, 30]


def test_on_windows_ranks_communicate_by_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    assert CUDA_Accelerator().communication_backend_name() == "gloo"


def test_without_a_device_nothing_starts(machine: Machine) -> None:
    accelerator = CUDA_Accelerator()
    assert accelerator.device_count() == 0
    assert accelerator.device_capability() is None
    assert accelerator.create_op_builder("CPUAdamBuilder").name == "cpu_adam"
    if not torch.backends.cuda.is_built():  # or torch's functions answer
        accelerator.range_push("step")
        accelerator.range_pop()
        assert accelerator.memory_snapshot() == []
    assert not torch.cuda.is_initialized()


NEEDING_A_DEVICE = (
    "set_device current_device current_device_name synchronize get_device_properties get_rng_state initial_seed "
    "default_generator current_stream default_stream reset_max_memory_allocated reset_max_memory_cached "
    "reset_peak_memory_stats total_memory available_memory create_graph capture_to_graph pin_memory pin_empty "
    "pin_empty_like register_host_memory unregister_host_memory"
)


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="torch's own functions work without a device")
def test_without_a_device_methods_work_or_name_what_is_missing(machine: Machine) -> None:
    accelerator = CUDA_Accelerator()
    arguments: dict[str, Any] = {"device_index": 0, "seed": 3, "new_state": torch.get_rng_state(), "stream": None}
    arguments |= {"callback": print, "msg": "step", "graph": object(), "tensor": torch.ones(2), "size": 2}
    arguments |= {"address": 4096, "num_bytes": 4096, "class_name": "CPUAdamBuilder", "env": {}, "ids": [0]}
    arguments["backend"] = "eager"
    failed = {}
    for name, declared in inspect.getmembers(DeepSpeedAccelerator, inspect.isfunction):
        if not name.startswith("_") and name != "replay_graph":
            given = [arguments[each] for each in inspect.signature(declared).parameters if each in arguments]
            dtype = {"dtype": torch.float32} if name == "pin_empty" else {}
            try:
                getattr(accelerator, name)(*given, **dtype)
            except AcceleratorUnavailableError as error:
                failed[name] = str(error)
    assert set(failed) == set(NEEDING_A_DEVICE.split())
    assert all("requires a torch with CUDA" in message for message in failed.values())
    with pytest.raises(AcceleratorUnavailableError, match="no device"):
        accelerator.FloatTensor([1.0])


@pytest.mark.parametrize(
    ("capability", "fp16", "fp8", "grouped"),
    [
        ((6, 1), False, False, False),
        ((7, 5), True, False, True),
        ((8, 9), True, True, True),
        ((9, 0), True, True, False),
    ],
)
def test_types_by_compute_capability(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], fp16: bool, fp8: bool, grouped: bool
) -> None:
    machine.cuda(1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: capability >= (8, 0))
    accelerator = CUDA_Accelerator()
    assert accelerator.is_fp16_supported() is fp16
    assert accelerator.is_triton_supported() is (capability >= (8, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert accelerator.prefer_triton_grouped_mm() is grouped
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert accelerator.prefer_triton_grouped_mm() is False, "Triton is not installed"
    assert accelerator.is_fp8_supported() is fp8
    assert accelerator.is_bf16_supported() is (capability >= (8, 0))


@pytest.mark.parametrize(("architecture", "fp8"), [("gfx942:sramecc+", True), ("gfx90a", False), ("gfx1201", True)])
def test_fp8_on_rocm_depends_on_the_architecture(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, architecture: str, fp8: bool
) -> None:
    machine.cuda(1)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(gcnArchName=architecture))
    assert CUDA_Accelerator().is_fp8_supported() is fp8


def test_host_memory_is_registered_with_the_driver(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    runtime = SimpleNamespace(
        cudaHostRegister=lambda *arguments: calls.append(arguments) or 0,
        cudaHostUnregister=lambda *arguments: calls.append(arguments) or 1,
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", lambda code: pytest.fail("CUDA error") if code else None)
    assert CUDA_Accelerator().register_host_memory(4096, 8192) is True
    with pytest.raises(pytest.fail.Exception, match="CUDA error"):
        CUDA_Accelerator().unregister_host_memory(4096)
    assert calls == [(4096, 8192, 0), (4096,)]


def test_the_backends_version_is_that_of_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert CUDA_Accelerator().communication_backend_version() is None
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    assert CUDA_Accelerator().communication_backend_version() == (2, 27, 5)


# NVML ------------------------------------------------------------------------------------


def install_nvml(machine: Machine, models: str = "AAA") -> None:
    machine.package(
        "pynvml",
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(UUIDS),
        nvmlDeviceGetHandleByIndex=lambda index: range(len(UUIDS))[index],
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle],
        nvmlDeviceGetName=lambda handle: models[handle],
        nvmlDeviceGetMigMode=lambda handle: ({1: models == IN_MIG, 2: False}[handle], 0),  # the first raises
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(free=5 if isinstance(handle, str) else FREE[handle]),
    )


ALIKE, MIXED, IN_MIG, FASTEST, BUS = "AAA", "ABA", "MMM", "FASTEST_FIRST", "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("models", "visible", "order", "index", "free"),
    [
        (ALIKE, None, None, 2, 30),
        (ALIKE, "2,0", None, 0, 30),
        (ALIKE, "GPU-bbbb3333-2,0", None, 0, 30),
        (ALIKE, "GPU-aaaa", None, 0, 10),
        (ALIKE, "MIG-c0ffee", None, 0, 5),
        (ALIKE, "GPU-none", None, 0, None),
        (ALIKE, "0", None, 3, None),
        (ALIKE, None, None, -1, None),  # not the last one
        (ALIKE, "2,0", None, -1, None),
        (ALIKE, "-1", None, 0, None),  # CUDA stops at the first entry that is no device
        (ALIKE, "0,-1,1", None, 1, None),
        (ALIKE, "2,2", None, 0, None),
        (ALIKE, "2gpu", None, 0, 30),
        # Different models have the same numbers only in the order of the bus.
        (MIXED, None, None, 0, None),
        (MIXED, "1", FASTEST, 0, None),
        (MIXED, "1", BUS, 0, 20),
        (MIXED, "GPU-bbbb2222-1", None, 0, 20),
        (MIXED, "MIG-c0ffee", None, 0, 5),
        # In MIG mode NVML does not know which slice CUDA uses.
        (IN_MIG, None, None, 1, None),
        (IN_MIG, None, None, 2, 30),
    ],
)
def test_free_memory_is_that_of_the_visible_device(
    machine: Machine, models: str, visible: str | None, order: str | None, index: int, free: int | None
) -> None:
    install_nvml(machine, models)
    assert nvml.free_memory_bytes(visible, order, index) == free


def test_available_memory_uses_nvml_before_torch(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (100 + (1 if device is None else device), 1000))
    accelerator = CUDA_Accelerator()
    assert accelerator.available_memory() == 101
    install_nvml(machine)
    assert accelerator.available_memory() == 20
    with env.scope(CUDA_VISIBLE_DEVICES="2,0"):
        assert accelerator.available_memory() == 10
        assert accelerator.available_memory(0) == 30
        assert accelerator.available_memory(7) == 107
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert accelerator.available_memory() == 101


def test_a_domain_is_passed_to_the_nvtx_package(machine: Machine) -> None:
    calls: list[tuple[Any, ...]] = []
    machine.package(
        "nvtx",
        push_range=lambda msg, domain, category: calls.append(("push", msg, domain, category)),
        pop_range=lambda domain: calls.append(("pop", domain)),
    )
    _nvtx.cache_clear()
    try:
        CUDA_Accelerator().range_push("step", domain="train", category="loop")
        CUDA_Accelerator().range_pop(domain="train")
    finally:
        _nvtx.cache_clear()
    assert calls == [("push", "step", "train", "loop"), ("pop", "train")]


# On a device -----------------------------------------------------------------------------

on_device = pytest.mark.skipif(not torch.backends.cuda.is_built() or torch.cuda.device_count() == 0, reason="no CUDA")


@pytest.mark.cuda
@on_device
def test_detection_starts_no_context_so_a_forked_child_can_use_the_device() -> None:
    if torch.cuda.is_initialized():
        pytest.skip("this process has used CUDA already")
    assert choose().trace
    assert CUDA_Accelerator().is_available()
    assert not torch.cuda.is_initialized()

    def use() -> None:
        assert torch.ones(4, device="cuda").sum().item() == 4

    assert wait_for([fork(use)]) == [0]


@pytest.mark.cuda
@on_device
def test_cuda_conforms() -> None:
    outcomes = run_suite("--accelerator", "cuda")
    assert len(outcomes) > 50
    assert with_outcome("failed", outcomes) == {}


@pytest.mark.cuda
@on_device
def test_memory_that_the_driver_does_not_know_is_an_error_that_torch_forgets() -> None:
    accelerator = CUDA_Accelerator()
    memory = torch.zeros(1 << 16, dtype=torch.uint8, device="cpu")
    assert accelerator.register_host_memory(memory.data_ptr(), memory.numel())
    assert memory.is_pinned()
    with pytest.raises(RuntimeError):  # it is registered
        accelerator.register_host_memory(memory.data_ptr(), memory.numel())
    assert torch.ones(3, device="cuda").sum() == 3
    assert accelerator.unregister_host_memory(memory.data_ptr())
    with pytest.raises(RuntimeError):
        accelerator.unregister_host_memory(memory.data_ptr())
    assert torch.ones(3, device="cuda").sum() == 3
