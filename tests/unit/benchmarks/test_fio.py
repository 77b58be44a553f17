"""The options that the benchmark of async_io gives to fio."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import _fio

MIB = 1 << 20


@pytest.mark.parametrize(
    ("free", "buffer_bytes", "is_enough"),
    [(0, MIB, False), (16, 32 * MIB, False), (17, 32 * MIB, True), (2, MIB, True)],
)
def test_large_pages_are_used_if_enough_are_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, buffer_bytes: int, is_enough: bool
) -> None:
    (tmp_path / "meminfo").write_text(
        f"MemTotal: 24 kB\nHugePages_Total: 99\nHugePages_Free: {free}\nHugepagesize: 2048 kB\n"
    )
    monkeypatch.setattr(_fio, "Path", lambda _: tmp_path / "meminfo")
    assert _fio.has_large_pages(buffer_bytes) is is_enough


def test_a_system_without_meminfo_has_no_large_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_fio, "Path", lambda _: tmp_path / "missing")
    assert not _fio.has_large_pages(1)
