"""New processes of this project: running Python, loading an op, read-only caches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks._measure import ROOT
from benchmarks._peers import failure

TIMEOUT_S = 900


def environment(python: Path, **variables: str) -> dict[str, str]:
    """The environment of a new process, with these variables.

    It is that of an installed program: Python may write bytecode files, and the interpreter's tools are on PATH.
    """
    given = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    given["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), given.get("PYTHONPATH")]))
    given["PATH"] = os.pathsep.join([str(python.parent), given.get("PATH", os.defpath)])
    return {**given, "ACCEL_ACCELERATOR": "cpu", "DS_ACCELERATOR": "cpu", **variables}


def run_python(arguments: Sequence[str], python: Path = Path(sys.executable), **variables: str) -> str:
    """Run an interpreter with these variables in its :func:`environment`; return its standard output.

    Raises:
        RuntimeError: it failed.
        subprocess.TimeoutExpired: it took longer than TIMEOUT_S.
    """
    command = [str(python), *arguments]
    done = subprocess.run(
        command, env=environment(python, **variables), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise failure(command, done.returncode, done.stderr)
    return done.stdout


def run_program(
    script: Path, *arguments: str, python: Path = Path(sys.executable), **variables: str
) -> dict[str, float]:
    """The times in seconds that a program prints as its last line, in JSON; raises as :func:`run_python`."""
    output = run_python([str(script), *arguments], python, **variables)
    times: dict[str, float] = json.loads(output.splitlines()[-1])
    return times


def cold_build_s(builder: str) -> float:
    """Seconds of a host op's ``load()`` with an empty cache, in a process that has imported torch.

    Args:
        builder: the name of its class in ``op_builder.cpu``.

    Raises:
        RuntimeError: it failed.
    """
    code = (
        f"import time, torch; from op_builder.cpu import {builder}; builder = {builder}();"
        "started = time.perf_counter(); builder.load(); print(time.perf_counter() - started)"
    )
    with tempfile.TemporaryDirectory() as cache:
        return float(run_python(["-c", code], ACCEL_CACHE_DIR=cache).split()[-1])
