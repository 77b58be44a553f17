"""Memory: what is used, the peaks of that, and what there is."""

from __future__ import annotations

from collections.abc import Callable

import torch

from accelerator.testing.model import Ability, Subject, does_not_apply, expect, expect_type, needs

_BLOCK_BYTES = 96 << 20
# Allocators round up and the host's resident set moves by itself; a tenth of the block is neither.
_SLACK_BYTES = _BLOCK_BYTES // 10

_COUNTERS = (
    "memory_allocated",
    "max_memory_allocated",
    "memory_reserved",
    "max_memory_reserved",
    "memory_cached",
    "max_memory_cached",
    "total_memory",
    "available_memory",
)


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"


def _block(subject: Subject) -> torch.Tensor:
    """A tensor whose memory is really written, so that the host counts it too."""
    block = torch.zeros(_BLOCK_BYTES, dtype=torch.uint8, device=subject.accelerator.device_name())
    block.fill_(1)
    subject.accelerator.synchronize()
    return block


def _allocate_and_free(subject: Subject) -> None:
    block = _block(subject)
    subject.accelerator.memory_allocated()  # where peaks are only seen when asked, this sees it
    subject.accelerator.memory_reserved()
    del block
    subject.accelerator.empty_cache()


def _peaks(subject: Subject) -> None:
    """End the check on a device whose allocator keeps no peaks."""
    if "allocated_bytes.all.peak" not in subject.accelerator.memory_stats():
        does_not_apply("memory_stats() has no allocated_bytes.all.peak: the allocator keeps no peaks")


def counters_are_bytes(subject: Subject) -> None:
    """Every memory counter is an int of at least 0, for the current and for each device."""
    for name in _COUNTERS:
        for index in (None, *subject.indices()):
            size = getattr(subject.accelerator, name)(index)
            expect_type(f"{name}({index})", size, int)
            expect(size >= 0, f"{name}({index}) of at least 0", size)


def total_covers_available(subject: Subject) -> str:
    """The device has memory, some of it is free, and no more is free than it has."""
    for index in (None, *subject.indices()):
        total, available = (
            subject.accelerator.total_memory(index),
            subject.accelerator.available_memory(index),
        )
        expect(
            total >= available > 0, "total_memory() >= available_memory() > 0", f"total {total}, available {available}"
        )
    return f"{_mebibytes(available)} of {_mebibytes(total)}"


@needs(Ability.TENSORS)
def allocation_is_seen(subject: Subject) -> str:
    """memory_allocated() grows by a tensor's size, memory_reserved() holds it, and it falls again."""
    accelerator = subject.accelerator
    before = accelerator.memory_allocated()
    block = _block(subject)
    during, reserved = accelerator.memory_allocated(), accelerator.memory_reserved()
    del block
    after = accelerator.memory_allocated()
    grown = during - before
    expect(
        grown >= _BLOCK_BYTES - _SLACK_BYTES,
        f"memory_allocated() to grow by {_mebibytes(_BLOCK_BYTES)}",
        _mebibytes(grown),
    )
    expect(reserved >= during - _SLACK_BYTES, f"memory_reserved() of at least {_mebibytes(during)}", reserved)
    expect(after <= during - _BLOCK_BYTES + _SLACK_BYTES, "memory_allocated() to fall by as much", f"{after - during}")
    return f"grew by {_mebibytes(grown)}"


@needs(Ability.TENSORS)
def peak_covers_current(subject: Subject) -> None:
    """While a tensor is there, no peak is below its counter."""
    block = _block(subject)
    pairs = (
        ("max_memory_allocated", "memory_allocated"),
        ("max_memory_reserved", "memory_reserved"),
        ("max_memory_cached", "memory_cached"),
    )
    for peak_name, current_name in pairs:
        current = getattr(subject.accelerator, current_name)()
        peak = getattr(subject.accelerator, peak_name)()
        expect(peak >= current, f"{peak_name}() of at least {current_name}() = {current}", peak)
    del block


@needs(Ability.TENSORS)
def peak_remembers_what_was_freed(subject: Subject) -> None:
    """max_memory_allocated() keeps the height that a tensor reached before it was freed."""
    _peaks(subject)
    subject.accelerator.reset_peak_memory_stats()
    before = subject.accelerator.memory_allocated()
    _allocate_and_free(subject)
    risen = subject.accelerator.max_memory_allocated() - before
    expect(risen >= _BLOCK_BYTES - _SLACK_BYTES, f"a peak {_mebibytes(_BLOCK_BYTES)} higher", _mebibytes(risen))


@needs(Ability.TENSORS)
def resets_lower_the_peaks(subject: Subject) -> None:
    """After each of the three resets its peak is near the present value again."""
    accelerator = subject.accelerator
    _peaks(subject)
    resets: tuple[tuple[str, Callable[[], int], Callable[[], int]], ...] = (
        ("reset_peak_memory_stats", accelerator.max_memory_allocated, accelerator.memory_allocated),
        ("reset_max_memory_allocated", accelerator.max_memory_allocated, accelerator.memory_allocated),
        ("reset_max_memory_cached", accelerator.max_memory_reserved, accelerator.memory_reserved),
    )
    for name, peak, current in resets:
        _allocate_and_free(subject)
        getattr(accelerator, name)()
        above = peak() - current()
        expect(above <= _SLACK_BYTES, f"a peak near the present value after {name}()", f"{_mebibytes(above)} above")


def older_names_agree(subject: Subject) -> None:
    """memory_cached() and max_memory_cached() are memory_reserved() and max_memory_reserved()."""
    for older, name in (("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")):
        apart = getattr(subject.accelerator, older)() - getattr(subject.accelerator, name)()
        expect(abs(apart) <= _SLACK_BYTES, f"{older}() equal to {name}()", f"{apart} bytes more")


def statistics_are_told(subject: Subject) -> str:
    """memory_stats() is a dict under string keys, and its current value is memory_allocated()."""
    stats = subject.accelerator.memory_stats()
    expect(isinstance(stats, dict), "a dict", type(stats).__name__)
    expect(all(isinstance(key, str) for key in stats), "string keys", list(stats)[:3])
    current = stats.get("allocated_bytes.all.current")
    if current is not None:
        apart = current - subject.accelerator.memory_allocated()
        expect(abs(apart) <= _SLACK_BYTES, "allocated_bytes.all.current equal to memory_allocated()", f"{apart} more")
    return f"{len(stats)} entries"


def snapshot_is_told(subject: Subject) -> None:
    """memory_snapshot() answers; a list where the device has no snapshot of its own kind."""
    expect_type("memory_snapshot()", subject.accelerator.memory_snapshot(), (list, tuple, dict))


@needs(Ability.TENSORS)
def cache_empties(subject: Subject) -> None:
    """empty_cache() gives back what a freed tensor left, so that memory_reserved() is as it was before the tensor."""
    accelerator = subject.accelerator
    accelerator.empty_cache()
    before = accelerator.memory_reserved()
    blocks = _block(subject), _block(subject)  # more than earlier checks can have left in a cache that never empties
    grown = accelerator.memory_reserved() - before
    del blocks
    if grown < _BLOCK_BYTES - _SLACK_BYTES:
        does_not_apply("memory_reserved() does not grow with a tensor: the device's memory is held as a whole")
    accelerator.empty_cache()
    risen = accelerator.memory_reserved() - before
    expect(risen <= _SLACK_BYTES, "memory_reserved() no higher after empty_cache()", f"{_mebibytes(risen)} more")


def resident_set_is_told(subject: Subject) -> str:
    """get_rss(), which the CPU's accelerator has, is what this process holds."""
    if not hasattr(subject.accelerator, "get_rss"):
        does_not_apply("only the CPU's accelerator must have get_rss()")
    size = subject.accelerator.get_rss()
    expect_type("get_rss()", size, int)
    expect(0 < size <= subject.accelerator.total_memory(), "0 < get_rss() <= total_memory()", size)
    return _mebibytes(size)


CHECKS = (
    counters_are_bytes,
    total_covers_available,
    allocation_is_seen,
    peak_covers_current,
    peak_remembers_what_was_freed,
    resets_lower_the_peaks,
    older_names_agree,
    statistics_are_told,
    snapshot_is_told,
    cache_empties,
    resident_set_is_told,
)
