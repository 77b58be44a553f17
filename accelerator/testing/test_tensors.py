"""Data types and tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accelerator.testing import devices, each_device, tensor

_MAKERS = {
    "BFloat16Tensor": torch.bfloat16,
    "HalfTensor": torch.float16,
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "ByteTensor": torch.uint8,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
}


def test_supported_dtypes_agree(accelerator: Any) -> None:
    """supported_dtypes() begins with float32; float16, bfloat16 and float8 are in it where is_..._supported()."""
    dtypes = accelerator.supported_dtypes()
    assert isinstance(dtypes, list)
    assert all(isinstance(dtype, torch.dtype) for dtype in dtypes)
    assert dtypes[0] is torch.float32
    assert len(set(dtypes)) == len(dtypes)
    assert (torch.float16 in dtypes) is accelerator.is_fp16_supported()
    assert (torch.bfloat16 in dtypes) is accelerator.is_bf16_supported()
    assert accelerator.is_fp8_supported() or not [dtype for dtype in dtypes if dtype.itemsize == 1]


def test_supported_dtypes_compute(accelerator: Any) -> None:
    """A matrix product and a sum on the device are right in each of supported_dtypes()."""
    # Small integers: products and sums are exact in every floating-point type of 16 bits or more.
    left, right = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2)
    expected = (left @ right + 1).tolist()
    for dtype in accelerator.supported_dtypes():
        if dtype.itemsize == 1:
            continue  # torch has no plain operators for these
        device = accelerator.device_name()
        found = (left.to(device, dtype) @ right.to(device, dtype) + 1).cpu()
        assert found.dtype == dtype
        assert found.float().tolist() == expected, dtype


def test_float8_converts(accelerator: Any) -> None:
    """Where is_fp8_supported(), tensors convert to float8_e4m3fn and back on the device."""
    if not accelerator.is_fp8_supported():
        pytest.skip("is_fp8_supported() is False")
    data = tensor(accelerator, [1.0, -2.0, 0.5])
    assert data.to(torch.float8_e4m3fn).float().cpu().tolist() == [1.0, -2.0, 0.5]


def test_amp_is_a_module_or_none(accelerator: Any) -> None:
    """amp() is the device's amp module, with autocast in it, or None."""
    amp = accelerator.amp()
    assert amp is None or hasattr(amp, "autocast")


def test_tensor_properties_make_tensors(accelerator: Any) -> None:
    """Each of the seven tensor properties makes a tensor of its type on the device from data."""
    halves = {torch.float16, torch.bfloat16} - set(accelerator.supported_dtypes())
    for name, dtype in _MAKERS.items():
        try:
            made = getattr(accelerator, name)([1, 2, 3])
        except (TypeError, RuntimeError):
            # The contract has the property on every device; some have no such type (no float64 on mps).
            if dtype is not torch.float64 and dtype not in halves:
                raise
            continue
        assert (made.dtype, made.device.type) == (dtype, accelerator.device().type), name
        assert made.cpu().tolist() == [1, 2, 3], name


def test_tensors_are_made_on_the_current_device(accelerator: Any) -> None:
    """After set_device(i), the tensor properties make tensors on device i."""
    if len(devices(accelerator)) < 2:
        pytest.skip("only one device is available")
    if accelerator.device(0).index is None:
        pytest.skip("device strings carry no index, so a tensor does not show its device")
    for index in each_device(accelerator):
        assert accelerator.FloatTensor([1.0]).device.index == index


def test_on_accelerator_knows_its_tensors(accelerator: Any) -> None:
    """on_accelerator() is True for the device's tensors, and False for the host's unless that is the device."""
    assert accelerator.on_accelerator(tensor(accelerator, [1.0])) is True
    assert accelerator.on_accelerator(torch.ones(1)) is (accelerator.device().type == "cpu")
