from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def own_threads() -> Iterator[None]:
    """The number of torch's threads is restored at the end."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
