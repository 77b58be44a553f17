from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from op_builder import env
from op_builder.cpu import AsyncIOBuilder, CPUAdamBuilder
from op_builder.ops.io.async_io import AsyncIOModule
from op_builder.ops.optim.host_op import HostOp
from op_builder.system.cpu_isa import supported_isas


@pytest.fixture(scope="session")
def cpu_adam() -> HostOp:
    """The op as users get it, with the best instruction set."""
    return CPUAdamBuilder().load()


@pytest.fixture(scope="session", params=supported_isas())
def adam_of_isa(request: pytest.FixtureRequest, cpu_adam: HostOp) -> HostOp:
    """The op, once with every instruction set that this machine can run."""
    with env.scope(ACCEL_CPU_ISA=request.param):
        return HostOp(cpu_adam.ops)


@pytest.fixture(scope="session")
def async_io() -> AsyncIOModule:
    """The op as users get it."""
    return AsyncIOBuilder().load()


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A directory whose files can be read and written past the page cache."""
    probe = tmp_path / "probe"
    probe.touch()
    try:
        os.close(os.open(probe, os.O_RDONLY | os.O_DIRECT))
    except (OSError, AttributeError):
        pytest.skip("the temporary directory has no O_DIRECT")
    return tmp_path


@pytest.fixture(params=["disk", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on the disk, and one in a file system that is all page cache."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no /dev/shm")
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Path]:
    """A mount whose files fail as their names say: see faulty_filesystem.py."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting needs root and /dev/fuse")
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as error:
        pytest.skip(f"no FUSE for Python: {error}")
    backing, mount, said = tmp_path / "backing", tmp_path / "mount", tmp_path / "said"
    backing.mkdir()
    mount.mkdir()
    program = Path(__file__).with_name("faulty_filesystem.py")
    with said.open("w") as file:
        server = subprocess.Popen([sys.executable, program, backing, mount], stdout=file, stderr=file)
    while not os.path.ismount(mount):
        if server.poll() is not None:
            if "fuse: " in said.read_text():
                pytest.skip(f"FUSE does not mount here: {said.read_text().strip().splitlines()[0]}")
            pytest.fail(said.read_text())
        time.sleep(0.02)
    yield mount
    subprocess.run(["umount", "--lazy", mount], check=False)
    try:
        server.wait(timeout=20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
