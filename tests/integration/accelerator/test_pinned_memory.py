"""Page-locked memory through the op async_io, which is compiled first."""

from __future__ import annotations

import copy

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
    assert accelerator.is_pinned(pinned[1:])
    assert not accelerator.is_pinned(data)
    assert torch.equal(accelerator.pin_memory(data.t(), align_bytes=0, match_shape=False), data.t().flatten())
    assert accelerator.pin_memory(data, align_bytes=0, make_copy=False).shape == data.shape
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
