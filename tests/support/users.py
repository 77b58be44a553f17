"""Programs that run as other users of this machine."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from op_builder import env
from tests.support.environments import ROOT

STRANGER = 54321
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_TIMEOUT_S = 300.0


@contextmanager
def place_for_all() -> Iterator[Path]:
    """A directory that every user can reach; pytest's own are closed."""
    place = Path(tempfile.mkdtemp(dir="/tmp", prefix="users-"))
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place)


@functools.cache
def interpreter_of_all() -> str:
    """A Python that every user may run, with this project and its torch."""
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    for interpreter in filter(None, (sys.executable, shutil.which(_PYTHON, path=os.defpath))):
        with contextlib.suppress(PermissionError):
            if run_as(STRANGER, "import op_builder, torch, tests.support", interpreter=interpreter).returncode == 0:
                return interpreter
    pytest.skip(f"other users can run no {_PYTHON} with this project")


def run_as(
    user: int, code: str, *, groups: Sequence[int] = (), interpreter: str = "", **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """Run Python code as ``user``, who is also in ``groups``; skips the test where that is impossible."""
    modules = os.pathsep.join(map(str, (ROOT, Path(torch.__file__).parents[1])))
    defaults = {"HOME": "/nonexistent", "XDG_CACHE_HOME": None, "PYTHONPATH": modules, "ACCEL_ACCELERATOR": "cpu"}
    return subprocess.run(
        [interpreter or interpreter_of_all(), "-c", code],
        cwd="/",
        env=env.child_environment(**{**defaults, **variables}),
        user=user,
        group=user,
        extra_groups=list(groups),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
