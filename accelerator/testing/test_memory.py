"""The memory counters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accelerator.testing import devices, is_int

_BLOCK_BYTES = 96 << 20
_SLACK_BYTES = _BLOCK_BYTES // 10  # allocators round up and the host's resident set changes by itself


def _block(accelerator: Any) -> torch.Tensor:
    """A tensor whose memory is written, so that the host's resident set contains it."""
    block = torch.zeros(_BLOCK_BYTES, dtype=torch.uint8, device=accelerator.device_name())
    block.fill_(1)
    accelerator.synchronize()
    return block


def _allocate_and_free(accelerator: Any) -> None:
    block = _block(accelerator)
    accelerator.memory_allocated()  # some peaks are only the largest value that was read
    accelerator.memory_reserved()
    del block
    accelerator.empty_cache()


def _require_peaks(accelerator: Any) -> None:
    if "allocated_bytes.all.peak" not in accelerator.memory_stats():
        pytest.skip("memory_stats() has no allocated_bytes.all.peak: the allocator keeps no peaks")


def _assert_equal(name: str, size_bytes: int, expected_bytes: int) -> None:
    assert abs(size_bytes - expected_bytes) <= _SLACK_BYTES, name


def test_counters_are_bytes(accelerator: Any) -> None:
    """Every memory counter is an int of at least 0, for the current and for each device."""
    used = [f"{peak}memory_{kind}" for peak in ("", "max_") for kind in ("allocated", "reserved", "cached")]
    for name in (*used, "total_memory", "available_memory"):
        for index in (None, *devices(accelerator)):
            size = getattr(accelerator, name)(index)
            assert is_int(size), name
            assert size >= 0, name


def test_total_covers_available(accelerator: Any) -> None:
    """The device has memory, some of it is free, and no more is free than it has."""
    for index in (None, *devices(accelerator)):
        assert accelerator.total_memory(index) >= accelerator.available_memory(index) > 0


def test_allocation_is_counted(accelerator: Any) -> None:
    """memory_allocated() grows by a tensor's size, memory_reserved() includes it, and it falls again."""
    before = accelerator.memory_allocated()
    block = _block(accelerator)
    during, reserved = accelerator.memory_allocated(), accelerator.memory_reserved()
    del block
    assert during - before >= _BLOCK_BYTES - _SLACK_BYTES
    assert reserved >= during - _SLACK_BYTES
    assert during - accelerator.memory_allocated() >= _BLOCK_BYTES - _SLACK_BYTES


def test_peak_covers_current(accelerator: Any) -> None:
    """While a tensor exists, no peak is below its counter."""
    block = _block(accelerator)
    for name in ("memory_allocated", "memory_reserved", "memory_cached"):
        current = getattr(accelerator, name)()
        assert getattr(accelerator, f"max_{name}")() >= current, name
    del block


def test_peak_remembers_what_was_freed(accelerator: Any) -> None:
    """max_memory_allocated() includes a tensor that was freed."""
    _require_peaks(accelerator)
    accelerator.reset_peak_memory_stats()
    before = accelerator.memory_allocated()
    _allocate_and_free(accelerator)
    assert accelerator.max_memory_allocated() - before >= _BLOCK_BYTES - _SLACK_BYTES


def test_resets_lower_the_peaks(accelerator: Any) -> None:
    """Each of the three resets lowers its peak to about the present value."""
    _require_peaks(accelerator)
    for reset, counter in (
        ("reset_peak_memory_stats", "memory_allocated"),
        ("reset_max_memory_allocated", "memory_allocated"),
        ("reset_max_memory_cached", "memory_reserved"),
    ):
        _allocate_and_free(accelerator)
        getattr(accelerator, reset)()
        peak = getattr(accelerator, f"max_{counter}")()
        assert peak <= getattr(accelerator, counter)() + _SLACK_BYTES, reset


def test_older_names_agree(accelerator: Any) -> None:
    """memory_cached() and max_memory_cached() are memory_reserved() and max_memory_reserved()."""
    _assert_equal("memory_cached", accelerator.memory_cached(), accelerator.memory_reserved())
    _assert_equal("max_memory_cached", accelerator.max_memory_cached(), accelerator.max_memory_reserved())


def test_statistics_are_a_dict(accelerator: Any) -> None:
    """memory_stats() is a dict that contains memory_allocated(); memory_snapshot() is a list, tuple or dict."""
    stats = accelerator.memory_stats()
    assert isinstance(stats, dict)
    assert all(isinstance(key, str) for key in stats)
    name = "allocated_bytes.all.current"
    if name in stats:
        _assert_equal(name, stats[name], accelerator.memory_allocated())
    assert isinstance(accelerator.memory_snapshot(), (list, tuple, dict))


def test_cache_empties(accelerator: Any) -> None:
    """After empty_cache(), memory_reserved() is as low as it was before a tensor that was freed."""
    accelerator.empty_cache()
    before = accelerator.memory_reserved()
    blocks = _block(accelerator), _block(accelerator)  # more than a cache that never empties can hold by now
    grown = accelerator.memory_reserved() - before
    del blocks
    if grown < _BLOCK_BYTES - _SLACK_BYTES:
        pytest.skip("memory_reserved() does not grow with a tensor: the device reserves its memory as a whole")
    accelerator.empty_cache()
    assert accelerator.memory_reserved() <= before + _SLACK_BYTES
