"""One wheel for every CPU of the architecture, every torch and every CPython: used where it was not built."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.environments import ROOT, Environment, run

pytestmark = pytest.mark.slow


Results = dict[str, list[float]]


def stepped(environment: Environment, tmp_path: Path, *before: str, isa: str | None = None) -> tuple[str, Results]:
    """The instruction set in use and what each optimizer made of its parameters, from prebuilt ops alone."""
    output = run(
        *(*before, environment.python, ROOT / "tests" / "support" / "optimizer_steps.py"),
        cwd=tmp_path,
        ACCEL_CPU_ISA=isa,
        ACCEL_JIT="0",
        ACCEL_CACHE_DIR=str(tmp_path / "cache"),
    )
    (line,) = [line for line in output.splitlines() if line.startswith("{")]
    result = json.loads(line)
    return result.pop("isa"), result


NEEDS_AVX2 = """
int main(int count, char**) {
  typedef int Vector __attribute__((vector_size(32)));
  volatile Vector v = {count};
  v = v * v + v;
  return v[0] == 0;
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the models are of x86-64 CPUs")
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="qemu-x86_64 is not installed (Debian: qemu-user)")
def test_an_installed_op_runs_on_an_emulated_old_cpu_as_it_does_here(installed: Environment, tmp_path: Path) -> None:
    emulated = ("qemu-x86_64", "-cpu", "Nehalem")
    # The emulator refuses what the CPU lacks.
    (tmp_path / "avx2.cpp").write_text(NEEDS_AVX2)
    subprocess.run(["g++", "-O1", "-mavx2", "avx2.cpp", "-o", "avx2"], cwd=tmp_path, check=True)
    assert subprocess.run([*emulated, "./avx2"], cwd=tmp_path, capture_output=True, check=False).returncode != 0
    try:
        used, values = stepped(installed, tmp_path, *emulated)
    except AssertionError as error:
        if "torch runs" not in str(error):
            pytest.skip("torch itself does not run on a Nehalem")
        raise
    assert used == "baseline", "what the emulated CPU has"
    _, here = stepped(installed, tmp_path, isa="baseline")
    assert values == here, "to the last bit"


# Another torch and another CPython --------------------------------------------------------

OTHER_TORCH = "2.10.0"
FREE_BYTES = 12 << 30


def other_python() -> str:
    """Another CPython that can make virtual environments; this one if none is found."""
    for minor in (12, 13, 10, 11):
        if sys.version_info[:2] == (3, minor):
            continue
        python = shutil.which(f"python3.{minor}")
        command = [str(python), "-c", "import ensurepip, venv"]
        if python is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return python
    return sys.executable


@pytest.fixture
def oldest_torch(tmp_path: Path) -> Iterator[Environment]:
    """An environment of another CPython with the oldest supported torch, removed at the end."""
    free = shutil.disk_usage(tmp_path).free
    if free < FREE_BYTES:
        pytest.skip(
            f"torch {OTHER_TORCH} with CUDA takes 7 GB, and as much while it is installed; {free >> 30} are free"
        )
    pins = (ROOT / "build_tools" / "constraints.txt").read_text().splitlines()
    (tmp_path / "constraints").write_text("\n".join(pin for pin in pins if not pin.startswith(("torch==", "numpy=="))))
    environment = Environment(tmp_path / "venv")
    try:
        run(other_python(), "-m", "venv", environment.directory, cwd=tmp_path)
        tools = ("pytest", "pytest-xdist", "hypothesis", "expecttest")
        needed = ("ninja", "packaging", "psutil", "pybind11", "rich", "setuptools", "xxhash")
        install = ("install", "--quiet", "--no-cache-dir", "-c", tmp_path / "constraints")
        environment.pip(*install, f"torch=={OTHER_TORCH}", "numpy", *tools, *needed, TMPDIR=str(tmp_path))
        yield environment
    finally:
        shutil.rmtree(environment.directory, ignore_errors=True)


SETTINGS = """
[pytest]
addopts = -ra --strict-markers --import-mode=importlib -p no:cacheprovider
pythonpath = .
markers =
  slow: takes long
  first: runs before other slow ones
  cuda: needs a CUDA device
"""


# A file or two for each kind of op. `make test TORCH=2.10.0` runs the others.
TESTS_OF_OPS = (
    *("optim/test_host_op.py", "optim/test_fused_update.py"),
    *("comm/test_shm_comm_arguments.py", "io/test_async_io.py"),
)


@pytest.mark.first
def test_the_wheel_passes_tests_of_all_ops_on_the_oldest_torch_and_another_python(
    ops_wheel: Path, oldest_torch: Environment, tree: Path, tmp_path: Path
) -> None:
    oldest_torch.pip("install", "--no-deps", ops_wheel)
    # The tests of the ops alone, without the packages next to them and without the settings of the whole suite.
    place = tmp_path / "tests-alone"
    shutil.copytree(tree / "tests", place / "tests")
    (place / "tests" / "conftest.py").unlink()
    (place / "pytest.ini").write_text(SETTINGS)
    files = [place / "tests/integration/ops" / name for name in TESTS_OF_OPS]
    about = (
        "import json, sys, torch, op_builder\n"
        "print(json.dumps([torch.__version__, sys.version_info[:2], op_builder.__file__]))"
    )
    used = json.loads(run(oldest_torch.python, "-c", about, cwd=place).splitlines()[0])
    assert used[0].startswith(OTHER_TORCH)
    if tuple(used[1]) == sys.version_info[:2]:
        warnings.warn(f"No other CPython than {sys.version} is here to try the wheel on.", stacklevel=1)
    assert Path(used[2]).is_relative_to(oldest_torch.site)
    output = run(
        *(oldest_torch.python, "-m", "pytest", "-q", "-n", "2", "-m", "not slow and not cuda", *files),
        cwd=place,
        ACCEL_JIT="0",  # nothing else can be loaded than what is in the wheel
        ACCEL_CACHE_DIR=str(tmp_path / "cache"),
        PYTHONDONTWRITEBYTECODE="1",
    )
    (passed,) = re.findall(r"(\d+) passed", output)
    assert int(passed) > 100, output[-2000:]
    assert not (tmp_path / "cache" / "v1" / "ops").exists()
    # Nor does it need a newer torch to be compiled.
    compile_anew = (
        "from op_builder.cpu import CPULionBuilder, FusedLionBuilder\n"
        "print(*(type(made().jit_load()).__name__ for made in (CPULionBuilder, FusedLionBuilder)))"
    )
    assert "HostOp FusedOp" in oldest_torch.run("-c", compile_anew, ACCEL_CACHE_DIR=str(tmp_path / "cache"))
    assert {path.name for path in (tmp_path / "cache" / "v1" / "ops").iterdir()} == {"cpu_lion", "fused_lion"}
