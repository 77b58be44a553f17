"""The CPU accelerator, every member of the contract, for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from accelerator.cpu_accelerator import CPU_Accelerator
from accelerator.errors import AccelError, EventNotRecordedError
from op_builder import env
from op_builder.errors import UnknownOpError
from tests.support.machines import Machine, WriteFiles, numa_tree


@pytest.fixture
def cpu() -> CPU_Accelerator:
    return CPU_Accelerator()


@pytest.mark.parametrize(("local_size", "count"), [(None, 2), ("", 2), (" 4 ", 4), ("1", 1), ("0", 2), ("-3", 2)])
def test_device_count_is_local_size_else_numa_nodes(host_files: WriteFiles, local_size: str | None, count: int) -> None:
    cpu = CPU_Accelerator(host_files(numa_tree({0: "0-3", 1: "4-7"})))
    with env.scope(LOCAL_SIZE=local_size):
        assert cpu.device_count() == count


@pytest.mark.parametrize(("local_rank", "device"), [(None, 0), ("", 0), ("3", 3), ("-1", -1)])
def test_current_device_is_local_rank(cpu: CPU_Accelerator, local_rank: str | None, device: int) -> None:
    with env.scope(LOCAL_RANK=local_rank):
        assert cpu.current_device() == device


def test_indices_of_devices_are_ignored(cpu: CPU_Accelerator) -> None:
    cpu.set_device(7)
    cpu.synchronize(5)
    assert cpu.device_name() == cpu.device_name(3) == "cpu"
    assert cpu.amp() is torch.cpu.amp


def test_streams_events_and_graphs_are_nestable_no_ops(cpu: CPU_Accelerator) -> None:
    stream, event, graph = cpu.Stream(priority=-1), cpu.Event(), cpu.create_graph()
    with cpu.stream(stream), stream, event, graph, cpu.stream(None):
        assert stream.query() is event.query() is True
    with cpu.capture_to_graph(cpu.create_graph(), pool=graph.pool()):  # as captures share memory on CUDA
        event.record()
    graph.reset()
    with pytest.raises(EventNotRecordedError, match="recorded"):
        event.elapsed_time(cpu.Event())


def test_all_peaks_are_the_kernels_high_water_mark(host_files: WriteFiles) -> None:
    cpu = CPU_Accelerator(host_files({"proc/self/status": f"VmHWM:\t {1 << 30} kB\n"}))
    assert cpu.max_memory_allocated() == cpu.max_memory_reserved() == cpu.max_memory_cached() == 1 << 40
    assert cpu.memory_stats()["allocated_bytes.all.peak"] == 1 << 40
    assert 0 < cpu.get_rss() < 1 << 40


@pytest.mark.parametrize("answer", [True, None, AttributeError("no such op"), RuntimeError("without oneDNN")])
def test_fp16_support_is_that_of_onednn_as_a_bool(
    cpu: CPU_Accelerator, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    def ask() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", ask)
    assert cpu.is_fp16_supported() is (answer is True)
    assert cpu.supported_dtypes() == [torch.float32, *[torch.float16] * (answer is True), torch.bfloat16]


def test_pin_memory_returns_the_tensor(cpu: CPU_Accelerator) -> None:
    tensor = torch.zeros(3)
    assert cpu.pin_memory(tensor, align_bytes=0, make_copy=False, match_shape=False) is tensor
    assert cpu.unpin_memory(cpu.pin_memory(tensor)) is None
    assert cpu.is_pinned(tensor) is False
    with env.scope(DS_PIN_MEMORY_BACKEND="hugetlb"), pytest.raises(AccelError, match="native"):
        cpu.pin_memory(tensor)


def test_communication_is_gloo_unless_oneccl_imports(machine: Machine, tmp_path: Path) -> None:
    assert CPU_Accelerator().communication_backend_name() == "gloo"
    machine.package("oneccl_bindings_for_pytorch")
    assert CPU_Accelerator().communication_backend_name() == "ccl"
    machine.broken("oneccl_bindings_for_pytorch", SystemExit(127), tmp_path)
    assert CPU_Accelerator().communication_backend_name() == "gloo"


def test_the_name_of_an_op_builder_is_a_string(cpu: CPU_Accelerator) -> None:
    with pytest.raises(UnknownOpError, match="NoneType"):
        cpu.get_op_builder(None)  # type: ignore[arg-type]
