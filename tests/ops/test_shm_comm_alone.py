"""The collectives of shm_comm without torch: by both compilers, without warnings, and watched by their sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    *(path for path in sorted(ROOT.glob("csrc/kernels/comm/*.cpp")) if path.name != "group.cpp"),
    ROOT / "csrc/kernels/cpu/isa.cpp",
]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_no_race_no_stray_access_and_every_element(tmp_path: Path, compiler: str, sanitizer: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    program = tmp_path / "shm_comm_check"
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-fsanitize={sanitizer}", "-Icsrc", "-pthread"]
    files = [str(ROOT / "tests/ops/native/shm_comm_check.cpp"), *map(str, SOURCES)]
    built = subprocess.run(
        [compiler, *flags, "-ffp-contract=off", *files, "-o", str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "cannot find" in built.stderr:
        pytest.skip(f"{compiler} has no library of the sanitizer")
    assert built.returncode == 0, built.stderr
    # GCC's thread sanitizer of some years ends at once where addresses are as random as in newer kernels.
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    run = subprocess.run([*fixed, str(program), "400"], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("ranks: done") == 3
