"""Tensors in locked pages: alignment, lifetime, and what is reported of them; by async_io and by pin_memory."""

from __future__ import annotations

import gc
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accelerator import get_accelerator, set_accelerator
from accelerator.cuda_accelerator import CUDA_Accelerator
from op_builder.cpu import PinMemoryBuilder
from op_builder.errors import OpArgumentError
from op_builder.ops.io.async_io import AsyncIOModule
from op_builder.ops.io.locked_memory import LockedMemoryError
from op_builder.ops.io.pin_memory import PinMemoryModule

PAGE = os.sysconf("SC_PAGESIZE")
HUGE = 2 << 20


@pytest.fixture(scope="module")
def pin_memory() -> PinMemoryModule:
    return PinMemoryBuilder().load()


@pytest.fixture(params=["async_io", "pin_memory"])
def owner(request: pytest.FixtureRequest, async_io: AsyncIOModule, pin_memory: PinMemoryModule) -> Any:
    """What makes and knows locked tensors."""
    return async_io.aio_handle() if request.param == "async_io" else pin_memory


def locked_bytes_at(address: int) -> int:
    """The locked memory in the mapping of this process that has an address; -1 if it is not mapped."""
    is_of_address = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([\da-f]+)-([\da-f]+) ", line):
            is_of_address = int(found[1], 16) <= address < int(found[2], 16)
        elif is_of_address and line.startswith("Locked:"):
            return int(line.split()[1]) << 10
    return -1


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.complex64], ids=str)
@pytest.mark.parametrize("count", [1, 1023, 1025, 3_000_001])
def test_zeros_of_the_examples_type_in_locked_pages_of_their_own(owner: Any, dtype: torch.dtype, count: int) -> None:
    tensor = owner.new_cpu_locked_tensor(count, torch.empty(3, 3, dtype=dtype))
    assert (tensor.shape, tensor.dtype, tensor.device.type) == ((count,), dtype, "cpu")
    assert not tensor.any()
    assert tensor.data_ptr() % (HUGE if tensor.nbytes >= HUGE else PAGE) == 0
    assert locked_bytes_at(tensor.data_ptr()) >= tensor.nbytes
    tensor.fill_(1)


def test_views_are_pinned_and_others_are_not(owner: Any) -> None:
    tensor = owner.new_cpu_locked_tensor(10_000, torch.zeros(1))
    for view in (tensor, tensor[9_999:], tensor.view(100, 100).t(), torch.from_numpy(tensor.numpy()[3:])):
        assert owner.is_pinned(view)
    for other in (torch.zeros(10_000), tensor.clone(), torch.zeros(0), torch.zeros(3, device="meta")):
        assert not owner.is_pinned(other)
    assert not owner.is_pinned(torch.eye(3).to_sparse())


def test_memory_is_freed_with_the_last_view_in_any_thread(owner: Any) -> None:
    tensor = owner.new_cpu_locked_tensor(64 << 20, torch.empty(0, dtype=torch.uint8))
    address = tensor.data_ptr()
    last = address + tensor.nbytes - 1
    views = [tensor[7:], tensor.view(torch.float32)[3:]]
    del tensor
    gc.collect()
    views[0][0] = 3
    assert locked_bytes_at(address) > 0
    assert locked_bytes_at(last) > 0
    thread = threading.Thread(target=views.clear)
    thread.start()
    thread.join()
    assert locked_bytes_at(address) <= 0
    assert locked_bytes_at(last) <= 0


def test_freeing_unlocks_and_keeps_the_memory_for_its_views(owner: Any) -> None:
    tensor = owner.new_cpu_locked_tensor(5000, torch.zeros(1))
    tensor.fill_(2)
    assert owner.free_cpu_locked_tensor(tensor[1:]) is True  # by any part
    assert not owner.is_pinned(tensor)
    assert owner.free_cpu_locked_tensor(tensor) is False
    assert owner.free_cpu_locked_tensor(torch.zeros(3)) is False
    assert tensor.sum() == 10_000


def test_no_elements_and_invalid_arguments(owner: Any) -> None:
    assert owner.new_cpu_locked_tensor(0, torch.zeros(1)).shape == (0,)
    assert owner.new_cpu_locked_tensor(np.int64(4), torch.zeros(1)).shape == (4,)
    for number in (-1, 1.5, True, "3"):
        with pytest.raises(OpArgumentError, match="num_elem is"):
            owner.new_cpu_locked_tensor(number, torch.zeros(1))
    for number in (1 << 46, (1 << 61) - 1, 1 << 61, 1 << 90):
        with pytest.raises(LockedMemoryError, match=f"{4 * number} bytes"):
            owner.new_cpu_locked_tensor(number, torch.zeros(1))
    with pytest.raises(OpArgumentError, match="of type str"):
        owner.new_cpu_locked_tensor(4, "x")
    for call in (owner.is_pinned, owner.free_cpu_locked_tensor):
        with pytest.raises(OpArgumentError, match="type list"):
            call([1])


def test_each_op_knows_the_tensors_of_the_other(async_io: AsyncIOModule, pin_memory: PinMemoryModule) -> None:
    handle = async_io.aio_handle()
    for maker, other in ((handle, pin_memory), (pin_memory, handle)):
        tensor = maker.new_cpu_locked_tensor(100, torch.empty(0))
        assert other.is_pinned(tensor[10:])
        assert other.free_cpu_locked_tensor(tensor)
        assert not maker.is_pinned(tensor)


def test_pin_memory_copies(pin_memory: PinMemoryModule) -> None:
    data = torch.arange(12.0, requires_grad=True).reshape(3, 4).t()
    pinned = pin_memory.pin_memory(data)
    assert torch.equal(pinned, data)
    assert pinned.is_contiguous()
    assert pin_memory.is_pinned(pinned)
    assert not pinned.requires_grad


def test_on_cuda_the_memory_is_registered(owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the accelerator, whose driver refuses the second tensor."""
    calls: list[tuple[str, int]] = []

    class Accelerator:
        def device_name(self) -> str:
            return "cuda"

        def register_host_memory(self, address: int, num_bytes: int) -> bool:
            assert num_bytes % PAGE == 0
            calls.append(("register", address))
            if len(calls) > 1:
                raise RuntimeError("out of memory")
            return True

        def unregister_host_memory(self, address: int) -> bool:
            calls.append(("unregister", address))
            return True

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("accelerator.get_accelerator", Accelerator)
    tensor, refused = (owner.new_cpu_locked_tensor(5000, torch.zeros(1)) for _ in range(2))
    address = tensor.data_ptr()
    del tensor, refused
    gc.collect()
    assert calls[0] == ("register", address)
    assert calls[2:] == [("unregister", address)]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_device_copies_from_and_to_locked_memory(owner: Any, caplog: pytest.LogCaptureFixture) -> None:
    before = get_accelerator()
    set_accelerator(CUDA_Accelerator())
    try:
        for numel in (5000, 3 << 20):
            tensor = owner.new_cpu_locked_tensor(numel, torch.zeros(1))
            assert tensor.is_pinned()
            tensor.copy_(torch.arange(numel) % 1000)
            on_device = tensor.to("cuda", non_blocking=True)
            tensor[1:].copy_(on_device[:-1] + 1, non_blocking=True)
            torch.cuda.synchronize()
            assert torch.equal(tensor[1:], torch.arange(numel - 1) % 1000 + 1.0)
            code = torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
            assert int(code) == 0
            del tensor
            gc.collect()
            assert "does not unregister the memory" in caplog.text
            assert torch.ones(3, device="cuda").sum() == 3, "the refused call is forgotten"
            caplog.clear()
            tensor = owner.new_cpu_locked_tensor(numel, torch.zeros(1))
            del tensor
            gc.collect()
            assert "unregister" not in caplog.text
    finally:
        set_accelerator(before)


def test_a_handle_of_pin_memory_frees_by_address(pin_memory: PinMemoryModule) -> None:
    handle = pin_memory.pin_handle()
    tensor = handle.new_cpu_locked_tensor(10, torch.empty(0))
    assert pin_memory.is_pinned(tensor)
    assert handle.free_cpu_locked_tensor_by_ptr(tensor.data_ptr())
    assert not handle.is_pinned(tensor)
    assert not handle.free_cpu_locked_tensor_by_ptr(tensor.data_ptr())
    assert not tensor.any()
