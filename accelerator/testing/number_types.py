"""The number types that the device computes in."""

from __future__ import annotations

import torch

from accelerator.testing.model import (
    Ability,
    Subject,
    does_not_apply,
    expect,
    expect_equal,
    expect_type,
    needs,
)


def type_questions_answer_yes_or_no(subject: Subject) -> None:
    """is_bf16_supported(), is_fp16_supported() and is_fp8_supported() are bools, never None."""
    for name in ("is_bf16_supported", "is_fp16_supported", "is_fp8_supported"):
        expect_type(f"{name}()", getattr(subject.accelerator, name)(), bool)


def supported_dtypes_agree(subject: Subject) -> str:
    """supported_dtypes() begins with float32 and has float16, bfloat16 and float8 only where the questions say so."""
    accelerator = subject.accelerator
    dtypes = accelerator.supported_dtypes()
    expect_type("supported_dtypes()", dtypes, list)
    expect(all(isinstance(dtype, torch.dtype) for dtype in dtypes), "torch.dtype objects", dtypes)
    expect(dtypes[:1] == [torch.float32], "float32 first", dtypes)
    expect(len(set(dtypes)) == len(dtypes), "each type once", dtypes)
    expect_equal("float16 listed", torch.float16 in dtypes, accelerator.is_fp16_supported())
    expect_equal("bfloat16 listed", torch.bfloat16 in dtypes, accelerator.is_bf16_supported())
    narrow = [dtype for dtype in dtypes if dtype.itemsize == 1]
    expect(not narrow or accelerator.is_fp8_supported(), "no 8-bit type where is_fp8_supported() is False", narrow)
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


@needs(Ability.TENSORS)
def supported_dtypes_compute(subject: Subject) -> None:
    """A matrix product and a sum on the device are right in each of supported_dtypes()."""
    # Small integers: products and sums are exact in every floating-point type of 16 bits or more.
    left, right = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2)
    wanted = (left @ right + 1).tolist()
    for dtype in subject.accelerator.supported_dtypes():
        if dtype.itemsize == 1:
            continue  # torch has no plain operators for these
        device = subject.accelerator.device_name()
        found = (left.to(device, dtype) @ right.to(device, dtype) + 1).cpu()
        expect_equal(f"dtype of a {dtype} result", found.dtype, dtype)
        expect_equal(f"values in {dtype}", found.float().tolist(), wanted)


@needs(Ability.TENSORS)
def float8_converts(subject: Subject) -> None:
    """Where is_fp8_supported(), tensors convert to float8_e4m3fn and back on the device."""
    if not subject.accelerator.is_fp8_supported():
        does_not_apply("is_fp8_supported() is False")
    data = subject.tensor([1.0, -2.0, 0.5])
    expect_equal("values", data.to(torch.float8_e4m3fn).float().cpu().tolist(), [1.0, -2.0, 0.5])


def amp_is_a_module_or_none(subject: Subject) -> str:
    """amp() is the device's amp module, with autocast in it, or None."""
    amp = subject.accelerator.amp()
    if amp is None:
        return "none"
    expect(hasattr(amp, "autocast"), "a module with autocast", amp)
    return str(getattr(amp, "__name__", amp))


CHECKS = (
    type_questions_answer_yes_or_no,
    supported_dtypes_agree,
    supported_dtypes_compute,
    float8_converts,
    amp_is_a_module_or_none,
)
