"""The MPIs that are installed."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import pytest

MPIS = ["openmpi", "mpich", "impi"]


def available(launcher: str) -> dict[str, str]:
    """Variables to run below that launcher; the test is skipped where it is not installed."""
    if launcher in ("openmpi", "mpich") and shutil.which(f"mpirun.{launcher}") is None:
        pytest.skip(f"needs mpirun.{launcher} of Debian's package {launcher}{'-bin' * (launcher == 'openmpi')}")
    if launcher != "impi":
        return {}
    # This interpreter's (the package impi-rt), or I_MPI_ROOT's.
    for directory in (Path(sysconfig.get_path("scripts")), Path(os.environ.get("I_MPI_ROOT", "/nowhere")) / "bin"):
        if (directory / "mpirun").exists() and (directory / "hydra_bstrap_proxy").exists():
            return {"PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"}
    pytest.skip("needs Intel MPI: pip install impi-rt")
