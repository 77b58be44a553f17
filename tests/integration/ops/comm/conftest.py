from __future__ import annotations

from collections.abc import Iterator

import pytest

from op_builder.cpu import ShareMemCommBuilder
from tests.support.shm_ranks import shared_files


@pytest.fixture(scope="package", autouse=True)
def _built() -> Iterator[None]:
    """The op is compiled once, by nobody who is waited for; afterwards no shared file of a rank is left."""
    ShareMemCommBuilder().load()
    before = shared_files()
    yield
    assert shared_files() <= before
