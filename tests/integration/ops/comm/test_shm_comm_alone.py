"""The collectives of shm_comm without torch, without warnings, and watched by sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.watched_programs import ROOT, each_sanitizer, needs_sources, run_watched

SOURCES = [
    ROOT / "tests/support/native/shm_comm_check.cpp",
    *(path for path in sorted(ROOT.glob("csrc/kernels/comm/*.cpp")) if path.name != "group.cpp"),
    ROOT / "csrc/kernels/cpu/isa.cpp",
]


@pytest.mark.slow
@pytest.mark.first
@needs_sources
@each_sanitizer
def test_no_race_no_stray_access_and_every_element(tmp_path: Path, sanitizer: str) -> None:
    program = tmp_path / "shm_comm_check"
    result = run_watched(program, sanitizer, SOURCES, 400, flags=["-ffp-contract=off"])
    assert result.count("ranks: done") == 4
