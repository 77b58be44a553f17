from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from op_builder.cpu import AsyncIOBuilder
from op_builder.ops.io.async_io import AsyncIOModule
from tests import support

SUPPORT = Path(support.__file__).parent


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
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting needs root and /dev/fuse")
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as error:
        pytest.skip(f"no FUSE for Python: {error}")
    backing, mount, log = tmp_path / "backing", tmp_path / "mount", tmp_path / "log"
    backing.mkdir()
    mount.mkdir()
    with log.open("w") as file:
        command = [sys.executable, SUPPORT / "faulty_filesystem.py", backing, mount]
        server = subprocess.Popen(command, stdout=file, stderr=file)
    while not os.path.ismount(mount):
        if server.poll() is not None:
            if "fuse: " in log.read_text():
                pytest.skip(f"FUSE does not mount here: {log.read_text().strip().splitlines()[0]}")
            pytest.fail(log.read_text())
        time.sleep(0.02)
    yield mount
    subprocess.run(["umount", "--lazy", mount], check=False)
    try:
        server.wait(timeout=20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
