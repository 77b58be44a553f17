"""The CPU Adam kernels without torch: with every compiler at hand, and for AArch64 in an emulator."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from op_builder import cpu_isa

ROOT = Path(__file__).parents[2]
FLAGS = (
    *("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
    *("-Wall", "-Wextra", "-Werror", "-static", "-Icsrc"),
)


def build_and_run(tmp_path: Path, compiler: str, *emulator: str) -> str:
    for tool in (compiler, *emulator):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    program = tmp_path / "kernel_check"
    sources = [ROOT / "tests/ops/native/kernel_check.cpp", *sorted((ROOT / "csrc/kernels/cpu").glob("*.cpp"))]
    subprocess.run([compiler, *FLAGS, *map(str, sources), "-o", str(program)], check=True, cwd=ROOT)
    run = subprocess.run([*emulator, str(program)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_kernels_are_right_and_free_of_warnings(tmp_path, compiler):
    output = build_and_run(tmp_path, compiler)
    assert tuple(line.partition(":")[0] for line in output.splitlines()) == cpu_isa.supported_isas()


@pytest.mark.slow
def test_kernels_are_right_on_aarch64(tmp_path):
    output = build_and_run(tmp_path, "aarch64-linux-gnu-g++", "qemu-aarch64")
    assert [line.partition(":")[0] for line in output.splitlines()] == ["baseline", "neon"]
