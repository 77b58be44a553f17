"""The file of a stored tensor.

::

    byte 0      "accel-ops tensor 1\\n", a line of JSON, a line with that line's checksum; zeros up to
    byte 4096   the tensor's bytes, in the order of its elements, to the end of the file

The body begins at a page, so that it can bypass the page cache. ``head -n 3`` shows the first lines.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from math import prod

import torch
import xxhash

from op_builder.system.records import RecordError, Schema, is_count, is_text, list_of, one_of, require

HEADER_BYTES = 4096
"""Where the tensor's bytes begin."""

_HEADER: Schema = {
    "dtype": is_text,
    "shape": list_of(is_count),
    "size_bytes": is_count,
    "xxh3_64": is_text,
    "byteorder": one_of("little", "big"),
}
_MAGIC = b"accel-ops tensor 1\n"
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith("torch.q")  # quantized: the bytes are not all of it
}
"""The types that can be stored, by their names."""


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


def encoded_header(info: TensorInfo) -> bytes:
    """The first ``HEADER_BYTES`` of the file."""
    facts = {
        "dtype": str(info.dtype).removeprefix("torch."),
        "shape": list(info.shape),
        "size_bytes": info.size_bytes,
        "xxh3_64": info.checksum,
        "byteorder": sys.byteorder,
    }
    line = json.dumps(facts).encode()
    text = b"%s%s\n%s\n" % (_MAGIC, line, xxhash.xxh3_64_hexdigest(line).encode())
    return text.ljust(HEADER_BYTES, b"\0")


def decoded_header(header: bytes, file_bytes: int) -> TensorInfo:
    """The tensor that the first bytes of a file describe.

    Args:
        header: the first ``HEADER_BYTES``, fewer of a shorter file.
        file_bytes: the file's length.

    Raises:
        RecordError: it is not an intact file of a tensor; the message says why.
    """
    if len(header) < HEADER_BYTES or not header.startswith(_MAGIC):
        raise RecordError("it is not a file of a TensorStore, or of another version")
    line, _, rest = header[len(_MAGIC) :].partition(b"\n")
    if rest.rstrip(b"\0") != b"%s\n" % xxhash.xxh3_64_hexdigest(line).encode():
        raise RecordError("the checksum of its header does not match")
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        raise RecordError("its header is not a JSON object") from None
    require(facts, _HEADER)
    dtype = DTYPES.get(facts["dtype"])
    if dtype is None:
        raise RecordError(f"torch {torch.__version__} does not know its type {facts['dtype']}")
    if facts["byteorder"] != sys.byteorder:
        raise RecordError(
            f"it was written by a {facts['byteorder']}-endian machine, this one is {sys.byteorder}-endian"
        )
    info = TensorInfo(dtype, tuple(facts["shape"]), facts["size_bytes"], facts["xxh3_64"])
    # torch refuses a shape whose other dimensions overflow, even if one is 0.
    if prod(filter(None, info.shape)) * dtype.itemsize >= 1 << 63:
        raise RecordError(f"no tensor has the shape {info.shape}")
    if info.size_bytes != prod(info.shape) * dtype.itemsize:
        raise RecordError(f"{info.size_bytes} bytes are not a tensor of shape {info.shape} and type {facts['dtype']}")
    if file_bytes != HEADER_BYTES + info.size_bytes:
        raise RecordError(f"it has {file_bytes} bytes, and should have {HEADER_BYTES + info.size_bytes}")
    return info
