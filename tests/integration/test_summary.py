"""The suite's own summary of what did not run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_on_a_device(number):
    pytest.skip("no device")

@pytest.mark.skipif(True, reason="no compiler")
def test_compiled():
    pass

def test_plain():
    pass
"""


def test_skipped_tests_are_counted_by_reason(tmp_path: Path) -> None:
    (tmp_path / "test_them.py").write_text(TESTS)
    options = ("-p", "tests.conftest", "-m", "not slow", "-n", "2", "--rootdir", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "/dev/null", *options, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    summary = done.stdout.partition(" not run ==")[2].splitlines()[1:4]
    assert summary == ["    3 no device", "    1 no compiler", "      the slow tests: make test SLOW=1"], done.stdout
    assert "1 passed, 4 skipped" in done.stdout
