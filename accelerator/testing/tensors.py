"""Tensors: making them on the device, telling where they are, page-locked memory."""

from __future__ import annotations

import torch

from accelerator.testing.model import (
    Ability,
    Subject,
    does_not_apply,
    expect,
    expect_equal,
    needs,
    unless_unsupported,
)

_MAKERS = {
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
}


def tensor_properties_are_callable(subject: Subject) -> None:
    """Each of the seven tensor properties is something to call."""
    for name in _MAKERS:
        maker = getattr(subject.accelerator, name)
        expect(callable(maker), f"{name} callable", maker)


@needs(Ability.TENSORS)
def tensor_properties_make_tensors(subject: Subject) -> str | None:
    """Each of the seven tensor properties makes a tensor of its type, with the data given, on the device."""
    refused = []
    for name, dtype in _MAKERS.items():
        try:
            tensor = getattr(subject.accelerator, name)([1, 2, 3])
        except (TypeError, RuntimeError):
            # The contract has the property on every device; some have no such type (no float64 on mps).
            if dtype is torch.float64 or (
                dtype in (torch.float16, torch.bfloat16) and dtype not in subject.accelerator.supported_dtypes()
            ):
                refused.append(name)
                continue
            raise
        expect_equal(f"dtype of {name}", tensor.dtype, dtype)
        expect_equal(f"device of {name}", tensor.device.type, subject.accelerator.device().type)
        expect_equal(f"values of {name}", tensor.cpu().tolist(), [1, 2, 3])
    return f"the device refuses {', '.join(refused)}" if refused else None


@needs(Ability.TENSORS)
def tensors_are_made_on_the_current_device(subject: Subject) -> None:
    """After set_device(i), the tensor properties make tensors on device i."""
    if len(subject.indices()) < 2:
        does_not_apply("there is one device")
    if subject.accelerator.device(0).index is None:
        does_not_apply("device strings carry no index, so no tensor tells its device")
    with subject.each_device() as devices:
        for index in devices:
            found = subject.accelerator.FloatTensor([1.0]).device.index
            expect_equal(f"index of a tensor made after set_device({index})", found, index)


@needs(Ability.TENSORS)
def tensors_are_told_apart(subject: Subject) -> None:
    """on_accelerator() is True for a tensor of the device, and False for one of the host unless that is the device."""
    accelerator = subject.accelerator
    expect_equal("on_accelerator(device tensor)", accelerator.on_accelerator(subject.tensor([1.0])), True)
    is_host = accelerator.device().type == "cpu"
    expect_equal("on_accelerator(host tensor)", accelerator.on_accelerator(torch.ones(1)), is_host)


@needs(Ability.PINNED_MEMORY)
def pinning_keeps_the_tensor(subject: Subject) -> None:
    """pin_memory() gives a CPU tensor of the same values and shape, with each of its keywords."""
    data = torch.arange(12.0).reshape(3, 4)
    for keywords in ({}, {"align_bytes": 1}, {"make_copy": True, "match_shape": True}):
        pinned = subject.accelerator.pin_memory(data, **keywords)
        expect_equal("device of the pinned tensor", pinned.device.type, "cpu")
        expect_equal("values of the pinned tensor", pinned.tolist(), data.tolist())


@needs(Ability.PINNED_MEMORY)
def pinning_in_whole_pages(subject: Subject) -> None:
    """pin_memory(align_bytes=0) keeps the values as well, where the device knows whole pages."""
    data = torch.arange(4.0)
    pinned = unless_unsupported(lambda: subject.accelerator.pin_memory(data, align_bytes=0))
    expect_equal("values of the pinned tensor", pinned.tolist(), data.tolist())


@needs(Ability.PINNED_MEMORY)
def pinned_tensors_are_known(subject: Subject) -> None:
    """is_pinned() is True for what pin_memory() copied, and False for other tensors."""
    accelerator, data = subject.accelerator, torch.arange(4.0)
    expect_equal("is_pinned(plain tensor)", accelerator.is_pinned(data), False)
    pinned = accelerator.pin_memory(data)
    if pinned is data:
        does_not_apply("pin_memory() is the identity: no device copies from the tensor")
    expect_equal("is_pinned(pinned tensor)", accelerator.is_pinned(pinned), True)


@needs(Ability.PINNED_MEMORY)
def unpinning_keeps_the_values(subject: Subject) -> None:
    """unpin_memory() takes what pin_memory() gave; a tensor it returns has the same values."""
    accelerator, data = subject.accelerator, torch.arange(4.0)
    released = accelerator.unpin_memory(accelerator.pin_memory(data.clone()))
    if released is not None:
        expect_equal("values after unpin_memory()", released.tolist(), data.tolist())


CHECKS = (
    tensor_properties_are_callable,
    tensor_properties_make_tensors,
    tensors_are_made_on_the_current_device,
    tensors_are_told_apart,
    pinning_keeps_the_tensor,
    pinning_in_whole_pages,
    pinned_tensors_are_known,
    unpinning_keeps_the_values,
)
