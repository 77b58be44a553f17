"""Page-locked memory through the op async_io, which is compiled first."""

from __future__ import annotations

import copy
import gc
import os
import re
from pathlib import Path

import pytest
import torch

from accelerator.cpu_accelerator import CPU_Accelerator
from accelerator.xpu_accelerator import XPU_Accelerator
from op_builder import env
from tests.support.machines import Machine


def test_xpu_pins_whole_pages_with_async_io(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.native_xpu()
    torch.xpu.current_device = lambda: 0  # type: ignore[assignment] # the fake's
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda *_, **__: False)  # torch has no hooks of XPU here
    accelerator = XPU_Accelerator()
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
    assert accelerator.unpin_memory(view) is True
    assert not accelerator.is_pinned(view)
    assert torch.equal(view, data[1:])
    assert not copy.deepcopy(accelerator).is_pinned(data)  # the handle of async_io is left behind


def test_the_native_backend_locks_pages_on_any_device() -> None:
    accelerator, data = CPU_Accelerator(), torch.arange(6.0).reshape(3, 2).t()
    with env.scope(DS_PIN_MEMORY_BACKEND="native"):
        pinned = accelerator.pin_memory(data)
        flat = accelerator.pin_memory(data, match_shape=False)
        others = [
            accelerator.pin_memory(data, make_copy=False),
            accelerator.pin_memory(torch.tensor(1.0)),
            accelerator.pin_empty(2, 3, dtype=torch.float16),
            accelerator.pin_empty_like(data, dtype=torch.int32),
        ]
        assert torch.equal(pinned, data)
        assert torch.equal(flat, data.flatten())
        assert [each.shape for each in others] == [(2, 3), (), (2, 3), (2, 3)]
        assert [each.dtype for each in others] == [torch.float32, torch.float32, torch.float16, torch.int32]
        for each in (pinned, flat, *others):
            assert accelerator.is_pinned(each) is accelerator.is_pinned(each.view(-1)[-1:]) is each.ds_pinned is True
            assert accelerator.unpin_memory(each) is True
            assert accelerator.is_pinned(each) is each.ds_pinned is accelerator.unpin_memory(each) is False
        assert torch.equal(pinned, data)
    assert accelerator.unpin_memory(pinned) is None, "torch pins memory again"


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, (8 << 20) + 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_buffers_of_every_size_are_locked_in_whole_pages(size: int, dtype: torch.dtype) -> None:
    """As ZeRO's offload buffers: a page less or more than whole, and many pages; parts of them are pinned, too."""
    accelerator = CPU_Accelerator()
    with env.scope(DS_PIN_MEMORY_BACKEND="native"):
        data = torch.arange(size).to(dtype)
        pinned = accelerator.pin_memory(data)
        assert torch.equal(pinned, data)
        assert pinned.data_ptr() % os.sysconf("SC_PAGESIZE") == 0
        assert locked_kib_at(pinned.data_ptr()) * 1024 >= pinned.nbytes
        assert all(accelerator.is_pinned(part) for part in (pinned, pinned[-1:], pinned.narrow(0, size // 2, 1)))
        assert accelerator.unpin_memory(pinned[size // 2 :]) is True
        assert not accelerator.is_pinned(pinned)


def locked_kib_at(address: int) -> int:
    """The locked memory of the mapping of this process that begins with an address, as the kernel counts it."""
    is_of_address = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([\da-f]+)-([\da-f]+) ", line):
            is_of_address = int(found[1], 16) <= address < int(found[2], 16)
        elif is_of_address and line.startswith("Locked:"):
            return int(line.split()[1])
    raise AssertionError(f"no mapping at {address:x}")
