"""Fixtures of the tests of op_builder that compile."""

from __future__ import annotations

from pathlib import Path

import pytest

from op_builder.cache.store import Cache
from tests.support.small_ops import SmallBuilder, make_small


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sources of ``small`` and a cache in which it is built."""
    directory = tmp_path_factory.mktemp("built")
    make_small(directory / "op", Cache(directory / "cache")).load()
    return directory


@pytest.fixture
def small(tmp_path: Path, cache: Cache) -> SmallBuilder:
    """A builder of an op that adds 1 to a tensor, with a header that says how much."""
    return make_small(tmp_path / "op", cache)


@pytest.fixture
def new_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs as in a process that has loaded no op; the test's other fixtures are set up first."""
    for name in request.fixturenames:
        if name not in ("new_process", "request", "monkeypatch"):
            request.getfixturevalue(name)
    monkeypatch.setattr("op_builder.load.loader.opened_entries", lambda _op: [])
