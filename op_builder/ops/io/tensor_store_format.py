"""A stored tensor: its bytes in memory, and its file, a safetensors file with one tensor.

Blanks follow the header up to byte 4096, so that the tensor's bytes begin at a page and can bypass the page cache. The
texts in ``__metadata__`` have the checksums.
"""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass
from math import prod

import torch
import xxhash

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import is_overlapping
from op_builder.ops.io import safetensors_format
from op_builder.ops.io.aio_operation import check_memory
from op_builder.ops.io.safetensors_format import LENGTH_BYTES, MAX_DIMENSIONS, METADATA, decoded_entries
from op_builder.system.records import RecordError

HEADER_BYTES = 4096
"""Where the tensor's bytes begin."""

_FORMAT = "1"
_MAPPED_FROM_BYTES = 1 << 20
_FOREIGN = "no TensorStore of this version wrote it; load_safetensors() reads any safetensors file"
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith("torch.q")  # quantized: the bytes are not all of it
}
"""The types that can be stored, by their names."""
_SAFETENSORS_NAMES = {dtype: name for name, dtype in safetensors_format.DTYPES.items()}
# Other types have a name in ``__metadata__``, and are stored as parts of these types: one more dimension at the end.
_PARTS = {torch.complex32: torch.float16, torch.complex128: torch.float64}


@dataclass(frozen=True)
class TensorInfo:
    """Description of a stored tensor.

    Attributes:
        size_bytes: of its elements.
        checksum: XXH3 (64 bits) of its bytes, in hexadecimal.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    size_bytes: int
    checksum: str


def encoded_header(name: str, info: TensorInfo) -> bytes:
    """The first ``HEADER_BYTES`` of the file of tensor ``name``."""
    texts = {"format": "pt", "accel_ops_store": _FORMAT, "xxh3_64": info.checksum, "header_xxh3_64": "0" * 16}
    dtype, shape = info.dtype, list(info.shape)
    if dtype not in _SAFETENSORS_NAMES or (dtype == torch.float4_e2m1fn_x2 and not shape):
        texts["dtype"] = str(dtype).removeprefix("torch.")
        dtype = _PARTS.get(dtype, torch.uint8)
        shape.append(info.dtype.itemsize // dtype.itemsize)
    elif dtype == torch.float4_e2m1fn_x2:
        shape[-1] *= 2
    entry = {"dtype": _SAFETENSORS_NAMES[dtype], "shape": shape, "data_offsets": [0, info.size_bytes]}
    members = {METADATA: texts, name: entry}
    texts["header_xxh3_64"] = xxhash.xxh3_64_hexdigest(safetensors_format.encoded(members, HEADER_BYTES))
    return safetensors_format.encoded(members, HEADER_BYTES)


def decoded_header(header: bytes, file_bytes: int) -> TensorInfo:
    """The tensor that the first bytes of a file describe; a RecordError says why they do not.

    ``header`` is the first ``HEADER_BYTES``, or all of a shorter file; ``file_bytes`` is the file's length.
    """
    if len(header) < HEADER_BYTES or int.from_bytes(header[:LENGTH_BYTES], "little") != HEADER_BYTES - LENGTH_BYTES:
        raise RecordError(_FOREIGN)
    entries, texts = decoded_entries(header[LENGTH_BYTES:], file_bytes - HEADER_BYTES)
    if len(entries) != 1 or texts.get("accel_ops_store") != _FORMAT:
        raise RecordError(_FOREIGN)
    (entry,) = entries
    dtype, shape = entry.dtype, entry.shape
    if "dtype" in texts:
        if texts["dtype"] not in DTYPES:
            raise RecordError(f"torch {torch.__version__} does not know its type {ascii(texts['dtype'])[:100]}")
        dtype, shape = DTYPES[texts["dtype"]], shape[:-1]
    info = TensorInfo(dtype, shape, entry.end, texts.get("xxh3_64", ""))
    if encoded_header(entry.name, info) != header:
        raise RecordError("the checksum of its header does not match")
    return info


def body_to_write(tensor: torch.Tensor) -> tuple[torch.Tensor, TensorInfo]:
    """A tensor's bytes as a uint8 vector in host memory, and its description, still without a checksum.

    The vector is a copy unless the tensor is contiguous in host memory. An OpArgumentError says what cannot be stored.
    """
    if not isinstance(tensor, torch.Tensor):
        raise OpArgumentError(f"A {type(tensor).__name__} is not a tensor.", "Pass a torch.Tensor.")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise OpArgumentError(
            f"A tensor of layout {tensor.layout} cannot be stored.",
            "Pass x.to_dense(), or its parts one by one.",
        )
    if tensor.device.type == "meta":
        raise OpArgumentError("A meta tensor has no values to store.", "Pass a tensor with memory.")
    if tensor.dtype not in DTYPES.values():
        raise OpArgumentError(f"A tensor of {tensor.dtype} cannot be stored.", "Pass x.int_repr(), or x.dequantize().")
    if tensor.dim() > MAX_DIMENSIONS:
        raise OpArgumentError(f"A tensor of {tensor.dim()} dimensions cannot be stored.", "Pass x.flatten().")
    info = TensorInfo(tensor.dtype, tuple(tensor.shape), tensor.numel() * tensor.itemsize, "")
    with torch.no_grad():
        values = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
    check_memory(values, "The tensor")
    return bytes_of(values), info


def check_out(name: str, out: torch.Tensor, info: TensorInfo) -> None:
    """Raise an OpArgumentError if ``out`` has a wrong type or shape, or no memory for each element."""
    if not isinstance(out, torch.Tensor):
        raise OpArgumentError(f"out is a {type(out).__name__}, not a tensor.", "Pass a tensor, or omit out.")
    if out.dtype != info.dtype or tuple(out.shape) != info.shape:
        raise OpArgumentError(
            f"Tensor {name!r} is {info.dtype} of shape {info.shape}; out is {out.dtype} of shape {tuple(out.shape)}.",
            "Pass an out of its type and shape (see info()), or none.",
        )
    if out.layout != torch.strided or out.is_nested or out.device.type == "meta" or is_overlapping(out):
        raise OpArgumentError("out is not a dense tensor with memory for each element.", "Pass torch.empty(...).")
    if out.device.type == "cpu":
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


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous CPU tensor as a uint8 vector."""
    return tensor.detach().view(-1).view(torch.uint8)
