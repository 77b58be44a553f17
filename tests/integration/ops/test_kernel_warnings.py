"""The kernels compile without warnings."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.support.watched_programs import ROOT, needs_sources

# Those of oneCCL need its headers.
SOURCES = [path for path in sorted(ROOT.glob("csrc/kernels/*/*.cpp")) if path.parent.name != "ccl"]
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Icsrc", "-fsyntax-only")


@pytest.mark.slow
@needs_sources
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_kernels_compile_without_warnings(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    subprocess.run([compiler, *FLAGS, *map(str, SOURCES)], check=True, cwd=ROOT)
