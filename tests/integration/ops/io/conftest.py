from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from op_builder.cpu import AsyncIOBuilder
from op_builder.ops.io.async_io import AsyncIOModule
from tests.support import fuse


@pytest.fixture(scope="session", autouse=True)
def async_io() -> AsyncIOModule:
    """The op as users get it; it is built before any test makes calls of the system fail."""
    return AsyncIOBuilder().load()


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A directory with O_DIRECT."""
    probe = tmp_path / "probe"
    probe.touch()
    try:
        os.close(os.open(probe, os.O_RDONLY | os.O_DIRECT))
    except (OSError, AttributeError):
        pytest.skip("the temporary directory has no O_DIRECT")
    return tmp_path


@pytest.fixture(params=["disk", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on the disk, and one on a file system that consists of page cache."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Path]:
    """A mount whose files fail as their names say: see faulty_filesystem.py."""
    (tmp_path / "backing").mkdir()
    mount = tmp_path / "mount"
    try:
        with fuse.served("tests.support.faulty_filesystem", tmp_path / "backing", mount, mount=mount):
            yield mount
    except fuse.CannotMount as reason:
        pytest.skip(str(reason))
