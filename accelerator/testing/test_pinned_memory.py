"""Page-locked memory."""

from __future__ import annotations

import mmap
from typing import Any

import pytest
import torch

from accelerator.errors import UnsupportedFeatureError
from accelerator.testing import is_int


def test_pinning_keeps_the_tensor(accelerator: Any) -> None:
    """pin_memory() returns a CPU tensor with the same values and shape, for each of its keywords."""
    data = torch.arange(12.0).reshape(3, 4)
    for keywords in ({}, {"align_bytes": 1}, {"make_copy": True, "match_shape": True}):
        pinned = accelerator.pin_memory(data, **keywords)
        assert pinned.device.type == "cpu"
        assert pinned.tolist() == data.tolist()


def test_pinning_in_whole_pages(accelerator: Any) -> None:
    """pin_memory(align_bytes=0) keeps the values, if the device supports whole pages."""
    data = torch.arange(4.0)
    try:
        pinned = accelerator.pin_memory(data, align_bytes=0)
    except UnsupportedFeatureError as error:
        pytest.skip(error.message)
    assert pinned.tolist() == data.tolist()


def test_pinned_tensors_are_known(accelerator: Any) -> None:
    """is_pinned() is True for the result of pin_memory() and False for other tensors."""
    data = torch.arange(4.0)
    assert accelerator.is_pinned(data) is False
    pinned = accelerator.pin_memory(data)
    if pinned is data:
        pytest.skip("pin_memory() is the identity: no device copies from the tensor")
    assert accelerator.is_pinned(pinned) is True


def test_unpinning_keeps_the_values(accelerator: Any) -> None:
    """unpin_memory() returns a bool or None for the result of pin_memory(), which keeps its values."""
    data = torch.arange(4.0)
    pinned = accelerator.pin_memory(data.clone())
    released = accelerator.unpin_memory(pinned)
    assert released is None or isinstance(released, bool)
    assert pinned.tolist() == data.tolist()


def test_new_tensors_are_pinned(accelerator: Any) -> None:
    """pin_empty() and pin_empty_like() make CPU tensors of the given size and type, pinned if pin_memory() pins."""
    data = torch.zeros(2, 3)
    is_pinned = accelerator.pin_memory(data) is not data
    for made, dtype in (
        (accelerator.pin_empty(2, 3, dtype=torch.int32), torch.int32),
        (accelerator.pin_empty_like(data), data.dtype),
        (accelerator.pin_empty_like(data, dtype=torch.float16), torch.float16),
    ):
        assert (made.shape, made.dtype, made.device.type) == (data.shape, dtype, "cpu")
        assert accelerator.is_pinned(made) is is_pinned
    assert is_int(accelerator.pin_memory_alignment())


def test_host_memory_registers(accelerator: Any) -> None:
    """register_host_memory() and unregister_host_memory() accept a page's address, and return one bool."""
    page = torch.zeros(2 * mmap.PAGESIZE, dtype=torch.uint8)
    address = -(-page.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    is_registered = accelerator.register_host_memory(address, mmap.PAGESIZE)
    assert isinstance(is_registered, bool)
    assert accelerator.unregister_host_memory(address) is is_registered
