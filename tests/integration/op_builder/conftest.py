"""Fixtures of the tests of op_builder that compile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from op_builder import env
from op_builder.cache.store import Cache
from tests.support.small_ops import cache, make_small, small

__all__ = ["cache", "small"]


@pytest.fixture
def own_cache(tmp_path: Path) -> Iterator[None]:
    """Builders without a cache of their own use that of the test."""
    with env.scope(ACCEL_CACHE_DIR=str(tmp_path / "cache")):
        yield


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sources of ``small`` and a cache in which it is built."""
    directory = tmp_path_factory.mktemp("built")
    make_small(directory / "op", Cache(directory / "cache")).load()
    return directory


@pytest.fixture
def new_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs as in a process that has loaded no op; the test's other fixtures are set up first."""
    for name in request.fixturenames:
        if name not in ("new_process", "request", "monkeypatch"):
            request.getfixturevalue(name)
    monkeypatch.setattr("op_builder.load.lookup.opened_entries", lambda _op: [])
