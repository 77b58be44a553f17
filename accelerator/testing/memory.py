"""Memory: what is used, the peaks of that, and what there is."""

from __future__ import annotations

import torch

from accelerator.testing.model import Ability, Checks, does_not_apply, expect, expect_type, needs


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"


class MemoryChecks(Checks):
    group = "memory"
    block_bytes = 96 << 20
    slack_bytes = block_bytes // 10  # allocators round up and the host's resident set changes by itself

    def _block(self) -> torch.Tensor:
        """A tensor whose memory is really written, so that the host counts it too."""
        block = torch.zeros(self.block_bytes, dtype=torch.uint8, device=self.accelerator.device_name())
        block.fill_(1)
        self.accelerator.synchronize()
        return block

    def _allocate_and_free(self) -> None:
        block = self._block()
        self.accelerator.memory_allocated()  # where a peak is only the largest value seen, this one is seen
        self.accelerator.memory_reserved()
        del block
        self.accelerator.empty_cache()

    def _require_peaks(self) -> None:
        if "allocated_bytes.all.peak" not in self.accelerator.memory_stats():
            does_not_apply("memory_stats() has no allocated_bytes.all.peak: the allocator keeps no peaks")

    def counters_are_bytes(self) -> None:
        """Every memory counter is an int of at least 0, for the current and for each device."""
        used = [f"{peak}memory_{kind}" for peak in ("", "max_") for kind in ("allocated", "reserved", "cached")]
        for name in (*used, "total_memory", "available_memory"):
            for index in (None, *self._indices()):
                size = getattr(self.accelerator, name)(index)
                expect_type(f"{name}({index})", size, int)
                expect(size >= 0, f"{name}({index}) of at least 0", size)

    def total_covers_available(self) -> str:
        """The device has memory, some of it is free, and no more is free than it has."""
        for index in (None, *self._indices()):
            total, available = self.accelerator.total_memory(index), self.accelerator.available_memory(index)
            found = f"total {total}, available {available}"
            expect(total >= available > 0, "total_memory() >= available_memory() > 0", found)
        return f"{_mebibytes(available)} of {_mebibytes(total)}"

    @needs(Ability.TENSORS)
    def allocation_is_counted(self) -> str:
        """memory_allocated() grows by a tensor's size, memory_reserved() includes it, and it falls again."""
        before = self.accelerator.memory_allocated()
        block = self._block()
        during, reserved = self.accelerator.memory_allocated(), self.accelerator.memory_reserved()
        del block
        after = self.accelerator.memory_allocated()
        grown, least = _mebibytes(during - before), f"memory_allocated() to grow by {_mebibytes(self.block_bytes)}"
        expect(during - before >= self.block_bytes - self.slack_bytes, least, grown)
        expect(reserved >= during - self.slack_bytes, f"memory_reserved() of at least {_mebibytes(during)}", reserved)
        expect(
            after <= during - self.block_bytes + self.slack_bytes,
            "memory_allocated() to fall by as much",
            f"{after - during}",
        )
        return f"grew by {grown}"

    @needs(Ability.TENSORS)
    def peak_covers_current(self) -> None:
        """While a tensor exists, no peak is below its counter."""
        block = self._block()
        for name in ("memory_allocated", "memory_reserved", "memory_cached"):
            current, peak = getattr(self.accelerator, name)(), getattr(self.accelerator, f"max_{name}")()
            expect(peak >= current, f"max_{name}() of at least {name}() = {current}", peak)
        del block

    @needs(Ability.TENSORS)
    def peak_remembers_what_was_freed(self) -> None:
        """max_memory_allocated() keeps the height that a tensor reached before it was freed."""
        self._require_peaks()
        self.accelerator.reset_peak_memory_stats()
        before = self.accelerator.memory_allocated()
        self._allocate_and_free()
        risen = self.accelerator.max_memory_allocated() - before
        expect(
            risen >= self.block_bytes - self.slack_bytes,
            f"a peak {_mebibytes(self.block_bytes)} higher",
            _mebibytes(risen),
        )

    @needs(Ability.TENSORS)
    def resets_lower_the_peaks(self) -> None:
        """After each of the three resets its peak is near the present value again."""
        self._require_peaks()
        for reset, counter in (
            ("reset_peak_memory_stats", "memory_allocated"),
            ("reset_max_memory_allocated", "memory_allocated"),
            ("reset_max_memory_cached", "memory_reserved"),
        ):
            self._allocate_and_free()
            getattr(self.accelerator, reset)()
            above = getattr(self.accelerator, f"max_{counter}")() - getattr(self.accelerator, counter)()
            expect(
                above <= self.slack_bytes,
                f"a peak near the present value after {reset}()",
                f"{_mebibytes(above)} above",
            )

    def older_names_agree(self) -> None:
        """memory_cached() and max_memory_cached() are memory_reserved() and max_memory_reserved()."""
        for older, name in (("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")):
            apart = getattr(self.accelerator, older)() - getattr(self.accelerator, name)()
            expect(abs(apart) <= self.slack_bytes, f"{older}() equal to {name}()", f"{apart} bytes more")

    def statistics_are_a_dict(self) -> str:
        """memory_stats() is a dict under string keys, and its current value is memory_allocated()."""
        stats = self.accelerator.memory_stats()
        expect(isinstance(stats, dict), "a dict", type(stats).__name__)
        expect(all(isinstance(key, str) for key in stats), "string keys", list(stats)[:3])
        current = stats.get("allocated_bytes.all.current")
        if current is not None:
            apart = current - self.accelerator.memory_allocated()
            expect(
                abs(apart) <= self.slack_bytes,
                "allocated_bytes.all.current equal to memory_allocated()",
                f"{apart} more",
            )
        return f"{len(stats)} entries"

    def snapshot_is_a_collection(self) -> None:
        """memory_snapshot() returns the device's own snapshot, or a list where it has none."""
        expect_type("memory_snapshot()", self.accelerator.memory_snapshot(), list, tuple, dict)

    @needs(Ability.TENSORS)
    def cache_empties(self) -> None:
        """After empty_cache(), memory_reserved() is as low as it was before a tensor that was freed."""
        self.accelerator.empty_cache()
        before = self.accelerator.memory_reserved()
        blocks = self._block(), self._block()  # more than a cache that never empties can hold by now
        grown = self.accelerator.memory_reserved() - before
        del blocks
        if grown < self.block_bytes - self.slack_bytes:
            does_not_apply("memory_reserved() does not grow with a tensor: the device's memory is held as a whole")
        self.accelerator.empty_cache()
        risen = self.accelerator.memory_reserved() - before
        expect(
            risen <= self.slack_bytes, "memory_reserved() no higher after empty_cache()", f"{_mebibytes(risen)} more"
        )

    def resident_set_is_bytes(self) -> str:
        """get_rss(), which the CPU's self.accelerator has, is this process's resident set size."""
        if not hasattr(self.accelerator, "get_rss"):
            does_not_apply("only the CPU's self.accelerator must have get_rss()")
        size = self.accelerator.get_rss()
        expect_type("get_rss()", size, int)
        expect(0 < size <= self.accelerator.total_memory(), "0 < get_rss() <= total_memory()", size)
        return _mebibytes(size)
