"""The MPIs that are installed."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import pytest

MPIS = ["openmpi", "mpich", "impi"]


def intel_directory() -> Path | None:
    """The directory of Intel MPI's mpirun: this interpreter's (the package impi-rt), or I_MPI_ROOT's."""
    for directory in (Path(sysconfig.get_path("scripts")), Path(os.environ.get("I_MPI_ROOT", "/nowhere")) / "bin"):
        if (directory / "mpirun").exists() and (directory / "hydra_bstrap_proxy").exists():
            return directory
    return None


def available(launcher: str) -> dict[str, str]:
    """Variables to run below that launcher; the test is skipped where it is not installed."""
    if launcher == "openmpi" and shutil.which("mpirun.openmpi") is None:
        pytest.skip("needs Open MPI as Debian has it: apt-get install openmpi-bin")
    if launcher == "mpich" and shutil.which("mpirun.mpich") is None:
        pytest.skip("needs MPICH as Debian has it: apt-get install mpich")
    variables: dict[str, str] = {}
    if launcher == "impi":
        directory = intel_directory()
        if directory is None:
            pytest.skip("needs Intel MPI: pip install impi-rt")
        variables["PATH"] = f"{directory}{os.pathsep}{os.environ['PATH']}"
    return variables
