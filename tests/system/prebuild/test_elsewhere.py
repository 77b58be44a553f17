"""One wheel for every CPU of the architecture, every torch and every CPython: used where it was not built."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.environments import ROOT, Environment, index_of, run

pytestmark = pytest.mark.slow


# Inputs are made without torch's own kernels, which round differently on different CPUs.
STEP = """
import json, torch
assert torch.ones(3).add_(1).tolist() == [2.0, 2.0, 2.0]
print("torch runs", flush=True)
torch.set_num_threads(1)
from op_builder import ops
from op_builder.cpu import CPUAdamBuilder

def tensor(number, size):
    values = [((index * 7 + number * 13) % 29 - 14) / 16 for index in range(size)]
    return torch.tensor(values)

def trained(optimizer, dtype=torch.float32, **options):
    parameters = [torch.nn.Parameter(tensor(0, size).to(dtype)) for size in (1003, 1, 64)]
    stepping = optimizer(parameters, lr=0.03125, weight_decay=0.0625, **options)
    for number in range(1, 4):
        for parameter in parameters:
            parameter.grad = tensor(number, parameter.numel()).to(dtype)
        stepping.step()
    return [value for parameter in parameters for value in parameter.detach().float().tolist()]

result = {
    "isa": CPUAdamBuilder().load().isa,
    "CPUAdam": trained(ops.CPUAdam),
    "CPUAdam, bfloat16": trained(ops.CPUAdam, torch.bfloat16),
    "CPUAdam, amsgrad": trained(ops.CPUAdam, amsgrad=True),
    "CPUAdagrad": trained(ops.CPUAdagrad),
    "CPULamb": trained(ops.CPULamb),
    "CPULion": trained(ops.CPULion),
    "CPUSGD": trained(ops.CPUSGD, momentum=0.5),
    "FusedAdam": trained(ops.FusedAdam),
}
print(json.dumps(result))
"""

Results = dict[str, list[float]]


def stepped(environment: Environment, tmp_path: Path, *before: str, isa: str | None = None) -> tuple[str, Results]:
    """The instruction set in use and what each optimizer made of its parameters, from prebuilt ops alone."""
    (tmp_path / "step.py").write_text(STEP)
    output = run(
        *(*before, environment.python, tmp_path / "step.py"),
        cwd=tmp_path,
        ACCEL_CPU_ISA=isa,
        ACCEL_JIT="0",
        ACCEL_CACHE_DIR=str(tmp_path / "cache"),
    )
    (line,) = [line for line in output.splitlines() if line.startswith("{")]
    result = json.loads(line)
    return result.pop("isa"), result


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the models are of x86-64 CPUs")
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="qemu-x86_64 is not installed (Debian: qemu-user)")
def test_an_installed_op_runs_on_an_emulated_old_cpu_as_it_does_here(installed: Environment, tmp_path: Path) -> None:
    emulated = ("qemu-x86_64", "-cpu", "Nehalem")
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
        needed = ("ninja", "packaging", "psutil", "pybind11", "rich", "setuptools", "xxhash")
        install = ("install", "--quiet", "--no-cache-dir", "-c", tmp_path / "constraints")
        environment.pip(*install, f"torch=={OTHER_TORCH}", "numpy", *needed, TMPDIR=str(tmp_path))
        yield environment
    finally:
        shutil.rmtree(environment.directory, ignore_errors=True)


USE = """
import sys, torch, op_builder
from op_builder.report.collect import find_op
print(torch.__version__, sys.version_info[:2], op_builder.__file__, flush=True)
ops = {name: find_op(name).load() for name in sys.argv[2:]}
ops["async_io"].aio_handle().sync_pwrite(torch.arange(99.0), sys.argv[1])
assert torch.from_file(sys.argv[1], size=99).sum() == 4851
ops["shm_comm"].initialize(1, 0)
assert ops["shm_comm"].inference_all_reduce(torch.ones(3)).tolist() == [1.0] * 3
"""
# Nor does it need a newer torch to be compiled.
COMPILE_ANEW = """
from op_builder.cpu import CPULionBuilder, FusedLionBuilder
print(*(type(made().jit_load()).__name__ for made in (CPULionBuilder, FusedLionBuilder)))
"""


@pytest.mark.first
def test_the_wheels_ops_work_on_the_oldest_torch_and_another_python(
    ops_wheel: Path, installed: Environment, oldest_torch: Environment, tmp_path: Path
) -> None:
    """`make test TORCH=2.10.0` runs the tests of the ops there."""
    oldest_torch.pip("install", "--no-deps", ops_wheel)
    ops = [op["op"] for op in index_of(ops_wheel)["ops"] if op["op"] != "ccl_comm"]
    only_prebuilt = {"ACCEL_JIT": "0", "ACCEL_CACHE_DIR": str(tmp_path / "cache")}
    about = oldest_torch.run("-c", USE, tmp_path / "file", *ops, **only_prebuilt).splitlines()[0]
    assert about.startswith(OTHER_TORCH)
    assert str(oldest_torch.site) in about
    if str(sys.version_info[:2]) in about:
        warnings.warn(f"No other CPython than {sys.version} is here to try the wheel on.", stacklevel=1)
    assert stepped(oldest_torch, tmp_path) == stepped(installed, tmp_path)
    assert not (tmp_path / "cache" / "v1" / "ops").exists()
    compiled = oldest_torch.run("-c", COMPILE_ANEW, ACCEL_CACHE_DIR=str(tmp_path / "cache"))
    assert "HostOp FusedOp" in compiled
    assert {path.name for path in (tmp_path / "cache" / "v1" / "ops").iterdir()} == {"cpu_lion", "fused_lion"}
