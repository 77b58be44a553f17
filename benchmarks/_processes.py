"""Processes that load an op and tell how long it took."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from op_builder.cache.store import MANIFEST

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "benchmarks" / "programs"
TIMEOUT_S = 900


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way to load CPU Adam: an interpreter, a script that times it, and what names its cache directory."""

    name: str
    python: Path
    script: Path
    cache_variable: str

    def load(self, cache: Path, *arguments: str, **environment: str) -> dict[str, float]:
        """The script's times in seconds, in a new process with these arguments and variables.

        Raises:
            RuntimeError: it failed; the message ends with what it wrote last.
        """
        told = run_python(
            self.python,
            [str(self.script), *arguments],
            {self.cache_variable: str(cache), "ACCEL_ACCELERATOR": "cpu", "DS_ACCELERATOR": "cpu", **environment},
        )
        times: dict[str, float] = json.loads(told.stdout.splitlines()[-1])
        return times


def peer_environment(python: Path) -> dict[str, str]:
    """The environment of an installed program: bytecode files allowed, the interpreter's tools on PATH."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    inherited["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), inherited.get("PYTHONPATH")]))
    inherited["PATH"] = os.pathsep.join([str(python.parent), inherited.get("PATH", os.defpath)])
    return inherited


def run_python(python: Path, arguments: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run an interpreter in its :func:`peer_environment` and ``environment``.

    Raises:
        RuntimeError: it failed or took too long.
    """
    command = [str(python), *arguments]
    try:
        told = subprocess.run(
            command, env={**peer_environment(python), **environment}, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(command)} did not end within {TIMEOUT_S} s.") from None
    if told.returncode != 0:
        last = "\n".join(told.stderr.splitlines()[-15:])
        raise RuntimeError(f"{' '.join(command)} failed with status {told.returncode}:\n{last}")
    return told


def cold_build_s(builder: str) -> float:
    """Seconds of a host op's ``load()`` into an empty cache, in a process that has torch already.

    Args:
        builder: the name of its class in ``op_builder.cpu``.

    Raises:
        RuntimeError: as :func:`run_python`.
    """
    code = (
        f"import time, torch; from op_builder.cpu import {builder}; builder = {builder}();"
        "started = time.perf_counter(); builder.load(); print(time.perf_counter() - started)"
    )
    with tempfile.TemporaryDirectory() as cache:
        told = run_python(Path(sys.executable), ["-c", code], {"ACCEL_CACHE_DIR": cache})
    return float(told.stdout.split()[-1])


def make_read_only(source: Path, target: Path) -> Path:
    """A copy of a cache directory that only root could write."""
    shutil.copytree(source, target)
    for path in (target, *target.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return target


def snapshot(directory: Path) -> dict[str, int]:
    """Every path below a directory with the time of its last change; of a manifest that is the last use.

    Root may renew it wherever it likes, so it counts as 0.
    """
    paths = (directory, *directory.rglob("*"))
    return {str(path): 0 if path.name == MANIFEST else path.lstat().st_mtime_ns for path in paths}
