"""The CPU Adam kernels without torch: with every compiler at hand, and for what this CPU is not, emulated."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from op_builder.system import cpu_isa

ROOT = Path(__file__).parents[4]
FLAGS = (
    *("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
    *("-Wall", "-Wextra", "-Werror", "-static", "-Icsrc"),
)
CHECK = ROOT / "tests/support/native/kernel_check.cpp"
KERNELS = sorted((ROOT / "csrc/kernels/cpu").glob("*.cpp"))
EMULATED_AVX512 = ROOT / "tests/support/native/avx512_emulated"


def build_and_run(
    tmp_path: Path, compiler: str, *emulator: str, flags: Sequence[str] = FLAGS, sources: Sequence[Path] = KERNELS
) -> str:
    for tool in (compiler, *emulator):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    program = tmp_path / "kernel_check"
    subprocess.run([compiler, *flags, str(CHECK), *map(str, sources), "-o", str(program)], check=True, cwd=ROOT)
    run = subprocess.run([*emulator, str(program)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_kernels_are_right_and_free_of_warnings(tmp_path, compiler):
    output = build_and_run(tmp_path, compiler)
    assert tuple(line.partition(":")[0] for line in output.splitlines()) == cpu_isa.supported_isas()


@pytest.mark.slow
@pytest.mark.skipif("avx2" not in cpu_isa.supported_isas(), reason="the emulation needs AVX2")
def test_avx512_kernels_are_right_whatever_this_cpu_has(tmp_path):
    sources = [EMULATED_AVX512 / "isa.cpp", *(path for path in KERNELS if path.name != "isa.cpp")]
    emulating = (f"-I{EMULATED_AVX512}", "-mavx2", "-mfma", "-mf16c", "-Wno-psabi")
    output = build_and_run(tmp_path, "g++", flags=(*emulating, *FLAGS), sources=sources)
    assert [line.partition(":")[0] for line in output.splitlines()] == ["baseline", "avx2", "avx512"]


@pytest.mark.slow
def test_kernels_are_right_on_aarch64(tmp_path):
    output = build_and_run(tmp_path, "aarch64-linux-gnu-g++", "qemu-aarch64")
    assert [line.partition(":")[0] for line in output.splitlines()] == ["baseline", "neon"]
