"""The file of a stored tensor: a safetensors file with one tensor.

Blanks follow the header up to byte 4096, so that the tensor's bytes begin at a page and can bypass the page cache. The
texts in ``__metadata__`` have the checksums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xxhash

from op_builder.ops.io import safetensors_format
from op_builder.ops.io.safetensors_format import LENGTH_BYTES, METADATA, decoded_entries
from op_builder.system.records import RecordError

HEADER_BYTES = 4096
"""Where the tensor's bytes begin."""

_FORMAT = "1"
_FOREIGN = "no TensorStore of this version wrote it; load_safetensors() reads any safetensors file"
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith("torch.q")  # quantized: the bytes lack the scale
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
    entry, is_named = encoded_entry(info.dtype, info.shape, 0, info.size_bytes)
    if is_named:
        texts["dtype"] = str(info.dtype).removeprefix("torch.")
    members = {METADATA: texts, name: entry}
    texts["header_xxh3_64"] = xxhash.xxh3_64_hexdigest(safetensors_format.encoded(members, HEADER_BYTES))
    return safetensors_format.encoded(members, HEADER_BYTES)


def encoded_entry(dtype: torch.dtype, shape: Sequence[int], begin: int, end: int) -> tuple[dict[str, Any], bool]:
    """The member of a header that describes one tensor, and whether safetensors lacks its type.

    Such a tensor is stored as parts of another type, and its own must be recorded elsewhere.
    """
    stored, sizes = dtype, list(shape)
    is_foreign = dtype not in _SAFETENSORS_NAMES or (dtype == torch.float4_e2m1fn_x2 and not sizes)
    if is_foreign:
        stored = _PARTS.get(dtype, torch.uint8)
        sizes.append(dtype.itemsize // stored.itemsize)
    elif dtype == torch.float4_e2m1fn_x2:
        sizes[-1] *= 2
    return {"dtype": _SAFETENSORS_NAMES[stored], "shape": sizes, "data_offsets": [begin, end]}, is_foreign


def decoded_header(header: bytes, file_bytes: int) -> TensorInfo:
    """The tensor that the first bytes of a file describe; a RecordError if they are invalid.

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
