from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.shm_ranks import Ranks, shared_files


@pytest.fixture(scope="package")
def ranks() -> Iterator[Ranks]:
    """Runs cases of tests/support/shm_cases.py; afterwards no file of them is left."""
    before = shared_files()
    processes = Ranks()
    yield processes
    processes.close()
    assert shared_files() <= before
