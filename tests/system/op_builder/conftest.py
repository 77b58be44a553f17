"""Fixtures of the system tests of op_builder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.environments import ROOT, run, shared


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ziglang and pyelftools; they are not in the environment, where they would serve every test."""

    def install(directory: Path) -> None:
        options = ("--quiet", "--no-deps", "--target", directory, "-c", ROOT / "build_tools" / "constraints.txt")
        run(sys.executable, "-m", "pip", "install", *options, "ziglang", "pyelftools", cwd=directory)

    return shared(tmp_path_factory, "ziglang", install)
