"""Data types, tensors, page-locked memory, and the memory counters."""

from __future__ import annotations

import mmap

import torch

from accelerator.errors import UnsupportedFeatureError
from accelerator.testing.model import Checks, does_not_apply, expect, expect_equal, expect_type

_MAKERS = {
    "BFloat16Tensor": torch.bfloat16,
    "HalfTensor": torch.float16,
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "ByteTensor": torch.uint8,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
}


class NumberTypeChecks(Checks):
    group = "number types"

    def supported_dtypes_agree(self) -> str:
        """supported_dtypes() begins with float32; float16, bfloat16 and float8 are in it where is_..._supported()."""
        dtypes = self.accelerator.supported_dtypes()
        expect_type("supported_dtypes()", dtypes, list)
        expect(all(isinstance(dtype, torch.dtype) for dtype in dtypes), "torch.dtype objects", dtypes)
        expect(dtypes[:1] == [torch.float32], "float32 first", dtypes)
        expect(len(set(dtypes)) == len(dtypes), "each type once", dtypes)
        expect_equal("float16 listed", torch.float16 in dtypes, self.accelerator.is_fp16_supported())
        expect_equal("bfloat16 listed", torch.bfloat16 in dtypes, self.accelerator.is_bf16_supported())
        narrow = [dtype for dtype in dtypes if dtype.itemsize == 1]
        expect(
            not narrow or self.accelerator.is_fp8_supported(), "no 8-bit type where is_fp8_supported() is False", narrow
        )
        return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)

    def supported_dtypes_compute(self) -> None:
        """A matrix product and a sum on the device are right in each of supported_dtypes()."""
        # Small integers: products and sums are exact in every floating-point type of 16 bits or more.
        left, right = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2)
        expected = (left @ right + 1).tolist()
        for dtype in self.accelerator.supported_dtypes():
            if dtype.itemsize == 1:
                continue  # torch has no plain operators for these
            device = self.accelerator.device_name()
            found = (left.to(device, dtype) @ right.to(device, dtype) + 1).cpu()
            expect_equal(f"dtype of a {dtype} result", found.dtype, dtype)
            expect_equal(f"values in {dtype}", found.float().tolist(), expected)

    def float8_converts(self) -> None:
        """Where is_fp8_supported(), tensors convert to float8_e4m3fn and back on the device."""
        if not self.accelerator.is_fp8_supported():
            does_not_apply("is_fp8_supported() is False")
        data = self._tensor([1.0, -2.0, 0.5])
        expect_equal("values", data.to(torch.float8_e4m3fn).float().cpu().tolist(), [1.0, -2.0, 0.5])

    def amp_is_a_module_or_none(self) -> str:
        """amp() is the device's amp module, with autocast in it, or None."""
        amp = self.accelerator.amp()
        if amp is None:
            return "none"
        expect(hasattr(amp, "autocast"), "a module with autocast", amp)
        return str(getattr(amp, "__name__", amp))


class TensorChecks(Checks):
    group = "tensors"

    def tensor_properties_make_tensors(self) -> str | None:
        """Each of the seven tensor properties makes a tensor of its type on the device from data."""
        halves = {torch.float16, torch.bfloat16} - set(self.accelerator.supported_dtypes())
        refused = []
        for name, dtype in _MAKERS.items():
            try:
                tensor = getattr(self.accelerator, name)([1, 2, 3])
            except (TypeError, RuntimeError):
                # The contract has the property on every device; some have no such type (no float64 on mps).
                if dtype is not torch.float64 and dtype not in halves:
                    raise
                refused.append(name)
                continue
            expect_equal(f"dtype of {name}", tensor.dtype, dtype)
            expect_equal(f"device of {name}", tensor.device.type, self.accelerator.device().type)
            expect_equal(f"values of {name}", tensor.cpu().tolist(), [1, 2, 3])
        return f"the device refuses {', '.join(refused)}" if refused else None

    def tensors_are_made_on_the_current_device(self) -> None:
        """After set_device(i), the tensor properties make tensors on device i."""
        if len(self._indices()) < 2:
            does_not_apply("only one device is available")
        if self.accelerator.device(0).index is None:
            does_not_apply("device strings carry no index, so a tensor does not show its device")
        for index in self._each_device():
            found = self.accelerator.FloatTensor([1.0]).device.index
            expect_equal(f"index of a tensor made after set_device({index})", found, index)

    def on_accelerator_knows_its_tensors(self) -> None:
        """on_accelerator() is True for the device's tensors, and False for the host's unless that is the device."""
        expect_equal("on_accelerator(device tensor)", self.accelerator.on_accelerator(self._tensor([1.0])), True)
        is_host = self.accelerator.device().type == "cpu"
        expect_equal("on_accelerator(host tensor)", self.accelerator.on_accelerator(torch.ones(1)), is_host)


class PinnedMemoryChecks(Checks):
    group = "pinned memory"

    def pinning_keeps_the_tensor(self) -> None:
        """pin_memory() returns a CPU tensor with the same values and shape, for each of its keywords."""
        data = torch.arange(12.0).reshape(3, 4)
        for keywords in ({}, {"align_bytes": 1}, {"make_copy": True, "match_shape": True}):
            pinned = self.accelerator.pin_memory(data, **keywords)
            expect_equal("device of the pinned tensor", pinned.device.type, "cpu")
            expect_equal("values of the pinned tensor", pinned.tolist(), data.tolist())

    def pinning_in_whole_pages(self) -> None:
        """pin_memory(align_bytes=0) keeps the values, if the device supports whole pages."""
        data = torch.arange(4.0)
        try:
            pinned = self.accelerator.pin_memory(data, align_bytes=0)
        except UnsupportedFeatureError as refusal:
            does_not_apply(refusal.message)
        expect_equal("values of the pinned tensor", pinned.tolist(), data.tolist())

    def pinned_tensors_are_known(self) -> None:
        """is_pinned() is True for the result of pin_memory() and False for other tensors."""
        data = torch.arange(4.0)
        expect_equal("is_pinned(plain tensor)", self.accelerator.is_pinned(data), False)
        pinned = self.accelerator.pin_memory(data)
        if pinned is data:
            does_not_apply("pin_memory() is the identity: no device copies from the tensor")
        expect_equal("is_pinned(pinned tensor)", self.accelerator.is_pinned(pinned), True)

    def unpinning_keeps_the_values(self) -> None:
        """unpin_memory() returns a bool or None for the result of pin_memory(), which keeps its values."""
        data = torch.arange(4.0)
        pinned = self.accelerator.pin_memory(data.clone())
        released = self.accelerator.unpin_memory(pinned)
        expect(released is None or isinstance(released, bool), "a bool or None from unpin_memory()", released)
        expect_equal("values after unpin_memory()", pinned.tolist(), data.tolist())

    def new_tensors_are_pinned(self) -> None:
        """pin_empty() and pin_empty_like() make CPU tensors of the given size and type, pinned if pin_memory() pins."""
        data = torch.zeros(2, 3)
        is_pinned = self.accelerator.pin_memory(data) is not data
        for made, dtype in (
            (self.accelerator.pin_empty(2, 3, dtype=torch.int32), torch.int32),
            (self.accelerator.pin_empty_like(data), data.dtype),
            (self.accelerator.pin_empty_like(data, dtype=torch.float16), torch.float16),
        ):
            found = (made.shape, made.dtype, made.device.type)
            expect_equal("shape, type and device", found, (data.shape, dtype, "cpu"))
            expect_equal("is_pinned(new tensor)", self.accelerator.is_pinned(made), is_pinned)
        expect_type("pin_memory_alignment()", self.accelerator.pin_memory_alignment(), int)

    def host_memory_registers(self) -> str:
        """register_host_memory() and unregister_host_memory() accept a page's address, and return one bool."""
        page = torch.zeros(2 * mmap.PAGESIZE, dtype=torch.uint8)
        address = -(-page.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        registered = self.accelerator.register_host_memory(address, mmap.PAGESIZE)
        expect_type("register_host_memory()", registered, bool)
        expect_equal("unregister_host_memory()", self.accelerator.unregister_host_memory(address), registered)
        return "registered" if registered else "the driver has no such function"


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"


class MemoryChecks(Checks):
    group = "memory"
    block_bytes = 96 << 20
    slack_bytes = block_bytes // 10  # allocators round up and the host's resident set changes by itself

    def _block(self) -> torch.Tensor:
        """A tensor whose memory is written, so that the host's resident set contains it."""
        block = torch.zeros(self.block_bytes, dtype=torch.uint8, device=self.accelerator.device_name())
        block.fill_(1)
        self.accelerator.synchronize()
        return block

    def _expect_least(self, what: str, size_bytes: int, least_bytes: int) -> None:
        is_met = size_bytes >= least_bytes - self.slack_bytes
        expect(is_met, f"{what} of at least {_mebibytes(least_bytes)}", _mebibytes(size_bytes))

    def _expect_most(self, what: str, size_bytes: int, most_bytes: int) -> None:
        is_met = size_bytes <= most_bytes + self.slack_bytes
        expect(is_met, f"{what} of at most {_mebibytes(most_bytes)}", _mebibytes(size_bytes))

    def _allocate_and_free(self) -> None:
        block = self._block()
        self.accelerator.memory_allocated()  # some peaks are only the largest value that was read
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

    def allocation_is_counted(self) -> str:
        """memory_allocated() grows by a tensor's size, memory_reserved() includes it, and it falls again."""
        before = self.accelerator.memory_allocated()
        block = self._block()
        during, reserved = self.accelerator.memory_allocated(), self.accelerator.memory_reserved()
        del block
        after = self.accelerator.memory_allocated()
        self._expect_least("growth of memory_allocated()", during - before, self.block_bytes)
        self._expect_least("memory_reserved()", reserved, during)
        self._expect_most("memory_allocated() without the tensor", after, during - self.block_bytes)
        return f"grew by {_mebibytes(during - before)}"

    def peak_covers_current(self) -> None:
        """While a tensor exists, no peak is below its counter."""
        block = self._block()
        for name in ("memory_allocated", "memory_reserved", "memory_cached"):
            current, peak = getattr(self.accelerator, name)(), getattr(self.accelerator, f"max_{name}")()
            expect(peak >= current, f"max_{name}() of at least {name}() = {current}", peak)
        del block

    def peak_remembers_what_was_freed(self) -> None:
        """max_memory_allocated() includes a tensor that was freed."""
        self._require_peaks()
        self.accelerator.reset_peak_memory_stats()
        before = self.accelerator.memory_allocated()
        self._allocate_and_free()
        risen = self.accelerator.max_memory_allocated() - before
        self._expect_least("growth of max_memory_allocated()", risen, self.block_bytes)

    def resets_lower_the_peaks(self) -> None:
        """Each of the three resets lowers its peak to about the present value."""
        self._require_peaks()
        for reset, counter in (
            ("reset_peak_memory_stats", "memory_allocated"),
            ("reset_max_memory_allocated", "memory_allocated"),
            ("reset_max_memory_cached", "memory_reserved"),
        ):
            self._allocate_and_free()
            getattr(self.accelerator, reset)()
            peak, current = getattr(self.accelerator, f"max_{counter}")(), getattr(self.accelerator, counter)()
            self._expect_most(f"max_{counter}() after {reset}()", peak, current)

    def older_names_agree(self) -> None:
        """memory_cached() and max_memory_cached() are memory_reserved() and max_memory_reserved()."""
        for older, name in (("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")):
            size, expected = getattr(self.accelerator, older)(), getattr(self.accelerator, name)()
            self._expect_least(f"{older}()", size, expected)
            self._expect_most(f"{older}()", size, expected)

    def statistics_are_a_dict(self) -> str:
        """memory_stats() is a dict that contains memory_allocated(); memory_snapshot() is a list, tuple or dict."""
        stats = self.accelerator.memory_stats()
        expect(isinstance(stats, dict), "a dict", type(stats).__name__)
        expect(all(isinstance(key, str) for key in stats), "string keys", list(stats)[:3])
        current = stats.get("allocated_bytes.all.current")
        if current is not None:
            self._expect_least("allocated_bytes.all.current", current, self.accelerator.memory_allocated())
            self._expect_most("allocated_bytes.all.current", current, self.accelerator.memory_allocated())
        expect_type("memory_snapshot()", self.accelerator.memory_snapshot(), list, tuple, dict)
        return f"{len(stats)} entries"

    def cache_empties(self) -> None:
        """After empty_cache(), memory_reserved() is as low as it was before a tensor that was freed."""
        self.accelerator.empty_cache()
        before = self.accelerator.memory_reserved()
        blocks = self._block(), self._block()  # more than a cache that never empties can hold by now
        grown = self.accelerator.memory_reserved() - before
        del blocks
        if grown < self.block_bytes - self.slack_bytes:
            does_not_apply("memory_reserved() does not grow with a tensor: the device reserves its memory as a whole")
        self.accelerator.empty_cache()
        self._expect_most("memory_reserved() after empty_cache()", self.accelerator.memory_reserved(), before)
