"""The engine of async_io without torch, without warnings, and watched by sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.watched_programs import ROOT, each_sanitizer, needs_sources, run_watched

SOURCES = [
    ROOT / "tests/support/native/aio_check.cpp",
    *sorted([*ROOT.glob("csrc/kernels/aio/*.cpp"), *ROOT.glob("csrc/kernels/memory/*.cpp")]),
]


@pytest.mark.slow
@needs_sources
@each_sanitizer
def test_no_race_no_stray_access_and_every_byte(tmp_path: Path, sanitizer: str) -> None:
    output = run_watched(tmp_path / "aio_check", sanitizer, SOURCES, tmp_path / "file")
    assert output.count("threads: done") == 2
