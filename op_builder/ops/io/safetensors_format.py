"""The header of a safetensors file (https://huggingface.co/docs/safetensors).

::

    8 bytes        the header's length, little-endian
    the header     a JSON object: dtype, shape and data_offsets of each tensor, texts in ``__metadata__``; blanks
    to the end     the tensors' bytes, one tensor after another without a gap
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import lru_cache
from itertools import accumulate
from math import isfinite, prod
from operator import itemgetter, mul
from typing import Any, NamedTuple

import torch

from op_builder.errors import IncompatibleOpError
from op_builder.system.records import RecordError, is_string, mapping_of

LENGTH_BYTES = 8
METADATA = "__metadata__"
"""The member of the header that describes the file, not a tensor."""

# The limits of the package safetensors, whose checks these are: a file that one of us loads is one for the other, too.
_MAX_HEADER_BYTES = 100_000_000
_MAX_DEPTH = 125  # of a member that is ignored
_MAX_COUNT = (1 << 64) - 1
_MEMBERS = ("dtype", "shape", "data_offsets")
_NEGATIVE_ZEROS = tuple(mark + b"-0" for mark in (b",", b":", b"[", b" ", b"\n", b"\r", b"\t"))

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F4": torch.float4_e2m1fn_x2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
"""torch's types by their names in files. One torch element of F4 is two elements in the file."""


class TensorEntry(NamedTuple):
    """One tensor of a file.

    Attributes:
        shape: as torch counts the elements.
        begin, end: where its bytes are, counted from the end of the header.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def check_byte_order() -> None:
    """Raise an IncompatibleOpError on a machine whose numbers have another byte order than the files."""
    if sys.byteorder != "little":
        raise IncompatibleOpError(
            "safetensors files are little-endian, and this machine is not.", "Use torch.save() and torch.load() here."
        )


def header_bytes(length: bytes, file_bytes: int) -> int:
    """The header's length, from the file's first ``LENGTH_BYTES``; a RecordError if the file cannot have it."""
    size = int.from_bytes(length, "little")
    if len(length) < LENGTH_BYTES or size > file_bytes - LENGTH_BYTES:
        raise RecordError("it is shorter than its header")
    if size > _MAX_HEADER_BYTES:
        raise RecordError(f"its header has {size} bytes; {_MAX_HEADER_BYTES} are allowed")
    return size


def decoded_entries(header: bytes | bytearray, data_bytes: int) -> tuple[list[TensorEntry], dict[str, str]]:
    """The tensors that a header describes, in the order of their bytes, and its texts; a RecordError if it is invalid.

    ``header`` comes without its length; ``data_bytes`` follow it.
    """
    has_negative_zero = any(zero in header for zero in _NEGATIVE_ZEROS)
    try:
        members = json.loads(
            header.decode(),
            object_pairs_hook=_object,
            # json's own is faster.
            parse_int=(lambda text: -0.0 if text == "-0" else int(text)) if has_negative_zero else None,
            parse_float=_finite,
            parse_constant=_finite,
        )
        if b"\\u" in header:
            json.dumps(members, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise RecordError("its header is not a JSON object")
    texts = members.pop(METADATA, None)
    texts = {} if texts is None else dict(texts) if isinstance(texts, dict) else texts
    is_repeated = isinstance(members, _Repeating) and METADATA in members.repeated
    if is_repeated or not mapping_of(is_string)(texts):
        raise RecordError(f"its {METADATA} is not an object of texts")
    entries = sorted((_entry(name, facts) for name, facts in members.items()), key=itemgetter(3, 4))
    end = 0
    for entry in entries:
        if entry.begin != end:
            what = "overlaps the tensor before" if entry.begin < end else f"leaves a gap of {entry.begin - end} bytes"
            raise RecordError(f"tensor {_shown(entry.name)} {what}")
        end = entry.end
    if end != data_bytes:
        raise RecordError(f"{data_bytes} bytes follow its header, and should be {end}")
    return entries, texts


def encoded(members: dict[str, Any], size: int) -> bytes:
    """The first ``size`` bytes of a file: the header, which must fit, padded with blanks."""
    header_size = size - LENGTH_BYTES
    return header_size.to_bytes(LENGTH_BYTES, "little") + json.dumps(members).encode().ljust(header_size)


class _Repeating(dict[str, Any]):
    """A JSON object that had some names twice, with the last value of each."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = Counter(name for name, _ in pairs)
        self.repeated = {name for name, count in names.items() if count > 1}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    return members if len(members) == len(pairs) else _Repeating(pairs)


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(text)
    return number


def _depth(value: Any) -> int:
    """How deep lists and objects are nested; an OverflowError if a number is too large for a float."""
    if not isinstance(value, dict | list):
        if isinstance(value, int):
            float(value)
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


def _entry(name: str, facts: Any) -> TensorEntry:
    if isinstance(facts, list) and len(facts) == len(_MEMBERS):
        facts = dict(zip(_MEMBERS, facts, strict=True))
    try:
        dtype_name, shape, offsets = facts["dtype"], facts["shape"], facts["data_offsets"]
        if isinstance(dtype_name, dict) and list(dtype_name.values()) == [None]:
            (dtype_name,) = dtype_name
        is_valid = (
            type(dtype_name) is str
            and type(shape) is type(offsets) is list
            and len(offsets) == 2
            and {int}.issuperset(map(type, shape))
            and {int}.issuperset(map(type, offsets))
            and offsets[0] >= 0
            and _is_size(tuple(shape))
            and (len(facts) == len(_MEMBERS) or max(map(_depth, facts.values())) <= _MAX_DEPTH)
            and (type(facts) is dict or facts.repeated.isdisjoint(_MEMBERS))
        )
    except (KeyError, TypeError, OverflowError, RecursionError):
        is_valid = False
    if not is_valid:
        raise RecordError(f"tensor {_shown(name)} lacks a valid dtype, shape and data_offsets")
    try:
        dtype, sizes, size_bytes = _stored(dtype_name, tuple(shape))
    except RecordError as error:
        raise RecordError(f"tensor {_shown(name)} {error}") from None
    begin, end = offsets
    if end - begin != size_bytes:
        raise RecordError(f"tensor {_shown(name)} has {end - begin} bytes, which do not fit its type and shape")
    return TensorEntry(name, dtype, sizes, begin, end)


# Most tensors of a model have one of a few shapes.


@lru_cache(1024)
def _is_size(shape: tuple[int, ...]) -> bool:
    is_counted = min(shape, default=0) >= 0 and max(shape, default=0) < 1 << 63
    return is_counted and (0 not in shape or max(accumulate(shape, mul)) <= _MAX_COUNT)


@lru_cache(1024)
def _stored(dtype_name: str, shape: tuple[int, ...]) -> tuple[torch.dtype, tuple[int, ...], int]:
    """torch's type and shape of a tensor, and its bytes."""
    dtype = DTYPES.get(dtype_name)
    if dtype is None:
        raise RecordError(f"cannot be loaded, because torch has no type for {_shown(dtype_name)}")
    if dtype_name == "F4":
        if not shape or shape[-1] % 2 != 0:
            raise RecordError("is of type F4, and its last dimension is odd or missing")
        shape = (*shape[:-1], shape[-1] // 2)
    return dtype, shape, prod(shape) * dtype.itemsize


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 100 else f"{name[:100]}...")
