"""The kernels without torch: they compile without warnings, and their programs run under the sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.compilers import require_program
from tests.support.environments import ROOT

# The tests of the ops also run against an installed wheel, without sources to compile.
has_sources = (ROOT / "csrc").is_dir()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_sources, reason="compiles csrc/, which only a checkout has")]

KERNELS = ROOT / "csrc" / "kernels"
PROGRAMS = ROOT / "tests" / "support" / "native"
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Icsrc", "-fsyntax-only")


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_kernels_compile_without_warnings(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    # Those of oneCCL need its headers.
    sources = [str(path) for path in sorted(KERNELS.glob("*/*.cpp")) if path.parent.name != "ccl"]
    subprocess.run([compiler, *FLAGS, *sources], check=True, cwd=ROOT)


def run_watched(
    program: Path, sanitizer: str, sources: Iterable[Path], *arguments: object, flags: Iterable[str] = ()
) -> str:
    """Build ``program``, run it with ``arguments`` successfully, and return what it printed."""
    common = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-fsanitize={sanitizer}", "-Icsrc", "-pthread"]
    command = [require_program("g++"), *common, *flags, *map(str, sources), "-o", str(program)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "cannot find" in built.stderr:
        pytest.skip("g++ has no library of the sanitizer")
    assert built.returncode == 0, built.stderr
    # GCC's thread sanitizer of some years ends at once where addresses are as random as in newer kernels.
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    command = [*fixed, str(program), *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


each_sanitizer = pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])


@pytest.mark.first
@each_sanitizer
def test_collectives_have_no_race_no_stray_access_and_every_element(tmp_path: Path, sanitizer: str) -> None:
    kernels = [path for path in sorted(KERNELS.glob("comm/*.cpp")) if path.name != "group.cpp"]
    sources = [PROGRAMS / "shm_comm_check.cpp", *kernels, KERNELS / "cpu" / "isa.cpp"]
    result = run_watched(tmp_path / "shm_comm_check", sanitizer, sources, 400, flags=["-ffp-contract=off"])
    assert result.count("ranks: done") == 4


@each_sanitizer
def test_transfers_have_no_race_no_stray_access_and_every_byte(tmp_path: Path, sanitizer: str) -> None:
    sources = [PROGRAMS / "aio_check.cpp", *sorted([*KERNELS.glob("aio/*.cpp"), *KERNELS.glob("memory/*.cpp")])]
    output = run_watched(tmp_path / "aio_check", sanitizer, sources, tmp_path / "file")
    assert output.count("threads: done") == 2
