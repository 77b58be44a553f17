"""The CPU accelerator, every member of the contract, for real."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from simulated_machines import Machine, numa_tree

from accelerator.cpu_accelerator import CPU_Accelerator
from accelerator.errors import AccelError
from op_builder import env
from op_builder.system.cgroups import HostFiles


@pytest.fixture
def cpu() -> CPU_Accelerator:
    return CPU_Accelerator()


def test_identity(cpu: CPU_Accelerator) -> None:
    assert cpu.is_synchronized_device() is True
    assert cpu.use_host_timers() is True
    assert cpu.resolves_data_dependency() is True
    assert cpu.handles_memory_backpressure() is True
    assert cpu.supports_nvtx_domain() is False
    assert cpu.is_available() is True
    assert cpu.is_triton_supported() is False
    assert cpu.get_device_properties() is None
    assert cpu.device_capability() is None


def test_the_index_is_ignored(cpu: CPU_Accelerator) -> None:
    cpu.set_device(7)
    assert cpu.device_name() == cpu.device_name(3) == cpu.current_device_name() == "cpu"
    assert cpu.device(3) == torch.device("cpu")
    assert cpu.current_device() == 0
    cpu.synchronize()
    cpu.synchronize(5)


@pytest.mark.parametrize(
    ("local_size", "count"), [(None, 2), ("", 2), ("4", 4), (" 4 ", 4), ("1", 1), ("0", 2), ("-3", 2)]
)
def test_device_count_is_local_size_else_numa_nodes(
    host_files: Callable[[dict[str, str]], HostFiles], local_size: str | None, count: int
) -> None:
    cpu = CPU_Accelerator(host_files(numa_tree({0: "0-3", 1: "4-7"})))
    with env.scope(LOCAL_SIZE=local_size):
        assert cpu.device_count() == count


@pytest.mark.parametrize(("local_rank", "device"), [(None, 0), ("", 0), ("0", 0), ("3", 3), ("-1", -1)])
def test_current_device_is_local_rank(cpu: CPU_Accelerator, local_rank: str | None, device: int) -> None:
    with env.scope(LOCAL_RANK=local_rank):
        assert cpu.current_device() == device


@pytest.mark.parametrize("value", ["two", "1.5", "0x2", "1,2"])
@pytest.mark.parametrize("variable", ["LOCAL_RANK", "LOCAL_SIZE"])
def test_a_local_variable_that_is_no_number_is_a_clear_error(cpu: CPU_Accelerator, variable: str, value: str) -> None:
    with env.scope(**{variable: value}), pytest.raises(AccelError, match=f"{variable}='{value}' is not valid"):
        cpu.current_device() if variable == "LOCAL_RANK" else cpu.device_count()


def test_device_count_here_is_at_least_one(cpu: CPU_Accelerator) -> None:
    assert cpu.device_count() >= 1


def test_random_state_round_trips(cpu: CPU_Accelerator) -> None:
    assert cpu.random() is torch.random
    cpu.manual_seed(7)
    assert cpu.initial_seed() == 7
    state = cpu.get_rng_state()
    first = torch.rand(5)
    cpu.set_rng_state(state, 0)
    assert torch.equal(torch.rand(5), first)
    cpu.manual_seed_all(7)
    assert torch.equal(torch.rand(5), first)
    assert cpu.default_generator(0) is torch.default_generator


def test_streams_events_and_graphs_are_no_ops_that_nest(cpu: CPU_Accelerator) -> None:
    stream = cpu.Stream(priority=-1)
    start, end = cpu.Event(enable_timing=True), cpu.Event(enable_timing=True)
    start.record()
    with cpu.stream(stream), stream, end:
        stream.wait_event(stream.record_event())
        stream.wait_stream(cpu.current_stream())
        assert stream.query() is True
        assert end.query() is True
        stream.synchronize()
    with cpu.stream(None):
        pass
    stream.record_event(end)
    end.wait()
    end.synchronize()
    assert 0 <= start.elapsed_time(end) < 60_000
    assert cpu.default_stream() is cpu.current_stream(0)

    graph = cpu.create_graph()
    ran = []
    with cpu.capture_to_graph(graph, pool=None, stream=stream):
        ran.append(1)
    cpu.replay_graph(graph)
    with cpu.capture_to_graph(cpu.create_graph(), pool=graph.pool()):  # as captures share memory on CUDA
        ran.append(2)
    graph.reset()
    assert ran == [1, 2]


def test_a_copy_keeps_what_was_set(cpu: CPU_Accelerator) -> None:
    cpu.set_compile_backend("eager")
    for copied in (copy.deepcopy(cpu), pickle.loads(pickle.dumps(cpu))):
        assert copied is not cpu
        assert (copied.get_compile_backend(), copied.device_name()) == ("eager", "cpu")
        assert copied.memory_allocated() > 0


def test_time_of_an_unrecorded_event_is_an_error(cpu: CPU_Accelerator) -> None:
    with pytest.raises(AccelError, match=r"needs two recorded events"):
        cpu.Event().elapsed_time(cpu.Event())


def test_memory_is_the_resident_set(cpu: CPU_Accelerator) -> None:
    cpu.empty_cache()
    current = cpu.memory_allocated()
    assert 10 << 20 < current <= cpu.max_memory_allocated()
    assert cpu.get_rss() == pytest.approx(current, rel=0.2)
    assert cpu.memory_reserved() <= cpu.max_memory_reserved()
    assert cpu.memory_cached() <= cpu.max_memory_cached()
    assert 0 < cpu.available_memory() <= cpu.total_memory()
    stats = cpu.memory_stats()
    assert stats["allocated_bytes.all.current"] <= stats["allocated_bytes.all.peak"]
    assert stats["reserved_bytes.all.current"] <= stats["reserved_bytes.all.peak"]
    assert cpu.memory_snapshot() == []


@pytest.mark.usefixtures("fake_memory")
def test_memory_totals_are_the_control_groups_where_it_has_less(
    host_files: Callable[[dict[str, str]], HostFiles],
) -> None:
    limits = {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": str(8 << 30)}
    cpu = CPU_Accelerator(host_files({**limits, "sys/fs/cgroup/job/memory.current": str(2 << 30)}))
    assert (cpu.total_memory(), cpu.available_memory()) == (8 << 30, 6 << 30)


def test_all_peaks_are_the_kernels_high_water_mark(host_files: Callable[[dict[str, str]], HostFiles]) -> None:
    cpu = CPU_Accelerator(host_files({"proc/self/status": f"VmHWM:\t {1 << 30} kB\n"}))
    assert cpu.max_memory_allocated() == cpu.max_memory_reserved() == cpu.max_memory_cached() == 1 << 40
    assert cpu.memory_stats()["allocated_bytes.all.peak"] == 1 << 40


@pytest.mark.parametrize("reset", ["reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"])
def test_each_reset_restarts_the_peak(cpu: CPU_Accelerator, reset: str) -> None:
    block = torch.ones(32 << 20, dtype=torch.uint8)
    high = cpu.max_memory_allocated()
    del block
    getattr(cpu, reset)()
    assert cpu.memory_allocated() <= cpu.max_memory_allocated() < high


def test_types(cpu: CPU_Accelerator) -> None:
    assert cpu.is_bf16_supported() is True
    assert isinstance(cpu.is_fp16_supported(), bool)
    assert cpu.is_fp8_supported() is False
    assert cpu.supported_dtypes()[0] is torch.float32
    assert torch.bfloat16 in cpu.supported_dtypes()
    assert (torch.float16 in cpu.supported_dtypes()) == cpu.is_fp16_supported()
    assert cpu.amp() is torch.cpu.amp
    assert cpu.prefer_triton_grouped_mm() is False


@pytest.mark.parametrize("answer", [True, False, None, 1])
def test_fp16_is_what_onednn_says_as_a_bool(cpu: CPU_Accelerator, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: answer)
    assert cpu.is_fp16_supported() is bool(answer)


@pytest.mark.parametrize("error", [AttributeError("no such op"), RuntimeError("built without oneDNN")])
def test_a_torch_without_onednn_has_no_fp16(
    cpu: CPU_Accelerator, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def ask() -> bool:
        raise error

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", ask)
    assert cpu.is_fp16_supported() is False


@pytest.mark.parametrize(
    ("maker", "dtype"),
    [
        ("BFloat16Tensor", torch.bfloat16),
        ("ByteTensor", torch.uint8),
        ("DoubleTensor", torch.float64),
        ("FloatTensor", torch.float32),
        ("HalfTensor", torch.float16),
        ("IntTensor", torch.int32),
        ("LongTensor", torch.int64),
    ],
)
def test_tensor_makers(cpu: CPU_Accelerator, maker: str, dtype: torch.dtype) -> None:
    tensor = getattr(cpu, maker)([1, 2, 3])
    assert tensor.dtype is dtype
    assert tensor.tolist() == [1, 2, 3]
    assert cpu.on_accelerator(tensor)
    assert not cpu.on_accelerator(tensor.to("meta"))


def test_pinning_is_the_identity(cpu: CPU_Accelerator) -> None:
    tensor = torch.zeros(3)
    assert cpu.pin_memory(tensor) is tensor
    assert cpu.pin_memory(tensor, align_bytes=0, make_copy=False, match_shape=False) is tensor
    assert cpu.unpin_memory(tensor) is tensor
    assert cpu.is_pinned(tensor) is False


def test_misc(cpu: CPU_Accelerator) -> None:
    cpu.range_push("step", domain="train", category="loop")
    cpu.range_pop(domain="train")
    assert cpu.lazy_call(lambda: "called") == "called"
    assert cpu.export_envs() == []
    assert cpu.visible_devices_envs() == ["CUDA_VISIBLE_DEVICES"]


def test_communication_is_gloo_unless_oneccl_imports(machine: Machine, tmp_path: Any) -> None:
    assert CPU_Accelerator().communication_backend_name() == "gloo"
    machine.package("oneccl_bindings_for_pytorch")
    assert CPU_Accelerator().communication_backend_name() == "ccl"
    machine.broken("oneccl_bindings_for_pytorch", OSError("libccl.so.1"), tmp_path)
    assert CPU_Accelerator().communication_backend_name() == "gloo"


def test_a_wrong_compile_backend_is_refused_with_the_supported_ones(cpu: CPU_Accelerator) -> None:
    assert cpu.get_compile_backend() == "inductor"
    with pytest.raises(ValueError, match=r"'inductr' is not .* supported are .*inductor") as caught:
        cpu.set_compile_backend("inductr")
    assert isinstance(caught.value, AccelError)
    assert cpu.get_compile_backend() == "inductor"
    cpu.set_compile_backend("eager")
    assert cpu.get_compile_backend() == "eager"


def test_op_builders_come_from_the_cpus_package(cpu: CPU_Accelerator) -> None:
    from torch.utils.cpp_extension import BuildExtension

    from op_builder.errors import UnknownOpError

    assert cpu.op_builder_dir() == "op_builder.cpu"
    builder_class = cpu.get_op_builder("CPUAdamBuilder")
    assert isinstance(cpu.create_op_builder("CPUAdamBuilder"), builder_class)
    with pytest.raises(UnknownOpError, match="CPUAdamBuilder"):
        cpu.get_op_builder("CPUAdmBuilder")
    with pytest.raises(UnknownOpError, match="None of type NoneType is not the name of an op builder"):
        cpu.get_op_builder(None)  # type: ignore[arg-type]
    assert cpu.build_extension() is BuildExtension
