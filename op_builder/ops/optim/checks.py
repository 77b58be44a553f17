"""Checks of parameters, gradients and states that name parameters as the optimizer's user knows them.

A native op checks them, too, but knows only positions in its lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch.nn.parameter import is_lazy

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import reach_of, require_memory
from op_builder.ops.optim import packed_states
from op_builder.ops.optim.sharding import is_dtensor, is_split, local_of, sharding_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def place_of(group_index: int, index: int, param: torch.Tensor) -> str:
    """A parameter as the optimizer's user knows it."""
    shape = "nested" if param.is_nested else "lazy" if is_lazy(param) else f"shape {tuple(param.shape)}"
    return f"parameter {index} of group {group_index} ({shape})"


def check_param(place: str, param: torch.Tensor, *, is_normed: bool) -> None:
    """Raise an OpArgumentError if a parameter does not fit; ``is_normed`` if its norm is needed. Ignores the device."""
    what = place[0].upper() + place[1:]
    if is_lazy(param) or param.is_meta:
        raise OpArgumentError(
            f"{what} has no memory yet.",
            "Create the optimizer after the model's parameters have memory: run a lazy model once, or call "
            "model.to_empty(device='cpu') and initialize it.",
        )
    if param.dtype not in DTYPES:
        raise OpArgumentError(
            f"{what} is of type {param.dtype}; float32, bfloat16 or float16 is required.",
            "Convert the model, for example model.float()."
            if not param.is_complex()
            else "Pass a parameter of real numbers, as of torch.view_as_real(), or use torch.optim's optimizer.",
        )
    sharding = sharding_of(param)
    if sharding is not None and any(placement.is_partial() for placement in sharding.placements):
        raise OpArgumentError(
            f"{what} is a DTensor with a partial placement: no rank has its values.",
            "Redistribute it as Replicate() or Shard() first.",
        )
    if is_normed and is_split(param):
        raise OpArgumentError(
            f"{what} is split over ranks; LAMB needs the norm of the whole parameter.",
            "Use Adam or Lion for this model, or DistributedDataParallel.",
        )
    local = local_of(param)
    if local.layout != torch.strided or local.is_nested or not local.is_contiguous():
        raise OpArgumentError(
            f"{what} is not a contiguous dense tensor (layout {local.layout}).",
            "Make the parameter contiguous, for example by p.data = p.data.contiguous()."
            if local.layout == torch.strided and not local.is_nested
            else "Pass a dense parameter, or use torch.optim's optimizer.",
        )
    if local.is_neg():
        raise OpArgumentError(
            f"{what} is a lazy negation: its memory holds the values with the opposite sign.",
            "Resolve it, for example by p.data = p.data.resolve_neg().",
        )


def check_grad(place: str, grad: torch.Tensor, param: torch.Tensor, optimizer: str) -> None:
    """Raise an OpArgumentError if a gradient is sparse or of a wrong shape, type, device or distribution."""
    if grad.layout != torch.strided:
        raise OpArgumentError(
            f"The gradient of {place} is sparse ({grad.layout}); {optimizer} needs dense ones.",
            "Use torch.optim.SparseAdam or SGD for these parameters, or sparse=False in the embedding.",
        )
    if grad.dtype not in DTYPES or grad.shape != param.shape or grad.device != param.device:
        raise OpArgumentError(
            f"The gradient of {place} has shape {tuple(grad.shape)}, type {grad.dtype} and device {grad.device}; a "
            f"gradient of the parameter's shape, of float32, bfloat16 or float16 and on {param.device} is required.",
            "Call zero_grad() after changing a parameter's data, shape or device, then backward().",
        )
    if is_dtensor(param) and not is_dtensor(grad) and is_split(param):
        raise OpArgumentError(
            f"The gradient of {place} is not a DTensor; the parameter is one that is split over ranks.",
            "Distribute it, for example by p.grad = distribute_tensor(grad, p.device_mesh, p.placements).",
        )
    require_memory(f"The gradient of {place}", local_of(grad))


def check_copy(what: str, copy: torch.Tensor, param: torch.Tensor) -> None:
    """Raise an OpArgumentError if an update cannot write a parameter to another tensor."""
    is_dense = copy.layout == torch.strided and copy.is_cpu and copy.is_contiguous() and not copy.is_neg()
    if not is_dense or copy.dtype not in DTYPES or copy.numel() != param.numel():
        raise OpArgumentError(
            f"{what} has shape {tuple(copy.shape)}, type {copy.dtype}, layout {copy.layout} and device {copy.device}.",
            "Pass a contiguous CPU tensor of float32, bfloat16 or float16 with the parameter's number of elements.",
        )
    require_memory(what, copy)


def check_shapes(what: str, entry: Mapping[str, object], param: torch.Tensor, states: Iterable[str]) -> None:
    """Raise an OpArgumentError if a state has another shape than the parameter or, in 8 bits, another length."""
    for name in states:
        value = entry.get(name)
        is_packed = packed_states.is_packed(value)
        expected = (packed_states.packed_length(local_of(param).numel()),) if is_packed else tuple(param.shape)
        if value is not None and getattr(value, "shape", None) != expected:
            found = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"{value!r}"
            raise OpArgumentError(
                f"{what} has {name} of {found}; shape {expected} is required.",
                "Load the state of the same parameters in the same order. If you resized the parameter, delete its "
                "state: del optimizer.state[p].",
            )
        if not isinstance(value, torch.Tensor):
            continue
        require_memory(f"{what} has {name}, which", local_of(value))
        if not is_packed and is_dtensor(value) != is_dtensor(param):
            raise OpArgumentError(
                f"{what} has {name} of type {type(value).__name__}; the parameter is of type {type(param).__name__}.",
                "Load it by torch.distributed.checkpoint.state_dict.set_optimizer_state_dict(), which distributes it "
                "as the model is.",
            )


def owners_of_shared_memory(tensors: Iterable[tuple[int, torch.Tensor]]) -> tuple[int, int] | None:
    """Two owners of tensors that share memory; None if all have memory of their own.

    Args:
        tensors: each with the number of its owner, whose own tensors may share memory.
    """
    places = sorted(
        (str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + reach_of(tensor) * tensor.element_size(), owner)
        for owner, tensor in tensors
        if tensor.numel()
    )
    last_device, last_end, last_owner = "", 0, 0
    for device, begin, end, owner in places:
        if device == last_device and begin < last_end:
            if owner != last_owner:
                return last_owner, owner
            end = max(end, last_end)
        last_device, last_end, last_owner = device, end, owner
    return None
