"""Other projects' packages, written into a temporary directory and imported from there."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from op_builder import env

ROOT = Path(__file__).resolve().parents[2]


def write_package(parent: Path, name: str, files: Mapping[str, str]) -> Path:
    """Write ``files`` (relative path: text) below ``parent/name``; every directory with a .py file is a package."""
    package = parent / name
    for path, text in files.items():
        target = package / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for module in list(package.rglob("*.py")):
        for directory in [module.parent, *module.parent.parents]:
            if not directory.is_relative_to(package):
                break
            (directory / "__init__.py").touch()
    return package


def install(site: Path, name: str, files: Mapping[str, str], entry_points: str) -> None:
    """Write the files of an installed distribution, and its record with entry points, into ``site``."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    record = f"{name}-1.0.dist-info"
    for path, text in {**files, f"{record}/METADATA": metadata, f"{record}/entry_points.txt": entry_points}.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)


@contextmanager
def importable(parent: Path, name: str) -> Iterator[None]:
    """``name`` can be imported from ``parent`` inside the block, and is forgotten after it."""
    sys.path.insert(0, str(parent))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(parent))
        for module in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
            del sys.modules[module]


def load_module(name: str) -> ModuleType:
    return importlib.import_module(name)


def python(
    *arguments: str | Path, cwd: Path | None = None, paths: Sequence[Path] = (), **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """Run Python in a new process that imports from ``paths`` and the checkout."""
    environment = env.child_environment(**{"PYTHONPATH": os.pathsep.join(map(str, [*paths, ROOT])), **variables})
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=900
    )


def output_of(
    *arguments: str | Path, cwd: Path | None = None, paths: Sequence[Path] = (), **variables: str | None
) -> str:
    """What that process prints; it must succeed."""
    done = python(*arguments, cwd=cwd, paths=paths, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
