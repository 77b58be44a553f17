"""Fixtures of the system tests of op_builder."""

from __future__ import annotations

from pathlib import Path

import pytest

from op_builder.cache.store import Cache


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
