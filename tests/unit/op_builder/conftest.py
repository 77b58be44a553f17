"""Fixtures of the unit tests of op_builder."""

from __future__ import annotations

from pathlib import Path

import pytest

from op_builder.cache.store import Cache
from tests.support.small_ops import SmallBuilder, make_small


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def small(tmp_path: Path, cache: Cache) -> SmallBuilder:
    """A builder of an op that adds 1 to a tensor, with a header that says how much."""
    return make_small(tmp_path / "op", cache)
