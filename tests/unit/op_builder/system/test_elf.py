"""The architecture of an ELF file, by its name in wheel tags."""

from __future__ import annotations

import io
import struct

import pytest

from op_builder.system.elf import read_elf


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
