"""Fixtures of the system tests of op_builder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from op_builder.cache.store import Cache
from tests.support.environments import ROOT, run, shared


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def new_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs as in a process that has loaded no op; the test's other fixtures are set up first."""
    for name in request.fixturenames:
        if name not in ("new_process", "request", "monkeypatch"):
            request.getfixturevalue(name)
    monkeypatch.setattr("op_builder.load.loader.opened_entries", lambda _op: [])


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ziglang and pyelftools; they are not in the environment, where they would serve every test."""

    def install(directory: Path) -> None:
        options = ("--quiet", "--no-deps", "--target", directory, "-c", ROOT / "build_tools" / "constraints.txt")
        run(sys.executable, "-m", "pip", "install", *options, "ziglang", "pyelftools", cwd=directory)

    return shared(tmp_path_factory, "ziglang", install)
