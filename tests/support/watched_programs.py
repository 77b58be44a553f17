"""Builds C++ without torch and Python without warnings, and runs it under the sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.compilers import require_program

ROOT = Path(__file__).parents[2]

each_sanitizer = pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])

# The tests of the ops also run against an installed wheel, without sources to compile.
needs_sources = pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="compiles csrc/, which only a checkout has")


def run_watched(
    program: Path, sanitizer: str, sources: Iterable[Path], *arguments: object, flags: Iterable[str] = ()
) -> str:
    """Build ``program``, run it with ``arguments`` successfully, and return what it printed."""
    common = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-fsanitize={sanitizer}", "-Icsrc", "-pthread"]
    command = [require_program("g++"), *common, *flags, *map(str, sources), "-o", str(program)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "cannot find" in built.stderr:
        pytest.skip("g++ has no library of the sanitizer")
    assert built.returncode == 0, built.stderr
    # GCC's thread sanitizer of some years ends at once where addresses are as random as in newer kernels.
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    command = [*fixed, str(program), *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout
