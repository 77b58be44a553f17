"""The symbols of a library for macOS: a 64-bit Mach-O file, as Apple's loader.h and nlist.h define it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

_MAGIC = 0xFEEDFACF
_SYMTAB, _LOAD_DYLIB, _BUILD_VERSION = 0x2, 0xC, 0x32
_LONGEST_NAME = 1 << 16
_DEBUG, _PRIVATE, _TYPE, _EXTERNAL = 0xE0, 0x10, 0x0E, 0x01


class Library(NamedTuple):
    """What a library has and needs.

    Attributes:
        defined: the names that it exports.
        undefined: the names that it needs, with the library that must have one: ``malloc@/usr/lib/libSystem.B.dylib``.
            One without a library is looked for in the whole process.
        least_macos: the oldest macOS that it runs on, ``11.0``.
    """

    defined: set[str]
    undefined: set[str]
    least_macos: str


def read_library(path: Path) -> Library:
    """Read the file's load commands and symbols.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not such a file, or a damaged one.
    """
    data = path.read_bytes()
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"it is not a Mach-O file, or a damaged one: {error}") from None


def _read(data: bytes) -> Library:
    magic, _, _, _, count = struct.unpack_from("<5I", data)
    if magic != _MAGIC:
        raise ValueError("it begins with other bytes")
    libraries: list[str] = []
    table, least_macos, at = (0, 0, 0, 0), "", 32
    for _ in range(count):
        command, size = struct.unpack_from("<2I", data, at)
        if size < 8:  # that of the two numbers
            raise ValueError(f"a load command has {size} bytes")
        if command & 0x7FFFFFFF in (_LOAD_DYLIB, 0x18, 0x1F):  # also weak and re-exported ones
            libraries.append(_text(data, at + struct.unpack_from("<I", data, at + 8)[0]))
        elif command == _SYMTAB:
            table = struct.unpack_from("<4I", data, at + 8)
        elif command == _BUILD_VERSION:
            (version,) = struct.unpack_from("<I", data, at + 12)
            least_macos = f"{version >> 16}.{version >> 8 & 0xFF}"
        at += size
    defined: set[str] = set()
    undefined: set[str] = set()
    first, symbols, strings, _ = table
    for index in range(symbols):
        place, kind, _, description, _ = struct.unpack_from("<IBBHQ", data, first + 16 * index)
        if kind & _DEBUG or kind & _PRIVATE or not kind & _EXTERNAL:
            continue
        name = _text(data, strings + place).removeprefix("_")
        if kind & _TYPE:
            defined.add(name)
        else:
            ordinal = description >> 8
            undefined.add(f"{name}@{libraries[ordinal - 1]}" if 0 < ordinal <= len(libraries) else name)
    return Library(defined, undefined, least_macos)


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(0, at, at + _LONGEST_NAME)].decode()
