"""Reading the headers of libraries for Linux and macOS."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest

from op_builder.system.elf import read_elf
from op_builder.system.macho import read_library


@pytest.mark.parametrize(
    ("number", "bits", "order", "name"),
    [
        (62, 64, "<", "x86_64"),
        (183, 64, "<", "aarch64"),
        (3, 32, "<", "i686"),
        (21, 64, ">", "ppc64"),
    ],
)
def test_an_architecture_has_its_name_in_wheel_tags(number: int, bits: int, order: str, name: str) -> None:
    marks = bytes([0x7F, *b"ELF", bits // 32, 1 if order == "<" else 2, 1]) + bytes(9)
    word = "Q" if bits == 64 else "I"
    header = marks + struct.pack(
        f"{order}HHI3{word}I6H", 3, number, 1, 0, 0, 0, 0, 52 + 12 * (bits // 64), 0, 0, 0, 0, 0
    )
    assert read_elf(io.BytesIO(header)).machine == name


@pytest.mark.parametrize("content", [b"", b"\x7fELF" + bytes(60), b"\xcf\xfa\xed\xfe" + b"\xff" * 40])
def test_a_damaged_library_for_macos_is_refused(tmp_path: Path, content: bytes) -> None:
    """tests/system/op_builder/test_ziglang.py reads a real one."""
    (tmp_path / "acme.so").write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        read_library(tmp_path / "acme.so")
