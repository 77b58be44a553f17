"""The synchronisation of shm_comm in the model checker spin: every order of steps of three ranks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[3] / "support" / "models" / "shm_comm.pml"


def checked(directory: Path, *defines: str) -> str:
    """The checker's output for the model with these defines."""
    for program in ("spin", "gcc"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    flags = [f"-D{define}" for define in defines]
    for command in (
        ["spin", *flags, "-a", str(MODEL)],
        ["gcc", "-O1", "-w", "-DSAFETY", "-DVECTORSZ=2048", "-DMEMLIM=2048", "-o", "pan", "pan.c"],
        ["./pan", "-m100000", "-c1"],
    ):
        result = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=1200, check=False)
        assert result.returncode == 0 or command[0] == "./pan", result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("defines", [("PHASES=4",), ("PHASES=3", "DEATHS")], ids=" ".join)
def test_nothing_is_read_too_early_or_overwritten_too_late_and_nobody_waits_for_ever(
    tmp_path: Path, defines: tuple[str, ...]
) -> None:
    result = checked(tmp_path, *defines)
    assert "errors: 0" in result, result
    assert "Search not completed" not in result, result


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (("NO_MEETING",), "assertion violated"),
        (("ONE_SLOT",), "assertion violated"),
        (("LOOKS_FIRST",), "invalid end state"),
        (("DEATHS", "NO_NEWS"), "invalid end state"),
    ],
)
def test_seeded_faults_are_found(tmp_path: Path, wrong: tuple[str, ...], found: str) -> None:
    result = checked(tmp_path, "PHASES=3", *wrong)
    assert found in result, result
