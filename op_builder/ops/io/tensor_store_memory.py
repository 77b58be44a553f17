"""Tensors as the bytes that go to and from files."""

from __future__ import annotations

import contextlib
import mmap
from math import prod

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import bytes_of, is_dense, is_overlapping, not_dense
from op_builder.ops.io.aio_operation import check_memory
from op_builder.ops.io.tensor_store_format import DTYPES, TensorInfo

_MAPPED_FROM_BYTES = 1 << 20
_MAX_DIMENSIONS = 64  # many functions of torch do not take more


def body_to_write(tensor: torch.Tensor) -> tuple[torch.Tensor, TensorInfo]:
    """A tensor's bytes as a uint8 vector in host memory, and its description, still without a checksum.

    The vector is a copy unless the tensor is contiguous in host memory. An OpArgumentError names what cannot be stored.
    """
    if not is_dense(tensor):
        raise not_dense("The tensor", tensor)
    if tensor.device.type == "meta":
        raise OpArgumentError("A meta tensor has no values to store.", "Pass a tensor with memory.")
    if tensor.dtype not in DTYPES.values():
        raise OpArgumentError(f"A tensor of {tensor.dtype} cannot be stored.", "Pass x.int_repr(), or x.dequantize().")
    if tensor.dim() > _MAX_DIMENSIONS:
        raise OpArgumentError(f"A tensor of {tensor.dim()} dimensions cannot be stored.", "Pass x.flatten().")
    check_memory(tensor, "The tensor")
    info = TensorInfo(tensor.dtype, tuple(tensor.shape), tensor.numel() * tensor.itemsize, "")
    with torch.no_grad():
        values = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
    return bytes_of(values), info


def check_out(name: str, out: torch.Tensor, info: TensorInfo) -> None:
    """Raise an OpArgumentError if ``out`` has a wrong type or shape, or no memory for each element."""
    if not is_dense(out):
        raise not_dense("out", out)
    if out.dtype != info.dtype or tuple(out.shape) != info.shape:
        raise OpArgumentError(
            f"Tensor {name!r} is {info.dtype} of shape {info.shape}; out is {out.dtype} of shape {tuple(out.shape)}.",
            f"Pass `out=` with the dtype and shape of `store.info({name!r})`, or omit `out`.",
        )
    if out.device.type == "meta" or is_overlapping(out):
        raise OpArgumentError("out has no memory for each element.", "Pass torch.empty(...).")
    check_memory(out, "out")


def is_filled_in_place(out: torch.Tensor) -> bool:
    """Whether files can be read into the tensor's own memory."""
    return out.device.type == "cpu" and out.is_contiguous() and not out.is_conj() and not out.is_neg()


def new_tensor(info: TensorInfo) -> torch.Tensor:
    """An uninitialised tensor for a stored one."""
    if info.size_bytes < _MAPPED_FROM_BYTES:
        return torch.empty(info.shape, dtype=info.dtype, device="cpu")
    # Page-aligned, which torch's allocator is not: so the device's data needs no copy.
    return torch.frombuffer(new_memory(info.size_bytes), dtype=info.dtype, count=prod(info.shape)).view(info.shape)


def new_memory(size_bytes: int) -> mmap.mmap:
    """New memory that begins at a page; freed with the last tensor on it."""
    mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
