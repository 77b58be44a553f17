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
    """As in a process that has opened nothing yet, after the test's other fixtures have loaded what they load."""
    for name in request.fixturenames:
        if name not in ("new_process", "request", "monkeypatch"):
            request.getfixturevalue(name)
    monkeypatch.setattr("op_builder.load.loader._entries", {})
