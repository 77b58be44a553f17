"""Reading libraries for macOS. tests/system/op_builder/test_ziglang.py reads a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from op_builder.system.macho import read_library


@pytest.mark.parametrize("content", [b"", b"\x7fELF" + bytes(60), b"\xcf\xfa\xed\xfe" + b"\xff" * 40])
def test_a_damaged_library_for_macos_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "acme.so").write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        read_library(tmp_path / "acme.so")
