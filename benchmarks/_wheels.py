"""Wheels of this project and of peers: built with pip, installed and used away from this checkout."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

from benchmarks._measure import ROOT, seconds_of
from benchmarks._peers import failure, make_environment

TIMEOUT_S = 1800


@dataclasses.dataclass(frozen=True)
class Installation:
    """A virtual environment that sees this one's packages, but not this checkout."""

    python: Path

    @classmethod
    def make(cls, directory: Path) -> Installation:
        """Make one in a new directory."""
        return cls(make_environment(directory))

    def pip_wheel(self, source: str | Path, directory: Path, *options: str, **variables: str) -> float:
        """Seconds that ``pip wheel`` takes to build ``source`` into ``directory``, with these options and variables."""
        arguments = ("-m", "pip", "wheel", "--no-deps", *options, "-w", str(directory), str(source))
        return seconds_of(lambda: self._run(*arguments, **variables))

    def pip_install(self, *requirements: str | Path, with_dependencies: bool = True) -> None:
        """Install packages."""
        options = () if with_dependencies else ("--no-deps", "--force-reinstall")
        self._run("-m", "pip", "install", *options, *map(str, requirements))

    def run(self, code: str, directory: Path, *arguments: str, **variables: str) -> str:
        """The standard output of a Python program that finds no compiler and nothing in the cache.

        Args:
            directory: the current directory of the program.
            variables: added to its environment.
        """
        own = {"PATH": "/nonexistent", "ACCEL_CACHE_DIR": str(directory / "none"), "ACCEL_ACCELERATOR": "cpu"}
        return self._run("-c", code, *arguments, directory=directory, **{**own, **variables})

    def _run(self, *arguments: str, directory: Path | None = None, **variables: str) -> str:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ACCEL_"))}
        environment = {**inherited, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
        command = [str(self.python), *arguments]
        done = subprocess.run(
            command, env=environment, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise failure(command, done.returncode, done.stdout + done.stderr)
        return done.stdout


def copy_sources(directory: Path) -> Path:
    """Copy what an sdist of this project contains, so that builds leave nothing in the checkout."""
    for name in ("accelerator", "op_builder", "csrc", "kernels_sycl", "build_tools", "examples"):
        ignored = shutil.ignore_patterns("__pycache__", "_prebuilt")
        shutil.copytree(ROOT / name, directory / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, directory)
    return directory


def only_wheel(directory: Path) -> Path:
    """The one wheel in a directory."""
    (wheel,) = directory.glob("*.whl")
    return wheel
