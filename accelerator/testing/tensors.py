"""The number types that the device computes in, tensors on it, and page-locked memory."""

from __future__ import annotations

import torch

from accelerator.testing.model import Ability, Checks, does_not_apply, expect, expect_equal, expect_type, needs

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

    def type_questions_answer_yes_or_no(self) -> None:
        """is_bf16_supported(), is_fp16_supported() and is_fp8_supported() are bools, never None."""
        for name in ("is_bf16_supported", "is_fp16_supported", "is_fp8_supported"):
            expect_type(f"{name}()", getattr(self.accelerator, name)(), bool)

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

    @needs(Ability.TENSORS)
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

    @needs(Ability.TENSORS)
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

    def tensor_properties_are_callable(self) -> None:
        """Each of the seven tensor properties is callable."""
        for name in _MAKERS:
            maker = getattr(self.accelerator, name)
            expect(callable(maker), f"{name} callable", maker)

    @needs(Ability.TENSORS)
    def tensor_properties_make_tensors(self) -> str | None:
        """Each of the seven tensor properties makes a tensor of its type, with the data given, on the device."""
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

    @needs(Ability.TENSORS)
    def tensors_are_made_on_the_current_device(self) -> None:
        """After set_device(i), the tensor properties make tensors on device i."""
        if len(self._indices()) < 2:
            does_not_apply("there is one device")
        if self.accelerator.device(0).index is None:
            does_not_apply("device strings carry no index, so a tensor does not show its device")
        for index in self._each_device():
            found = self.accelerator.FloatTensor([1.0]).device.index
            expect_equal(f"index of a tensor made after set_device({index})", found, index)

    @needs(Ability.TENSORS)
    def on_accelerator_knows_its_tensors(self) -> None:
        """on_accelerator() is True for the device's tensors, and False for the host's unless that is the device."""
        expect_equal("on_accelerator(device tensor)", self.accelerator.on_accelerator(self._tensor([1.0])), True)
        is_host = self.accelerator.device().type == "cpu"
        expect_equal("on_accelerator(host tensor)", self.accelerator.on_accelerator(torch.ones(1)), is_host)

    @needs(Ability.PINNED_MEMORY)
    def pinning_keeps_the_tensor(self) -> None:
        """pin_memory() gives a CPU tensor of the same values and shape, with each of its keywords."""
        data = torch.arange(12.0).reshape(3, 4)
        for keywords in ({}, {"align_bytes": 1}, {"make_copy": True, "match_shape": True}):
            pinned = self.accelerator.pin_memory(data, **keywords)
            expect_equal("device of the pinned tensor", pinned.device.type, "cpu")
            expect_equal("values of the pinned tensor", pinned.tolist(), data.tolist())

    @needs(Ability.PINNED_MEMORY)
    def pinning_in_whole_pages(self) -> None:
        """pin_memory(align_bytes=0) keeps the values as well, where the device knows whole pages."""
        data = torch.arange(4.0)
        pinned = self._unless_unsupported(lambda: self.accelerator.pin_memory(data, align_bytes=0))
        expect_equal("values of the pinned tensor", pinned.tolist(), data.tolist())

    @needs(Ability.PINNED_MEMORY)
    def pinned_tensors_are_known(self) -> None:
        """is_pinned() is True for what pin_memory() copied, and False for other tensors."""
        data = torch.arange(4.0)
        expect_equal("is_pinned(plain tensor)", self.accelerator.is_pinned(data), False)
        pinned = self.accelerator.pin_memory(data)
        if pinned is data:
            does_not_apply("pin_memory() is the identity: no device copies from the tensor")
        expect_equal("is_pinned(pinned tensor)", self.accelerator.is_pinned(pinned), True)

    @needs(Ability.PINNED_MEMORY)
    def unpinning_keeps_the_values(self) -> None:
        """unpin_memory() takes what pin_memory() gave; a tensor it returns has the same values."""
        data = torch.arange(4.0)
        released = self.accelerator.unpin_memory(self.accelerator.pin_memory(data.clone()))
        if released is not None:
            expect_equal("values after unpin_memory()", released.tolist(), data.tolist())
