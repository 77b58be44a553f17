from __future__ import annotations

import contextlib

import pytest

from op_builder.cpu import ShareMemCommBuilder
from op_builder.errors import IncompatibleOpError


@pytest.fixture(scope="package", autouse=True)
def _built() -> None:
    """Compile the op before a test with a time limit loads it."""
    with contextlib.suppress(IncompatibleOpError):  # oneCCL's tests do not need it
        ShareMemCommBuilder().load()
