"""The engine of async_io without torch: by both compilers, without warnings, and watched by their sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from watched_programs import ROOT, each_watch, run_watched

SOURCES = [
    ROOT / "tests/ops/native/aio_check.cpp",
    *sorted([*ROOT.glob("csrc/kernels/aio/*.cpp"), *ROOT.glob("csrc/kernels/memory/*.cpp")]),
]


@pytest.mark.slow
@each_watch
def test_no_race_no_stray_access_and_every_byte(tmp_path: Path, compiler: str, sanitizer: str) -> None:
    told = run_watched(tmp_path / "aio_check", compiler, sanitizer, SOURCES, tmp_path / "file")
    assert told.count("threads: done") == 2
